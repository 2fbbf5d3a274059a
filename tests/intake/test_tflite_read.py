"""Files of TensorFlow Lite as ONNX: every operator against LiteRT's reference kernels, integers, and bad files."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.errors import ModelError
from quantpipe.intake.read_model import read_model
from quantpipe.intake.tflite import litert
from quantpipe.intake.tflite.read_file import METADATA, READERS, is_tflite, read_tflite
from quantpipe.realize.tflite.container import Container, TensorQuantization
from tests.intake.tflite_rows import MAP, ROWS, Row, file_of, real, small_net, whole

pytest.importorskip("ai_edge_litert", reason="LiteRT is not installed")
Array = np.ndarray[Any, Any]
SECONDS = 20.0
"""What a hostile file of some kilobytes may take; most take milliseconds."""


def written(content: bytes, folder: Path) -> Path:
    path = folder / "m.tflite"
    path.write_bytes(content)
    return path


def by_onnxruntime(model: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    onnx.checker.check_model(model, full_check=True)
    return ort.InferenceSession(model.SerializeToString()).run(None, feeds)  # type: ignore[no-any-return]


def by_litert(content: bytes, feeds: dict[str, Array], told: dict[str, Any]) -> list[Array]:
    module = litert.interpreter()
    found = module.Interpreter(model_content=content, experimental_op_resolver_type=module.OpResolverType.BUILTIN_REF)
    found.allocate_tensors()
    for name, number in told["inputs"].items():
        found.set_tensor(number, feeds[name])
    found.invoke()
    return [found.get_tensor(number) for number in told["outputs"].values()]


def drawn(model: onnx.ModelProto, positive: bool = False) -> dict[str, Array]:
    rng, feeds = np.random.default_rng(5), {}
    for port in model.graph.input:
        shape = [d.dim_value for d in port.type.tensor_type.shape.dim]
        kind = onnx.helper.tensor_dtype_to_np_dtype(port.type.tensor_type.elem_type)
        values = rng.normal(0, 2, shape)
        values = np.abs(values) + 0.1 if positive else values
        feeds[port.name] = values.astype(kind) if kind.kind != "b" else values > 0
    return feeds


CASES = [(op, number) for op, rows in ROWS.items() for number in range(len(rows))]


def test_every_operator_that_is_read_has_a_row() -> None:
    assert set(ROWS) == set(READERS)


@pytest.mark.parametrize(("op", "number"), CASES)
def test_an_operator_computes_what_litert_computes(op: str, number: int, tmp_path: Path) -> None:
    row = ROWS[op][number]
    content = file_of(op, row)
    model = read_tflite(written(content, tmp_path))
    feeds, told = drawn(model, row.positive), json.loads(model.metadata_props[0].value)
    found = by_onnxruntime(model, feeds)
    wanted = [row.expected(*feeds.values())] if row.expected is not None else by_litert(content, feeds, told)
    for a, b in zip(found, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert read_model(tmp_path / "m.tflite").graph.name == "main"


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("ends", ["float32", "own"])
def test_integers_scales_and_zero_points_are_the_files(kind: str, ends: str, tmp_path: Path) -> None:
    content = small_net(kind, ends=ends)
    model = read_tflite(written(content, tmp_path))
    constants = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    schema = litert.schema().Model.GetRootAs(content)
    graph = schema.Subgraphs(0)
    tensors = {graph.Tensors(n).Name().decode(): graph.Tensors(n) for n in range(graph.TensorsLength())}
    for name, order in (("w", (0, 3, 1, 2)), ("v", (0, 1)), ("b", (0,)), ("c", (0,))):
        raw = schema.Buffers(tensors[name].Buffer()).DataAsNumpy()
        shape = tensors[name].ShapeAsNumpy()
        items = raw.view("i1" if name in "wv" else "i8" if kind == "int16" else "i4").reshape(shape)
        assert np.array_equal(constants[f"{name}_q"], items.transpose(order))
    for name in ("x", "a", "m", "y"):
        real_name = name if f"{name}_scale" in constants else f"{name}_real"
        numbers = tensors[name].Quantization()
        assert constants[f"{real_name}_scale"] == numbers.Scale(0)
        assert constants[f"{real_name}_zero"] == numbers.ZeroPoint(0)
        assert constants[f"{real_name}_zero"].dtype == kind


def test_a_bias_beyond_float32_keeps_its_integers(tmp_path: Path) -> None:
    content = small_net("int16", bias_steps=2**28)
    model = read_tflite(written(content, tmp_path))
    (bias,) = (i for i in model.graph.initializer if i.name == "b_q")
    assert onnx.numpy_helper.to_array(bias).min() > 2**27
    assert "c_q" in {i.name for i in model.graph.initializer}
    beyond = read_tflite(written(small_net("int16", bias_steps=2**40), tmp_path))
    assert "b_q" not in {i.name for i in beyond.graph.initializer}


def test_the_content_decides_and_then_the_suffix(tmp_path: Path) -> None:
    other = tmp_path / "net.onnx"
    other.write_bytes(small_net())
    assert is_tflite(other) and not is_tflite(tmp_path)
    assert len(read_model(other).graph) > 0
    junk = written(b"some bytes of text", tmp_path)
    assert is_tflite(junk)
    with pytest.raises(ModelError, match="is no TensorFlow Lite file"):
        read_model(junk)


def test_ports_have_the_names_of_the_signature(tmp_path: Path) -> None:
    model = read_tflite(written(small_net(), tmp_path))
    assert [p.name for p in model.graph.input] == ["x"] and [p.name for p in model.graph.output] == ["y"]
    assert [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim] == [1, 8, 8, 3]


# --- what is not read -------------------------------------------------------------------------------------------------


def _two(op: str, kind: str | None = None, **options: Any) -> bytes:
    return file_of(op, Row([MAP], [MAP], kind, options))


STEPS = {"strideH": 1, "strideW": 1}
PADS = whole(0, 0, 1, 1).reshape(2, 2)

REFUSED = {
    "unknown": (_two("IMAG"), "it has operators that are not read from a .tflite file (IMAG)"),
    "state": (_two("SVDF"), "SVDF: it keeps values between runs"),
    "control": (_two("WHILE"), "WHILE: it runs another graph of the file"),
    "activation": (
        file_of("ADD", Row([MAP, MAP], [MAP], "AddOptions", {"fusedActivationFunction": 5})),
        "its activation is SIGN_BIT; legal are NONE, RELU",
    ),
    "axis": (
        file_of("MEAN", Row([MAP, whole(7)], [(1,)], "ReducerOptions")),
        "its axis is 7, and its tensor has 4 axes",
    ),
    "computed": (
        file_of("TRANSPOSE", Row([(2, 3), (2,)], [(3, 2)], types=("float32", "int32"))),
        "is computed at run time; legal are constants",
    ),
    "rows": (
        file_of("CONV_2D", Row([MAP, real(3, 1, 1, 5), real(3)], [(1, 6, 5, 3)], "Conv2DOptions", STEPS)),
        "its filters are [3, 1, 1, 5] for 4 channels",
    ),
    "stride": (
        file_of("CONV_2D", Row([MAP, real(3, 1, 1, 4), real(3)], [(1, 6, 5, 3)], "Conv2DOptions")),
        "its strides are [0, 0]",
    ),
    "rows of a condition": (
        file_of("SELECT", Row([(3,), (3, 3), (3, 3)], [(3, 3)], "SelectOptions", types=("bool", "float32", "float32"))),
        "its condition selects rows; legal is one for each element",
    ),
    "corners and centres": (
        file_of("RESIZE_NEAREST_NEIGHBOR", Row([MAP, whole(3, 2)], [(1, 3, 2, 4)], "ResizeNearestNeighborOptions",
                                               {"alignCorners": True, "halfPixelCenters": True})),
        "it aligns corners and has half-pixel centres; legal is one of the two",
    ),
    "mirror": (
        file_of("MIRROR_PAD", Row([(2, 3), PADS], [(2, 5)], "MirrorPadOptions", {"mode": 1})),
        "it repeats the ends of an axis (SYMMETRIC)",
    ),
    "mask": (
        file_of("STRIDED_SLICE", Row([(2, 3), whole(0, 0), whole(2, 3), whole(1, 1)], [(2, 3)], "StridedSliceOptions",
                                     {"ellipsisMask": 1})),
        "it has an ellipsis, a new axis or an offset",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_form_in_onnx_is_refused_by_name(name: str, tmp_path: Path) -> None:
    content, said = REFUSED[name]
    with pytest.raises(ModelError) as error:
        read_tflite(written(content, tmp_path))
    assert said in str(error.value) and "m.tflite" in str(error.value) and "\n" not in str(error.value)


def test_integers_that_are_read_as_numbers_are_refused(tmp_path: Path) -> None:
    file = Container()
    x = file.tensor("x", (1, 4), "int8", grid=TensorQuantization(np.float32(0.1), 3))
    y = file.tensor("y", (1, 4), "int32")
    file.operator("CAST", [x], [y], 1, kind="CastOptions", inDataType=9, outDataType=2)
    with pytest.raises(ModelError, match="takes the integers of 'x' as numbers"):
        read_tflite(written(file.build({"x": x}, {"y": y}, "", {}), tmp_path))


def test_wide_integers_with_a_scale_are_refused(tmp_path: Path) -> None:
    file = Container()
    x = file.tensor("x", (1, 4), "int16", grid=TensorQuantization(np.float32(0.1), 0))
    y = file.tensor("y", (1, 4), "int32", grid=TensorQuantization(np.float32(0.05), 0))
    file.operator("QUANTIZE", [x], [y], 1, kind="QuantizeOptions")
    with pytest.raises(ModelError, match="it stores INT32 with a scale; legal are INT4, INT8"):
        read_tflite(written(file.build({"x": x}, {"y": y}, "", {}), tmp_path))


def test_a_cut_of_one_sample_stays_one_sample(tmp_path: Path) -> None:
    """Of an axis whose size is free, `[0:1]` is the first sample; `[0:]` is all of them."""
    for size, rows in ((1, 1), (-1, 2)):
        file = Container()
        x = file.tensor("x", (1, 3), "float32", free=True)
        numbers = [file.constant(f"c{n}", whole(*values), "int32") for n, values in enumerate(((0, 1), (size, 2)))]
        y = file.tensor("y", (1, 2), "float32", free=True)
        file.operator("SLICE", [x, *numbers], [y], 1, kind="SliceOptions")
        model = read_tflite(written(file.build({"x": x}, {"y": y}, "", {}), tmp_path))
        (found,) = ort.InferenceSession(model.SerializeToString()).run(None, {"x": np.ones((2, 3), np.float32)})
        assert found.shape == (rows, 2)


def test_an_output_named_like_an_input_gets_another_name(tmp_path: Path) -> None:
    file = Container()
    x, y = file.tensor("x", MAP, "float32"), file.tensor("y", MAP, "float32")
    file.operator("RELU", [x], [y], 1)
    model = read_tflite(written(file.build({"image": x}, {"image": y}, "", {}), tmp_path))
    assert [p.name for p in model.graph.output] == ["image_out"]


def test_a_constant_that_is_named_again_and_again_runs_out_of_its_budget(tmp_path: Path) -> None:
    s = litert.schema()
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(small_net()))
    graph = model.subgraphs[0]
    weight = next(t for t in graph.tensors if t.name == b"w")
    model.buffers[weight.buffer].data, weight.shape = np.zeros(40_000, np.uint8), [4, 1, 1, 10_000]
    graph.tensors.extend([weight] * 100)
    builder = litert.flatbuffers().Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    content = bytes(builder.Output())
    with pytest.raises(ModelError, match="names more elements than it has bytes for"):
        read_tflite(written(content, tmp_path))


# --- hostile files ----------------------------------------------------------------------------------------------------


def changed(**fields: Any) -> bytes:
    """A small file with parts of it changed: `tensor` changes one, `graph` and `model` what holds it."""
    s = litert.schema()
    model = s.ModelT.InitFromObj(s.Model.GetRootAs(small_net()))
    for part, change in fields.items():
        change({"model": model, "graph": model.subgraphs[0], "tensor": model.subgraphs[0].tensors[0]}[part])
    builder = litert.flatbuffers().Builder(4096)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def put(name: str, value: Any) -> Any:
    return lambda part: setattr(part, name, value)


def weight_shape(graph: Any) -> None:
    next(t for t in graph.tensors if t.name == b"w").shape = [4, 3, 3, 300]


HOSTILE = {
    "version": (lambda: changed(model=put("version", 9)), "has the schema version 9"),
    "no_graph": (lambda: changed(model=put("subgraphs", [])), "has no graph"),
    "huge": (lambda: changed(tensor=put("shape", [1 << 30, 1 << 30])), "which is more than"),
    "negative": (lambda: changed(tensor=put("shape", [-4, 3])), "of the shape [-4, 3]"),
    "axes": (lambda: changed(tensor=put("shape", [1] * 40)), "with 40 axes"),
    "buffer": (lambda: changed(tensor=put("buffer", 4000)), "in the buffer 4000"),
    "short": (lambda: changed(graph=weight_shape), "which takes 10800 bytes, in 108 bytes"),
    "nothing": (lambda: changed(graph=lambda g: put("outputs", [])(g.operators[1])), "which makes nothing"),
    "port": (lambda: changed(graph=put("inputs", [99])), "has a port with the tensor 99"),
    "input": (lambda: changed(graph=lambda g: put("inputs", [77])(g.operators[1])), "with the tensor 77"),
    "code": (lambda: changed(graph=lambda g: put("opcodeIndex", 50)(g.operators[1])), "of the code 50"),
    "itself": (lambda: changed(graph=lambda g: put("inputs", list(g.operators[1].outputs))(g.operators[1])),
               "before anything makes it"),
    "twice": (lambda: changed(graph=lambda g: put("operators", [*g.operators, g.operators[1]])(g)),
              "a tensor that exists already"),
    "scale": (lambda: changed(tensor=lambda t: put("scale", [float("nan")])(t.quantization)), "with the scale nan"),
    "zero": (lambda: changed(tensor=lambda t: put("zeroPoint", [999])(t.quantization)), "with the zero points [999]"),
    "scales": (lambda: changed(tensor=lambda t: put("scale", [1.0, 2.0])(t.quantization)), "with 2 scales along axis"),
    "sparse": (lambda: changed(tensor=put("sparsity", litert.schema().SparsityParametersT())),
               "which is sparse and no constant"),
    "variable": (lambda: changed(tensor=put("isVariable", True)), "keeps its values between runs"),
    "type": (lambda: changed(tensor=put("type", 5)), "of the type STRING"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_refused_in_one_paragraph(name: str, tmp_path: Path) -> None:
    make, said = HOSTILE[name]
    with pytest.raises(ModelError) as error:
        read_tflite(written(make(), tmp_path))
    assert said in str(error.value) and "; legal " in str(error.value) and "\n" not in str(error.value)


def test_a_vector_that_is_named_again_and_again_runs_out_of_its_budget(tmp_path: Path) -> None:
    """20,000 tensors that are one table with 20,000 scales: a reader without a budget reads 400 million numbers."""
    s, count = litert.schema(), 20_000
    builder = litert.flatbuffers().Builder(1 << 18)
    scales = builder.CreateNumpyVector(np.ones(count, np.float32))
    shape = builder.CreateNumpyVector(np.asarray([count], np.int32))
    s.QuantizationParametersStart(builder)
    s.QuantizationParametersAddScale(builder, scales)
    grid = s.QuantizationParametersEnd(builder)
    s.TensorStart(builder)
    for add, value in ((s.TensorAddShape, shape), (s.TensorAddType, 9), (s.TensorAddQuantization, grid)):
        add(builder, value)
    tensor = s.TensorEnd(builder)
    tensors = _vector(builder, [tensor] * count)
    s.SubGraphStart(builder)
    s.SubGraphAddTensors(builder, tensors)
    graphs = _vector(builder, [s.SubGraphEnd(builder)])
    s.BufferStart(builder)
    buffers = _vector(builder, [s.BufferEnd(builder)])
    s.ModelStart(builder)
    for add, value in ((s.ModelAddVersion, 3), (s.ModelAddSubgraphs, graphs), (s.ModelAddBuffers, buffers)):
        add(builder, value)
    builder.Finish(s.ModelEnd(builder), file_identifier=b"TFL3")
    start = time.monotonic()
    with pytest.raises(ModelError, match="names more elements than it has bytes for"):
        read_tflite(written(bytes(builder.Output()), tmp_path))
    assert time.monotonic() - start < SECONDS


def _vector(builder: Any, rows: list[int]) -> int:
    builder.StartVector(4, len(rows), 4)
    for row in reversed(rows):
        builder.PrependUOffsetTRelative(row)
    return int(builder.EndVector())


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_damaged_files_end_in_one_paragraph_or_in_a_model(data: st.DataObject) -> None:
    """Bytes are changed, or the end is cut off: what comes out is a ModelError or an ONNX model, and soon."""
    content = bytearray(small_net(data.draw(st.sampled_from(["int8", "uint8", "int16"]))))
    for _ in range(data.draw(st.integers(0, 8))):
        content[data.draw(st.integers(8, len(content) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    start = time.monotonic()
    with TemporaryDirectory() as folder:
        try:
            model = read_tflite(written(bytes(content[:end]), Path(folder)))
        except ModelError as error:
            assert "\n" not in str(error)
        else:
            assert model.metadata_props[0].key == METADATA and model.graph.output
    assert time.monotonic() - start < SECONDS
