"""`lint` on files that others made: onnxruntime's tools (dynamic, 4 and 16 bits, weights only, float16), exporters that
keep float weights behind Q/DQ, functions, constants as nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.transformers.float16 import convert_float_to_float16

from quantpipe.check.lint import Findings, Severity
from tests.lint.test_lint import SHIPPED, attention, findings, net, rules
from tests.ops.line import Net, hardware, hardware_data

SHAPES = {"net": (4, 8, 8), "attention": (6, 8)}


class Feeds(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, shape: tuple[int, ...]) -> None:
        rng = np.random.default_rng(0)
        self._feeds = iter([{"x": rng.standard_normal((1, *shape)).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


def float_model(folder: Path, made: Net) -> Path:
    path = folder / "float.onnx"
    onnx.save(made.proto(), path)
    return path


def static(folder: Path, name: str, form: QuantFormat, activations: QuantType, weights: QuantType) -> onnx.ModelProto:
    path, out = float_model(folder, {"net": net, "attention": attention}[name]()), folder / "quantized.onnx"
    kinds = {"activation_type": activations, "weight_type": weights}
    quantize_static(path, out, Feeds(SHAPES[name]), quant_format=form, per_channel=True, **kinds)
    return onnx.load(out)


def noted(found: Findings) -> set[str]:
    return {f.rule for f in found.findings if f.severity is Severity.NOTE}


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_a_static_model_with_attention_fits_the_device_it_was_made_for(tmp_path: Path, form: QuantFormat) -> None:
    """A Softmax between Q/DQ is computed in float. One that is an integer op by name is what the device has not."""
    model = static(tmp_path, "attention", form, QuantType.QUInt8, QuantType.QInt8)
    on_cpu = findings(model, hardware("ort_cpu"))
    names = {f.where for f in on_cpu.refused if f.rule == "op"}
    assert names == (set() if form is QuantFormat.QDQ else {"softmax_quant"})
    assert rules(on_cpu) <= {"op"}
    on_vta = findings(model, hardware("vta"))
    assert {"power_of_two", "granularity", "dtype", "zero_point"} <= rules(on_vta)


def test_weights_of_four_bits_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    """The tool uses -8, as the device does: nothing is refused but the op that it lacks. One without -8 refuses it."""
    model = static(tmp_path, "attention", QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt4)
    weights = hardware_data("int4_weights")["weights"]
    full, narrow = hardware("int4_weights"), hardware("int4_weights", weights=weights | {"narrow": True})
    assert [(f.rule, f.where) for f in findings(model, full).refused] == [("op", "up")]
    refused = [f for f in findings(model, narrow).refused if f.rule != "op"]
    assert len(refused) == 7
    assert {f.message for f in refused} == {"integers from -8 to 7; legal is -7 to 7 (4 bits)"}
    eight = static(tmp_path, "attention", QuantFormat.QDQ, QuantType.QUInt8, QuantType.QInt8)
    wide = [f.message for f in findings(eight, full).refused if f.rule == "weight_range"]
    assert len(wide) == 7 and all(m.endswith("legal is -8 to 7 (4 bits)") for m in wide)


def test_sixteen_bits_are_for_devices_that_store_them(tmp_path: Path) -> None:
    model = static(tmp_path, "net", QuantFormat.QDQ, QuantType.QInt16, QuantType.QInt8)
    on_cpu = findings(model, hardware("ort_cpu"))
    assert on_cpu.quantized_ops == 6
    assert sum(f.rule == "dtype" for f in on_cpu.refused) == 6
    assert "int16" in on_cpu.refused[0].message
    assert "dtype" not in rules(findings(model, hardware("mixed_npu")))


@pytest.mark.parametrize("name", ["net", "attention"])
def test_a_dynamic_model_finds_its_ranges_at_run_time(tmp_path: Path, name: str) -> None:
    path = float_model(tmp_path, {"net": net, "attention": attention}[name]())
    quantize_dynamic(path, tmp_path / "quantized.onnx", weight_type=QuantType.QInt8)
    model = onnx.load(tmp_path / "quantized.onnx")
    on_cpu, on_vta = findings(model, hardware("ort_cpu")), findings(model, hardware("vta"))
    assert on_cpu.exit_code == 0
    assert "dynamic_range" in noted(on_cpu)
    messages = [f.message for f in on_vta.refused if f.rule == "dynamic_range"]
    assert messages and all("takes scales that are powers of two" in m for m in messages)
    assert any("computed beforehand" in f.message for f in findings(model, hardware("tflite_int8")).refused)


@pytest.mark.parametrize("form", [QuantFormat.QDQ, QuantFormat.QOperator])
def test_a_model_with_packed_weights_only_has_no_integer_op(form: QuantFormat) -> None:
    made = Net()
    made.output(made.node("MatMul", made.input(None, 32), made.floats(32, 16), name="dense"))
    tool = MatMulNBitsQuantizer(made.proto(), block_size=16, is_symmetric=True, quant_format=form)
    tool.process()
    found = findings(tool.model.model, hardware("ort_cpu"))
    assert (found.quantized_ops, found.real_ops, found.exit_code) == (0, 1, 2)
    taken = findings(tool.model.model, hardware("ort_matmul_nbits"))
    assert (taken.quantized_ops, taken.real_ops, taken.exit_code, taken.findings) == (1, 0, 0, ())
    (note,) = found.findings
    assert note.rule == "weight_only"
    assert "its data float" in note.message


@pytest.mark.parametrize("ends", [True, False])
def test_a_float16_model_computes_with_real_numbers(ends: bool) -> None:
    found = findings(convert_float_to_float16(net().proto(), keep_io_types=ends), hardware("ort_cpu"))
    assert (found.quantized_ops, found.real_ops, found.exit_code) == (0, 8, 2)


def trained(scales_as_nodes: bool, transposed: bool) -> onnx.ModelProto:
    """A dense layer as tools for quantization-aware training export it: a float weight, Q/DQ around it, perhaps a
    Transpose behind that; one channel has the integer -128."""
    made = Net()
    x, scale, zero = made.input(None, 4), np.float32(0.05), np.uint8(100)
    weight = np.array([[0.5, -1.0, 0.25, 0.75], [-12.8, 3.0, 2.0, 1.0], [0.1, 0.2, -0.3, 0.4]], np.float32)
    grid = made.constant(np.array([0.01, 0.1, 0.005], np.float32)), made.constant(np.zeros(3, np.int8))
    data = [
        made.node("Constant", value=numpy_helper.from_array(np.asarray(v))) if scales_as_nodes else made.constant(v)
        for v in (scale, zero)
    ]
    stored = made.node("DequantizeLinear", made.node("QuantizeLinear", x, *data), *data)
    axis = 0 if transposed else 1
    rows = made.constant(weight if transposed else np.ascontiguousarray(weight.T))
    w = made.node("DequantizeLinear", made.node("QuantizeLinear", rows, *grid, axis=axis), *grid, axis=axis)
    if transposed:
        w = made.node("Transpose", w, perm=[1, 0])
    y = made.node("MatMul", stored, w, name="dense")
    made.output(made.node("DequantizeLinear", made.node("QuantizeLinear", y, *data), *data))
    return made.proto()


@pytest.mark.parametrize("scales_as_nodes", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
def test_float_weights_behind_q_and_dq_are_integer_weights(scales_as_nodes: bool, transposed: bool) -> None:
    found = findings(trained(scales_as_nodes, transposed), hardware("ort_cpu"))
    assert (found.quantized_ops, found.real_ops) == (1, 0)
    (refused,) = found.refused
    assert refused.rule == "weight_range"
    assert "integers from -128 to 80; legal is -127 to 127" in refused.message
    assert {"zero_point", "power_of_two", "granularity"} <= rules(findings(trained(False, transposed), hardware("vta")))


def with_function() -> onnx.ModelProto:
    """Two calls of a model-local function that holds a quantized convolution."""
    body = [
        helper.make_node("QuantizeLinear", ["X", "sx", "zx"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "sx", "zx"], ["d"]),
        helper.make_node("DequantizeLinear", ["W", "sw", "zw"], ["w"]),
        helper.make_node("Conv", ["d", "w"], ["Y"]),
    ]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("local", "QConv", ["X", "W", "sx", "zx", "sw", "zw"], ["Y"], body, opsets)
    constants = {
        "w": np.arange(-128, -119, dtype=np.int8).reshape(3, 3, 1, 1), "sx": np.float32(0.1), "zx": np.uint8(3),
        "sw": np.float32(0.1), "zw": np.int8(0),
    }  # fmt: skip
    calls = [
        helper.make_node("QConv", [a, "w", "sx", "zx", "sw", "zw"], [b], name=f"call_{b}", domain="local")
        for a, b in (("x", "h"), ("h", "y"))
    ]
    shape = ["N", 3, 4, 4]
    graph = helper.make_graph(
        calls, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(
        graph, opset_imports=[*opsets, helper.make_opsetid("local", 1)], functions=[function], ir_version=8
    )


def test_functions_are_looked_into() -> None:
    found = findings(with_function(), hardware("ort_cpu"))
    assert (found.quantized_ops, found.real_ops) == (2, 0)
    assert rules(found) == {"weight_range"}


def test_what_a_device_has_no_types_for_is_a_matter_of_types() -> None:
    """uint8 weights are not refused as if they were a second activation."""
    made = trained(False, False)
    for tensor in made.graph.initializer:
        if tensor.data_type == TensorProto.INT8:
            tensor.CopyFrom(numpy_helper.from_array(np.full(3, 128, np.uint8), tensor.name))
    refused = {f.rule: f.message for f in findings(made, hardware("ort_cpu", isa="vnni")).refused}
    assert not findings(made, hardware("ort_cpu")).refused, "int8 weights as uint8 about 128 are exact everywhere"
    assert set(refused) == {"dtype", "zero_point"}
    assert refused["dtype"] == "MatMul on uint8, uint8 -> uint8; legal is uint8 x int8 -> uint8|float32"


@pytest.mark.sliced(6)
@pytest.mark.parametrize("name", SHIPPED)
def test_every_device_has_an_answer_for_every_file(tmp_path: Path, name: str) -> None:
    files = [trained(False, True), with_function(), static(tmp_path, "net", QuantFormat.QOperator, *UNSIGNED)]
    for model in files:
        found = findings(model, hardware(name))
        assert found.quantized_ops
        assert all(f.message for f in found.findings)
        assert found.exit_code in (0, 3)


UNSIGNED = (QuantType.QUInt8, QuantType.QUInt8)
