"""`lint`: clean on what quantpipe writes, and every planted mistake is found by name."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from quantpipe.app.main import asset
from quantpipe.check import made_up
from quantpipe.check.lint import Findings, Severity, lint_model
from quantpipe.graph.io import model_bytes
from quantpipe.hardware.load import load_hardware
from quantpipe.pipeline.stages import realize
from quantpipe.types import HardwareSpec, RequantizeKind
from tests.ops.line import CONF, Net, hardware, hardware_data, line

SHIPPED = sorted(p.stem for p in (CONF / "hardware").glob("*.yaml"))


def net() -> Net:
    """Convolutions with clamps, a residual addition, a pool, a dense layer."""
    made = Net()
    x = made.conv(made.input(None, 4, 8, 8), 4, 8, 3, 3, pads=[1, 1, 1, 1], name="first")
    x = made.node("Relu", x, name="relu")
    y = made.conv(x, 8, 8, 3, 3, pads=[1, 1, 1, 1], group=8, name="depthwise")
    x = made.node("Relu", made.node("Add", x, y, name="add"), name="relu2")
    x = made.node("GlobalAveragePool", x, name="pool")
    made.output(made.dense(made.node("Flatten", x, name="flat"), 8, 5, name="dense"))
    return made


def attention() -> Net:
    """Products with weights and of two activations, a Softmax, a LayerNormalization, functions, an upsampling."""
    made = Net()
    x = made.input(None, 6, 8)
    q, k, v = (
        made.node("MatMul", x, made.floats(8, 8, scale=0.4), name=f"{part}_product")
        for part in ("query", "key", "value")
    )
    q = made.node("Add", q, made.floats(8, scale=0.2), name="query")
    k = made.node("Transpose", k, perm=[0, 2, 1])
    shares = made.node("Softmax", made.node("MatMul", q, k, name="scores"), axis=-1, name="softmax")
    y = made.node("Add", x, made.node("MatMul", shares, v, name="mix"), name="residual")
    y = made.node("LayerNormalization", y, made.floats(8), made.floats(8), axis=-1, name="norm")
    y = made.node("Sigmoid", made.node("MatMul", y, made.floats(8, 8, scale=0.4), name="dense"), name="sigmoid")
    y = made.node("Unsqueeze", y, made.constant(np.array([1])))
    y = made.conv(y, 1, 4, 3, 3, pads=[1, 1, 1, 1], name="map")
    y = made.node(
        "ConvTranspose", y, made.floats(4, 2, 2, 2, scale=0.5), strides=[2, 2], kernel_shape=[2, 2], name="up"
    )
    made.output(made.conv(y, 2, 2, 1, 1, name="last"))
    return made


def findings(model: bytes | onnx.ModelProto, spec: HardwareSpec) -> Findings:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())
        return lint_model(path, spec, lambda inputs: made_up(inputs, {}))


def forms(name: str) -> tuple[str, ...]:
    spec = load_hardware(hardware_data(name))
    if spec.realize == "integer":
        return ("integer",)
    return ("qdq", "qoperator", *(("integer",) if spec.requantize.kind is RequantizeKind.FLOAT_MULTIPLIER else ()))


@pytest.mark.sliced(10)
@pytest.mark.parametrize("written", [net, attention])
@pytest.mark.parametrize(("name", "form"), [(n, f) for n in SHIPPED for f in forms(n)])
def test_what_quantpipe_writes_is_what_the_hardware_takes(name: str, form: str, written: Callable[[], Net]) -> None:
    made = line(written(), name)
    realized = made.realize(made.plan(), form)
    found = findings(model_bytes(realized.model), made.spec)
    assert found.quantized_ops
    assert found.refused == ()
    assert found.exit_code == 0


def ours(name: str = "ort_cpu") -> onnx.ModelProto:
    """A QDQ model of the net, to be spoiled."""
    made = line(net(), name)
    return onnx.load_from_string(model_bytes(made.realize(made.plan(), "qdq").model))


def change(model: onnx.ModelProto, name: str, edit: Any) -> None:
    for tensor in model.graph.initializer:
        if tensor.name == name:
            tensor.CopyFrom(numpy_helper.from_array(edit(numpy_helper.to_array(tensor).copy()), name))
            return
    raise KeyError(name)


def input_of(model: onnx.ModelProto, op: str, port: int, number: int = 0) -> str:
    return [n for n in model.graph.node if n.op_type == op][number].input[port]


def rules(found: Findings) -> set[str]:
    return {f.rule for f in found.refused}


def test_a_wrong_bias_scale_is_found() -> None:
    model = ours()
    (bias,) = [n for n in model.graph.node if n.name.startswith("first") and "bias" in n.name]
    change(model, bias.input[1], lambda a: (a * np.float32(1.5)).astype(np.float32))
    (found,) = findings(model, hardware("ort_cpu")).refused
    assert (found.rule, found.where) == ("bias_scale", bias.input[0])


def test_integer_biases_are_refused_by_a_tool_chain_that_loads_real_ones() -> None:
    made = line(net(), "tensorrt_both")
    ours_alone = model_bytes(made.realize(made.plan(), "qdq").model)
    found = findings(ours_alone, made.spec)
    assert rules(found) == {"bias_dtype"}
    assert {f.node for f in found.refused} == {"first", "depthwise", "dense"}
    assert not findings(ours_alone, replace(made.spec, qdq_bias=None)).refused
    assert not findings(model_bytes(made.realize(made.plan(), "integer").model), made.spec).refused
    theirs = model_bytes(realize(made.graph, made.topology, made.plan(), "qdq", vendor=True).model)
    assert not findings(theirs, made.spec).refused
    assert rules(findings(theirs, replace(made.spec, qdq_bias=None))) == {"bias_dtype"}


def test_an_addition_within_a_layer_is_no_island() -> None:
    made = line(net(), "tensorrt")
    fused = model_bytes(realize(made.graph, made.topology, made.plan(), "qdq", vendor=True).model)
    assert not findings(fused, made.spec).findings
    assert {f.rule for f in findings(fused, hardware("tensorrt_both")).findings} == {"float_island"}


def test_the_most_negative_weight_is_found_where_it_is_not_allowed() -> None:
    model = ours()
    (weight,) = [n for n in model.graph.node if n.name == "first/weight"]

    def edit(values: Any) -> Any:
        values.flat[0] = -128
        return values

    change(model, weight.input[0], edit)
    (found,) = findings(model, hardware("ort_cpu")).refused
    assert (found.rule, found.where) == ("weight_range", weight.input[0])
    assert "-127 to 127" in found.message


def test_zero_points_and_unsigned_types_are_refused_by_a_symmetric_device() -> None:
    data = hardware_data("ort_cpu")
    ops = {
        op: [
            {k: [t.replace("uint8", "int8") for t in v] if k in ("in", "out") else v for k, v in s.items()} for s in ss
        ]
        for op, ss in data["ops"].items()
    }
    symmetric = load_hardware(
        data | {"ops": ops, "preferred_schema": "symmetric", "activations": {"symmetric": True, "narrow": True}}
    )
    found = findings(ours(), symmetric)
    assert {"dtype", "zero_point"} <= rules(found)
    assert found.exit_code == 3


def test_a_shift_only_device_refuses_other_scales_channels_and_types() -> None:
    assert {"power_of_two", "granularity", "dtype", "zero_point"} <= rules(findings(ours(), hardware("vta")))


def test_a_multiplier_in_the_integer_form_is_refused_by_a_shift_only_device() -> None:
    made = line(net(), "ort_cpu")
    found = findings(model_bytes(made.realize(made.plan(), "integer").model), hardware("vta"))
    assert "requantize" in rules(found)


def test_an_attribute_beyond_the_device() -> None:
    data = hardware_data("ort_cpu")
    data["ops"]["Conv"][0]["when"] = {"group": "1"}
    (found,) = findings(ours(), load_hardware(data)).refused
    assert (found.rule, found.node) == ("attribute", "depthwise")
    data["ops"]["Conv"][0]["when"] = {"pad_max": 0}
    assert [f.node for f in findings(ours(), load_hardware(data)).refused] == ["first", "depthwise"]


def test_an_op_that_the_device_does_not_have() -> None:
    data = hardware_data("ort_cpu")
    del data["ops"]["Add"]
    (found,) = findings(ours(), load_hardware(data)).refused
    assert (found.rule, found.node) == ("op", "add")


def test_a_float_island_is_noted() -> None:
    made = Net()
    x = made.conv(made.input(None, 4, 8, 8), 4, 8, 3, 3, name="first")
    made.output(made.conv(made.node("Erf", x, name="odd"), 8, 4, 3, 3, name="second"))
    whole = line(made, "ort_cpu")
    found = findings(model_bytes(whole.realize(whole.plan(), "qdq").model), whole.spec)
    assert [(f.severity, f.rule, f.where) for f in found.findings] == [(Severity.NOTE, "float_island", "odd")]
    assert found.exit_code == 0


def test_a_float_model_has_nothing_to_lint() -> None:
    assert findings(net().proto(), hardware("ort_cpu")).exit_code == 2


class Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        images = np.random.default_rng(0).random((8, 1, 8, 8)).astype(np.float32)
        self._feeds = iter([{"image": image[None]} for image in images])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
@pytest.mark.parametrize("per_channel", [False, True])
def test_files_of_onnxruntimes_own_tool(tmp_path: Path, form: QuantFormat, per_channel: bool) -> None:
    path = tmp_path / "quantized.onnx"
    kinds = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
    quantize_static(asset("digits.onnx"), path, Reader(), quant_format=form, per_channel=per_channel, **kinds)
    model = onnx.load(path)
    on_cpu, on_vta = findings(model, hardware("ort_cpu")), findings(model, hardware("vta"))
    assert on_cpu.quantized_ops >= 10
    # The tool uses -128 in per-tensor weights; types, zero points and biases are what this device takes.
    assert rules(on_cpu) <= {"weight_range"}
    assert {"power_of_two", "zero_point", "dtype"} <= rules(on_vta)
    assert ("granularity" in rules(on_vta)) == per_channel


def test_a_float_product_between_integers_is_an_island_where_the_device_says_so(tmp_path: Path) -> None:
    """Vela leaves BATCH_MATMUL to the host; a device without any float MatMul refuses it, and so are weights."""
    spec = hardware("ethos_u")
    made = Net(seed=1)
    x, y = made.input(None, 4, 8), made.input(None, 8, 4, name="y")
    x, y = made.node("Relu", x, name="a"), made.node("Relu", y, name="b")
    made.output(made.node("Relu", made.node("MatMul", x, y, name="pair"), name="c"))
    model = quantized_around(made, tmp_path)

    def told(device: HardwareSpec) -> set[tuple[str, str]]:
        return {(f.rule, f.where) for f in lint_model(model, device, lambda inputs: made_up(inputs, {})).findings}

    assert {rule for rule, where in told(spec) if where == "pair"} == {"float_island"}
    data = hardware_data("ethos_u")
    data["ops"]["MatMul"] = data["ops"]["MatMul"][:1]
    assert ("attribute", "pair") in told(load_hardware(data))


def quantized_around(made: Net, folder: Path) -> Path:
    """The net with QuantizeLinear and DequantizeLinear on every tensor between nodes, int8."""
    model = made.proto()
    graph, scale = model.graph, numpy_helper.from_array(np.float32(0.05), "the_scale")
    zero = numpy_helper.from_array(np.int8(0), "the_zero")
    graph.initializer.extend([scale, zero])
    nodes, renamed = [], {}
    pairs = [i.name for i in graph.input] + [o for n in graph.node for o in n.output]
    ends = {o.name for o in graph.output}
    makers = {o: n for n in graph.node for o in n.output}

    def around(tensor: str) -> None:
        inner = f"{tensor}_inner" if tensor in ends else tensor
        if tensor in ends:
            makers[tensor].output[0] = inner
        last = tensor if tensor in ends else f"{tensor}_dq"
        nodes.append(onnx.helper.make_node("QuantizeLinear", [inner, scale.name, zero.name], [f"{tensor}_q"]))
        nodes.append(onnx.helper.make_node("DequantizeLinear", [f"{tensor}_q", scale.name, zero.name], [last]))
        renamed[tensor] = last

    for info in graph.input:
        around(info.name)
    for node in list(graph.node):
        for port, tensor in enumerate(node.input):
            node.input[port] = renamed.get(tensor, tensor)
        nodes.append(node)
        around(node.output[0])
    assert len(renamed) == len(pairs)
    del graph.node[:]
    graph.node.extend(nodes)
    path = folder / "pair.onnx"
    onnx.save(model, path)
    return path
