"""Models that are quantized already: the float model behind each kind of file, its grids and integers, bad files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from quantpipe.errors import ModelError
from quantpipe.intake.load import load_graph, read_graph
from quantpipe.intake.quantized import restore, runnable
from tests.intake.quantized_files import CONV, CONV_SCALE, DENSE, FILES, GRIDS, dynamic, packed, qcdq, qdq, qonnx

Array = np.ndarray[Any, Any]


def run(model: onnx.ModelProto, x: Array) -> Array:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found: Array = session.run(None, {"x": x})[0]
    return found


def samples(count: int = 8) -> Array:
    return (np.random.default_rng(1).standard_normal((count, 2, 6, 6)) * 0.9).astype(np.float32)


def proto(model: ir.Model) -> onnx.ModelProto:
    found = ir.to_proto(model)
    assert isinstance(found, onnx.ModelProto)
    return found


@pytest.mark.parametrize("name", list(FILES))
def test_the_float_model_behind_a_file(name: str) -> None:
    """It has no op of integers left, and computes what the file computes but for rounding to its grids."""
    file = FILES[name]()
    made = restore(ir.from_proto(file))
    ops = {n.op_type for n in made.model.graph}
    assert ops <= {"Conv", "Relu", "Clip", "Flatten", "Gemm", "MatMul", "Identity", "Transpose"}
    x = samples()
    # QONNX has no runtime here: its nodes as Q, Clip and DQ are the same by the document.
    wanted = run(proto(runnable(ir.from_proto(file))), *_fed(name, x))
    if name == "integer_ends":
        scale, zero = GRIDS["y"]
        wanted = (wanted.astype(np.float32) - (zero - 128)) * np.float32(scale)
    found = run(proto(made.model), x)
    assert found.dtype == np.float32
    if name.startswith("packed"):
        assert np.allclose(wanted, found, atol=1e-4)
        return
    noise = np.sum((wanted - found) ** 2) / np.sum((wanted - wanted.mean()) ** 2)
    assert noise < (0.2 if name in ("qcdq", "qonnx") else 0.02), noise


def _fed(name: str, x: Array) -> tuple[Array]:
    if name != "integer_ends":
        return (x,)
    scale, zero = GRIDS["x"]
    return (np.clip(np.rint(x / np.float32(scale)) + zero - 128, -128, 127).astype(np.int8),)


@pytest.mark.parametrize("name", ["qdq", "qdq_int8", "qdq_without_relu", "qdq_transposed", "qoperator", "integer_ends"])
def test_scales_and_integers_of_a_static_file(name: str, tmp_path: Path) -> None:
    """As they were written, by the names of the cleaned model."""
    onnx.save(FILES[name](), tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda raw: {"x": samples()}, isolate=False)
    given = graph.imported
    assert given is not None and not given.lost
    move = -128 if name in ("qdq_int8", "integer_ends") else 0
    for tensor, (scale, zero) in GRIDS.items():
        grid = given.tensor[tensor].grid
        assert (grid.scale, int(grid.zero), grid.bits) == (np.float32(scale), zero + move, 8), tensor
    conv, dense = (
        given.weight[graph.by_name[n.name].inputs[1]] for n in graph.nodes if n.op in ("Conv", "Gemm", "MatMul")
    )
    assert np.array_equal(conv.values, CONV) and np.array_equal(conv.grid.scale, CONV_SCALE) and conv.grid.axis == 0
    assert np.array_equal(dense.values, DENSE) or np.array_equal(dense.values.T, DENSE)
    assert [n.op for n in graph.nodes if n.op in ("Relu", "Clip")] == ["Relu"], "also where the file has none left"
    for node, weight in ((n, given.weight[n.inputs[1]]) for n in graph.nodes if n.op in ("Conv", "Gemm", "MatMul")):
        assert weight.values.shape == graph.shapes[node.inputs[1]]


def test_a_clamp_that_changes_nothing_is_not_put_in(tmp_path: Path) -> None:
    """A sum of squares is never negative: no tool has left a Relu out there."""
    model = qdq(relu=False)
    conv = next(n for n in model.graph.node if n.op_type == "Conv")
    conv.output[0] = "signed"
    square = helper.make_node("Mul", ["signed", "signed"], ["hidden"], name="square")
    model.graph.node.insert(list(model.graph.node).index(conv) + 1, square)
    onnx.save(model, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda raw: {"x": samples()}, isolate=False)
    assert not [n for n in graph.nodes if n.op == "Relu"]
    assert graph.imported is not None and "hidden" in graph.imported.tensor


def test_integers_follow_what_a_batch_normalization_multiplies(tmp_path: Path) -> None:
    """Its gain goes into the scales, and a negative one into the signs."""
    gain = np.asarray([2.0, -0.5, 1.0, 0.25], np.float32)
    model = qdq(relu=False)
    conv = next(n for n in model.graph.node if n.op_type == "Conv")
    conv.output[0] = "conv_out"
    numbers = {"g": gain, "b": np.ones(4, np.float32), "m": np.zeros(4, np.float32), "v": np.ones(4, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in numbers.items())
    norm = helper.make_node("BatchNormalization", ["conv_out", *numbers], ["hidden"], name="norm", epsilon=0.0)
    model.graph.node.insert(list(model.graph.node).index(conv) + 1, norm)
    onnx.save(model, tmp_path / "m.onnx")
    graph = load_graph(tmp_path / "m.onnx", lambda raw: {"x": samples()}, isolate=False)
    given = graph.imported
    assert given is not None and not given.lost and not [n for n in graph.nodes if n.op == "BatchNormalization"]
    conv = next(w for w in given.weights if w.values.ndim == 4)
    assert np.allclose(conv.grid.scale, CONV_SCALE * np.abs(gain), rtol=1e-6)
    assert np.array_equal(conv.values, CONV * np.sign(gain).astype(np.int8)[:, None, None, None])


def test_fewer_bits_are_those_that_a_clip_leaves(tmp_path: Path) -> None:
    for name in ("qcdq", "qonnx"):
        onnx.save(FILES[name](), tmp_path / "m.onnx")
        given = load_graph(tmp_path / "m.onnx", lambda raw: {"x": samples()}, isolate=False).imported
        assert given is not None and not given.lost
        ends = {
            t: (given.tensor[t].grid.low, given.tensor[t].grid.high, given.tensor[t].grid.bits) for t in ("x", "hidden")
        }
        assert ends == {"x": (-7, 7, 4), "hidden": (0, 15, 4)}
        conv = next(w for w in given.weights if w.values.ndim == 4)
        assert np.array_equal(conv.values, np.clip(CONV, -7, 7)) and conv.grid.bits == 4


def test_ranges_of_each_sample_are_none_that_could_be_kept() -> None:
    made = restore(ir.from_proto(dynamic()))
    assert made.forms == ("dynamic",) and len(made.dynamic) == 2
    assert {w.values.shape for w in made.weights} == {CONV.shape, (64, 3)}
    assert {t.tensor for t in made.tensors} == {w.tensor for w in made.weights}


@pytest.mark.parametrize("order", ["joined", "apart"])
def test_an_integer_sum_with_a_factor_too_few_stays(order: str) -> None:
    """It is no product that could be restored, and no error: it is an island."""
    model = dynamic(order)
    for node in model.graph.node:
        node.input[:] = ["conv_scale" if name == "x_s" else name for name in node.input]
    ops = [n.op_type for n in restore(ir.from_proto(model)).model.graph]
    assert "ConvInteger" in ops and "MatMulInteger" not in ops


def test_blocks_that_are_whole_channels_are_scales_per_channel() -> None:
    (whole,) = restore(ir.from_proto(FILES["packed_channel"]())).weights
    assert (whole.block, whole.grid.axis, whole.grid.scale.shape, whole.grid.bits) == (None, 1, (3,), 4)
    (blocks,) = restore(ir.from_proto(packed())).weights
    assert (blocks.block, blocks.grid.scale.shape) == (16, (5, 3))


def changed(make: Callable[[], onnx.ModelProto], **constants: Any) -> onnx.ModelProto:
    model = make()
    for initializer in model.graph.initializer:
        if initializer.name in constants:
            initializer.CopyFrom(numpy_helper.from_array(np.asarray(constants[initializer.name]), initializer.name))
    return model


def _axis(axis: int) -> onnx.ModelProto:
    model = qdq()
    node = next(n for n in model.graph.node if n.output[0] == "conv_w")
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("axis", axis))
    return model


def _open() -> onnx.ModelProto:
    model = qdq()
    nodes = [n for n in model.graph.node if n.output[0] != "hidden_dq"]
    nodes.insert(-4, helper.make_node("Cast", ["hidden_QuantizeLinear_Output"], ["hidden_dq"], name="cast", to=1))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


BAD: dict[str, tuple[Callable[[], onnx.ModelProto], str]] = {
    "scale_zero": (
        lambda: changed(qdq, hidden_scale=np.float32(0)),
        r"its scale is 0; legal are finite numbers above 0",
    ),
    "scale_nan": (lambda: changed(qdq, conv_scale=np.full(4, np.nan, np.float32)), "its scale is nan"),
    "scale_integer": (
        lambda: changed(qdq, hidden_scale=np.int32(1)),
        "its scale is int32; legal are float16 and float32",
    ),
    "zero_type": (
        lambda: changed(qdq, conv_zero=np.zeros(4, np.uint8)),
        "its integers are int8 and its zero point is uint8",
    ),
    "zero_float": (
        lambda: changed(qdq, conv_zero=np.zeros(4, np.float32)),
        "its zero point is float; legal are integers",
    ),
    "zero_count": (lambda: changed(qdq, conv_zero=np.zeros(3, np.int8)), "it has 4 scales and 3 zero points"),
    "axis": (
        lambda: _axis(1),
        r"4 scales along axis 1, and the weight \[4, 2, 3, 3\] has 2 channels .*axis 0 would fit",
    ),
    "axis_beyond": (lambda: _axis(7), r"its axis is 7, and \[4, 2, 3, 3\] has 4 axes"),
    "open": (_open, "it has no DequantizeLinear: Cast 'cast' reads its integers as numbers; .*realize=\[qdq,qonnx\]"),
    "bounds": (lambda: changed(qcdq, x_least=np.int8(3)), "bounds integers to 3 to 7, and their zero point is 0"),
    "bits": (lambda: changed(qonnx, x_dq_b=np.float32(33)), "its bit width is 33; legal are integers from 1"),
    "rounding": (lambda: qonnx(rounding="FLOOR"), "it rounds by FLOOR; legal is ROUND"),
    "zero_beyond": (lambda: qonnx(zero=200.0), "its zero point is 200; 4 bits hold 0 to 15"),
    "unknown": (
        lambda: qonnx(op="MultiThreshold"),
        "it is an op of qonnx.custom_op.general that no integer form is known of",
    ),
}


@pytest.mark.parametrize("name", list(BAD))
def test_files_that_contradict_themselves(name: str, tmp_path: Path) -> None:
    """One sentence that names the node."""
    make, said = BAD[name]
    onnx.save(make(), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=said):
        read_graph(tmp_path / "m.onnx")


def test_both_ends_of_a_tensor_have_one_scale(tmp_path: Path) -> None:
    model = qdq()
    node = next(n for n in model.graph.node if n.output[0] == "hidden_dq")
    node.input[1] = "y_scale"
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"stored with scale 0.07 and read with 0.25; legal is one scale"):
        read_graph(tmp_path / "m.onnx")


def test_a_float_model_is_left_as_it_is(tmp_path: Path) -> None:
    model = qdq()
    made = proto(restore(ir.from_proto(model)).model)
    onnx.save(made, tmp_path / "m.onnx")
    raw = read_graph(tmp_path / "m.onnx")
    assert raw.real.given is None and raw.real.model is raw.real.whole


def test_a_number_that_the_clean_up_folds_away_is_lost_and_said(tmp_path: Path) -> None:
    """A quantized constant without axes, whose product with another constant is all that the clean model has."""
    model = qdq()
    first = next(n for n in model.graph.node if n.op_type == "Flatten")
    first.input[0] = "halved"
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(v), n) for n, v in (("half_q", np.int8(64)), ("two", np.float32(2)))
    )
    made = [
        helper.make_node("DequantizeLinear", ["half_q", "hidden_scale"], ["half"], name="half"),
        helper.make_node("Mul", ["half", "two"], ["whole"], name="whole"),
        helper.make_node("Mul", ["hidden_dq", "whole"], ["halved"], name="halved"),
    ]
    place = list(model.graph.node).index(first)
    for node in reversed(made):
        model.graph.node.insert(place, node)
    onnx.save(model, tmp_path / "m.onnx")
    given = load_graph(tmp_path / "m.onnx", lambda raw: {"x": samples()}, isolate=False).imported
    assert given is not None and len(given.lost) == 1 and "do not follow" in next(iter(given.lost.values()))


def _three_ops(tensor: str, zero: float | None, scale: float) -> onnx.ModelProto:
    """The model of which one tensor is read by Cast, Sub and Mul in place of a DequantizeLinear."""
    model = qdq()
    place, node = next((i, n) for i, n in enumerate(model.graph.node) if n.output[0] == f"{tensor}_dq")
    model.graph.initializer.extend(
        numpy_helper.from_array(np.float32(v), n) for n, v in (("three_zero", zero or 0), ("three_scale", scale))
    )
    made = [helper.make_node("Cast", [node.input[0]], ["three_real"], name="cast", to=1)]
    if zero is not None:
        made.append(helper.make_node("Sub", ["three_real", "three_zero"], ["three_centred"], name="centre"))
    made.append(helper.make_node("Mul", ["three_scale", made[-1].output[0]], [f"{tensor}_dq"], name="scale"))
    del model.graph.node[place]
    for other in reversed(made):
        model.graph.node.insert(place, other)
    return model


@pytest.mark.parametrize(("tensor", "centred"), [("x", True), ("hidden", True), ("hidden", False)])
def test_three_ops_are_the_dequantize_linear_that_they_are(tensor: str, centred: bool) -> None:
    """(q - z)·s of the stored grid, as realized QDQ files write it in front of a Softmax."""
    scale, zero = GRIDS[tensor]
    written = restore(ir.from_proto(qdq()))
    three = restore(ir.from_proto(_three_ops(tensor, zero if centred else None, scale)))
    assert [n.op_type for n in three.model.graph] == [n.op_type for n in written.model.graph]
    assert [t.tensor for t in three.tensors] == [t.tensor for t in written.tensors]
    x = samples()
    assert np.array_equal(run(proto(three.model), x), run(proto(written.model), x))


@pytest.mark.parametrize("other", ["zero", "no zero", "scale"])
def test_three_ops_of_another_grid_are_refused(other: str, tmp_path: Path) -> None:
    """They would read other numbers than were stored."""
    scale, zero = GRIDS["x"]
    moved = {"zero": zero + 1, "no zero": None}.get(other, zero)
    onnx.save(_three_ops("x", moved, scale * (2 if other == "scale" else 1)), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="Cast 'cast' reads its integers as numbers"):
        read_graph(tmp_path / "m.onnx")
