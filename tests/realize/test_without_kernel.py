"""The list of nodes that onnxruntime has no kernel of their own for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from quantpipe.graph.optimized import fused
from quantpipe.realize.kernels import WithoutKernel, slow_warning, without_kernel
from tests.ops.line import Line, Net, hardware, hardware_data, line
from tests.ops.test_every_op import graph_of, line_of


def reasons(case: str, spec: str, form: str, bits: int = 8, **changes: Any) -> list[str]:
    made = line(graph_of(case), hardware(spec, **changes))
    return [r.text for entry in listed(made, form, bits) for r in entry.reasons]


def listed(made: Line, form: str, bits: int = 8) -> list[WithoutKernel]:
    plan = made.plan(bits)
    return without_kernel(made.topology, plan, form, made.realize(plan, form).model)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_plain_models_of_the_default_target_have_kernels_throughout(form: str) -> None:
    for case in ("residual_projection", "conv_depthwise", "gemm_trans", "max_pool"):
        made = line_of(case, "ort_cpu", "auto")
        assert listed(made, form) == []


@pytest.mark.parametrize(
    ("case", "spec", "form", "bits", "reason"),
    [
        ("conv_asymmetric_pads", "mixed_npu", "integer", 16, "int16 weights: products are made of bytes"),
        (
            "conv_asymmetric_pads",
            "mixed_npu",
            "integer",
            16,
            "int16 tensors: products are made of bytes",
        ),
        ("conv_asymmetric_pads", "int4_weights", "qdq", 4, "int4 weights: cast to a byte each at load"),
        ("conv_asymmetric_pads", "hago_int16_acc", "integer", 8, "an int16 accumulator that may wrap"),
        ("conv_asymmetric_pads", "vta", "integer", 8, "requantized by shift, half_up"),
        ("gemm_trans", "tflite_int8", "integer", 8, "requantized by fixed_point, single"),
        ("conv_asymmetric_pads", "ascend_acl", "integer", 8, "a zero point of each channel"),
        ("transposed_strides", "ort_cpu", "qdq", 8, "no integer kernel of the op"),
        ("function_sigmoid", "tflite_int8", "integer", 8, "looked up in a table by Gather"),
        ("softmax_last", "tflite_int8", "integer", 8, "no integer kernel of the op: "),
    ],
)
def test_each_reason(case: str, spec: str, form: str, bits: int, reason: str) -> None:
    assert any(r.startswith(reason) for r in reasons(case, spec, form, bits))


def test_saturating_pairs() -> None:
    found = reasons("conv_asymmetric_pads", "ort_cpu", "integer", isa="avx2")
    assert any("pairs of products" in r for r in found)
    assert not reasons("gemm_trans", "ort_cpu", "qoperator")


def separable() -> Net:
    """A depthwise convolution between two others; the last one's result is read as real numbers."""
    net = Net()
    y = net.node("Relu", net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, name="first"))
    y = net.node("Relu", net.conv(y, 8, 8, 3, 3, group=8, name="depthwise"))
    net.output(net.node("Softmax", net.conv(y, 8, 4, 1, 1, name="last"), axis=1))
    return net


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_depthwise_weights_with_zero_points_of_their_own_are_multiplied_channel_by_channel(form: str) -> None:
    """Measured on one core: 35 times the time of the same kernel with one zero point for all channels."""
    found = {e.node: [r.text for r in e.reasons] for e in listed(line(separable(), "fbgemm"), form)}
    assert list(found) == ["depthwise"] and "zero points that differ" in found["depthwise"][0]
    assert listed(line(separable(), "snpe"), form) == []  # one zero point for all channels


def test_a_convolution_whose_result_stays_real_is_computed_in_float() -> None:
    data = {"Conv": [{"in": ["uint8", "int8"], "out": ["uint8", "float32"]}]}
    made = line(separable(), hardware("ort_cpu", ops=hardware_data("ort_cpu")["ops"] | data))
    found = {e.node: [r.text for r in e.reasons] for e in listed(made, "qdq")}
    assert list(found) == ["last"]
    assert found["last"] == ["computed in float32: a convolution is fused only if its result is quantized, and this "
                             "result is float"]  # fmt: skip
    warning = slow_warning(listed(made, "qdq"))
    assert warning is not None and "1 of the layers" in warning and "last: computed in float32" in warning


def test_int8_tensors_that_the_runtime_fuses_only_if_asked() -> None:
    """Behind a clip to [-127, 127], onnxruntime does not rewrite int8 to uint8, and leaves all else in float."""
    made = line(separable(), "tensorrt")
    found = {e.node: [r.text for r in e.reasons] for e in listed(made, "qdq")}
    assert {"first", "depthwise", "last"} <= set(found)
    assert all("session.qdqisint8allowed=1" in reason for node in found for reason in found[node])


def test_int8_data_on_x86(monkeypatch: pytest.MonkeyPatch) -> None:
    made = line(separable(), "tensorrt")
    for machine, said in (
        ("x86_64", ["int8 activations: onnxruntime's kernels on x86 are made for uint8 ones"]),
        ("aarch64", []),
    ):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        found = {e.node: [r.text for r in e.reasons] for e in listed(made, "qoperator")}
        assert [found.get(node, []) for node in ("first", "depthwise", "last")] == [said] * 3


def test_moves_in_float_are_listed_and_do_not_warn() -> None:
    net = Net()
    y = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3)
    y = net.node("Pad", y, net.constant(np.asarray([0, 2, 0, 0, 0, 2, 0, 0], np.int64)), name="pad")
    net.output(net.conv(y, 12, 4, 1, 1))
    found = listed(line(net, "ort_cpu"), "qdq")
    assert [e.node for e in found] == ["pad"] and slow_warning(found) is None


def test_functions_between_conversions() -> None:
    """onnxruntime has an integer kernel of Sigmoid, and none of HardSwish."""
    for op, names in (("Sigmoid", []), ("HardSwish", ["hardswish1"])):
        net = Net()
        y = net.node(op, net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3))
        net.output(net.conv(y, 8, 4, 1, 1))
        assert [e.node for e in listed(line(net, "ort_cpu"), "qdq")] == names


def test_what_is_slow_by_the_form_itself_is_no_news() -> None:
    assert slow_warning([]) is None
    assert slow_warning(listed(line(separable(), "vta"), "integer")) is None


def test_a_shape_is_no_real_number() -> None:
    """What a Reshape is told by the Shape of a real tensor does not make the ops behind it ones in float."""
    net = Net()
    grid = (net.constant(np.float32(0.1)), net.constant(np.uint8(7)))
    stored = net.node("QuantizeLinear", net.input(None, 4, 6), *grid)
    real = net.node("Exp", net.node("DequantizeLinear", stored, *grid), name="real")
    rows = net.node("Gather", net.node("Shape", real), net.constant(np.array([0], np.int64)), axis=0)
    shape = net.node("Concat", rows, net.constant(np.array([-1], np.int64)), axis=0)
    moved = net.node("Reshape", net.node("DequantizeLinear", stored, *grid), shape, name="moved")
    net.output(net.node("DequantizeLinear", net.node("QuantizeLinear", moved, *grid), *grid), real)
    assert fused(ir.from_proto(net.proto()), ("moved", "real")).real == {"real"}
