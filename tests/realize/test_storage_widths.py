"""Weights of 4 and 2 bits are stored in as many bits and run in integer kernels; 16-bit tensors run in the
integer form, and nowhere else; sums of 16-bit operands are those of an int64 interpreter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from quantpipe.errors import HardwareError
from quantpipe.graph.io import model_bytes
from quantpipe.hardware.load import load_hardware
from quantpipe.intake.load import load_graph
from quantpipe.lowering import opset_for
from quantpipe.types import HardwareSpec
from quantpipe.verify import verify_folder
from tests.ops.line import Array, Net, hardware, hardware_data, line, normal_samples
from tests.ops.test_every_op import graph_of
from tests.simulate.test_against_interpreter import check
from tests.verify.folders import refreshed, write

FORMS = ("qdq", "qoperator", "integer")

BYTES = {"granularity": ["per_channel", "per_tensor"], "bits": 8}
"""Limits of weights that are stored in a byte."""


@pytest.mark.sliced(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["conv_chain", "gemm_plain", "gemm_trans", "matmul_rank3", "tied_weights"])
def test_four_bit_weights_are_stored_in_four_bits(name: str, form: str) -> None:
    made = line(graph_of(name), "int4_weights")
    plan = made.plan(8)
    realized = made.realize(plan, form)
    stored = {i.name: i.data_type for i in onnx.load_from_string(model_bytes(realized.model)).graph.initializer}
    for weight in plan.weights.values():
        assert np.abs(weight.values).max() <= 7
        assert stored[f"{weight.tensor}_q4"] == onnx.TensorProto.INT4
    assert made.agree(plan, form).differing == 0


def test_four_bit_weights_halve_the_file_and_still_fuse(tmp_path) -> None:  # type: ignore[no-untyped-def]
    net = Net(seed=1)
    net.output(net.conv(net.input(None, 64, 8, 8), 64, 64, 3, 3, name="wide"))
    sizes = {}
    for name in ("ort_cpu", "int4_weights"):
        made = line(net, name)
        sizes[name] = model_bytes(made.realize(made.plan(8), "qdq").model)
    assert len(sizes["int4_weights"]) < 0.55 * len(sizes["ort_cpu"])
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    ort.InferenceSession(sizes["int4_weights"], options, providers=["CPUExecutionProvider"])
    ops = [n.op_type for n in onnx.load(tmp_path / "optimized.onnx").graph.node]
    assert "QLinearConv" in ops and "Conv" not in ops


def two_bits(kind: str = "int2", shipped: str = "int4_weights", **changes: Any) -> HardwareSpec:
    """A shipped file whose 4-bit weights have 2 bits."""
    data = json.loads(json.dumps(hardware_data(shipped) | changes).replace('"int4"', f'"{kind}"'))
    data["weights"] |= {"bits": 2} | ({"symmetric": False} if kind.startswith("u") else {})
    return load_hardware({k: v for k, v in data.items() if k != "tables"})


def codes_of(model: onnx.ModelProto, tensor: str, count: int) -> Array:
    """The codes of an initializer of 2 bits, from its bytes: four to the byte, the first one lowest."""
    (held,) = (t for t in model.graph.initializer if t.name == f"{tensor}_q2")
    assert len(held.raw_data) == -(-count // 4)
    found = [(byte >> shift) & 3 for byte in held.raw_data for shift in (0, 2, 4, 6)][:count]
    signed = held.data_type == onnx.TensorProto.INT2
    return np.asarray([c - 4 if signed and c > 1 else c for c in found])


@pytest.mark.sliced(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["conv_chain", "gemm_plain", "gemm_trans", "matmul_rank3", "tied_weights"])
def test_two_bit_weights_are_stored_in_two_bits(name: str, form: str, tmp_path: Path) -> None:
    made = line(graph_of(name), two_bits(), min_bits=2)
    plan = made.plan(8)
    model = onnx.load_from_string(model_bytes(made.realize(plan, form).model))
    onnx.checker.check_model(model)
    assert model.opset_import[0].version == 25 and model.ir_version == 13
    for weight in plan.weights.values():
        codes = codes_of(model, weight.tensor, weight.values.size)
        np.testing.assert_array_equal(np.sort(codes), np.sort(weight.values.reshape(-1)))
        assert set(codes) <= {-2, -1, 0, 1}
    assert made.agree(plan, form).differing == 0
    root = write(made, plan, form, tmp_path / "run")
    assert verify_folder(root).wrong is None
    file = onnx.load(root / "realize" / "model.onnx")
    held = next(t for t in file.graph.initializer if t.name.endswith("_q2"))
    held.raw_data = bytes([held.raw_data[0] ^ 1]) + held.raw_data[1:]
    onnx.save(file, root / "realize" / "model.onnx")
    refreshed(root)
    assert verify_folder(root).wrong is not None


@pytest.mark.parametrize("form", ["qdq", "integer"])
def test_two_bits_without_a_sign(form: str) -> None:
    made = line(graph_of("gemm_plain"), two_bits("uint2", isa="vnni"), min_bits=2)
    plan = made.plan(8)
    model = onnx.load_from_string(model_bytes(made.realize(plan, form).model))
    for weight in plan.weights.values():
        codes = codes_of(model, weight.tensor, weight.values.size)
        np.testing.assert_array_equal(np.sort(codes), np.sort(weight.values.reshape(-1)))
        assert codes.min() == 0 and codes.max() == 3
    assert made.agree(plan, form).differing == 0


@pytest.mark.parametrize(("op", "row", "place"), [
    ("Relu", {"in": ["uint2"], "out": ["uint8"]}, r"ops\.Relu\.in"),
    ("Conv", {"in": ["uint2", "int8"], "out": ["uint8"]}, r"ops\.Conv\.in"),
    ("Conv", {"in": ["uint8", "int2"], "out": ["uint2"]}, r"ops\.Conv\.out"),
])  # fmt: skip
def test_two_bits_are_for_weights_alone(op: str, row: dict[str, Any], place: str) -> None:
    """onnxruntime writes other codes of 2 bits than the plan has, and reads none in integer kernels."""
    data = hardware_data("ort_cpu")
    with pytest.raises(HardwareError, match=f"{place}.* of 2 bits; legal are 4 bits and more"):
        load_hardware(data | {"ops": {**data["ops"], op: [row]}})


def test_a_file_with_two_bit_weights_is_read_back() -> None:
    made = line(graph_of("conv_chain"), two_bits(), min_bits=2)
    plan = made.plan(8)
    written = made.realize(plan, "qdq")
    again = line(onnx.load_from_string(model_bytes(written.model)), two_bits(), samples=made.samples, min_bits=2)
    weights = again.plan(8).weights.values()
    assert len(weights) == len(plan.weights)
    for a, b in zip(plan.weights.values(), weights, strict=True):
        np.testing.assert_array_equal(a.values, b.values)
        np.testing.assert_array_equal(a.scale, b.scale)


LONG = (
    "conv_asymmetric_pads", "conv_grouped", "gemm_trans", "matmul_matrix", "residual_block", "residual_projection",
    "max_pool", "global_average_pool", "add_broadcast_activation", "mul_activations", "clip_standalone", "wide_sums",
)  # fmt: skip


@pytest.mark.sliced(3)
@pytest.mark.parametrize("name", LONG)
def test_sixteen_bit_tensors_against_the_interpreter(name: str) -> None:
    made = line(graph_of(name), "mixed_npu")
    assert not made.topology.float_nodes
    for plan in (made.plan(16), made.plan((16, 12, 8, 4), seed=3), made.ties((16, 14, 9), seed=4)):
        check(made, plan, "integer")
    assert any(k.bound > 1 << 24 for k in made.plan(16).kernels.values() if hasattr(k, "bound"))


@pytest.mark.parametrize("name", ["max_pool_pads", "average_pool_odd", "pad_reflect", "concat_three", "transpose"])
def test_sixteen_bit_tensors_through_the_other_ops(name: str) -> None:
    made = line(graph_of(name), "mixed_npu")
    assert "mid" in made.topology.kernel_of or name == "transpose"
    assert made.agree(made.plan((16, 11), seed=1), "integer").differing == 0


def test_asymmetric_sixteen_bits() -> None:
    """Zero points beyond a byte, and pads that must be the zero point."""
    ops = {"Conv": [{"in": ["uint16", "int8"], "out": ["uint16"]}], "Relu": [{"in": ["uint16"], "out": ["uint16"]}]}
    spec = hardware("mixed_npu", ops=ops, activations={"symmetric": False, "bits": 16, "narrow": False}, weights=BYTES)
    made = line(graph_of("conv_asymmetric_pads"), spec, "asymmetric")
    plan = made.plan(16)
    assert plan.quantizers["x"].zero_point > 255
    check(made, plan, "integer")


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_forms_without_sixteen_bit_kernels_say_so(form: str) -> None:
    made = line(graph_of("conv_chain"), "mixed_npu")
    with pytest.raises(HardwareError, match=r"it stores int16. onnxruntime has no 16-bit integer kernels"):
        made.realize(made.plan(16), form)


def test_fixed_point_takes_no_sums_beyond_int32() -> None:
    ops = {"Gemm": [{"in": ["int16", "int8"], "out": ["int16"]}]}
    spec = hardware(
        "mixed_npu",
        ops=ops,
        requantize={"kind": "fixed_point"},
        activations={"symmetric": True, "bits": 16},
        weights=BYTES,
    )
    made = line(graph_of("wide_sums"), spec)
    with pytest.raises(HardwareError, match="its fixed-point multiplication takes int32 sums"):
        made.plan(16)
    assert made.agree(made.plan(8), "integer").differing == 0


@pytest.mark.parametrize("name", ["int4_weights", "mixed_npu"])
def test_float_nodes_of_an_older_opset_stand_in_a_newer_one(name: str, tmp_path: Path) -> None:
    """4-bit weights and 16-bit tensors need opset 21; up to 17 a reduction has its axes as an attribute."""
    net = Net(opset=17)
    x = net.conv(net.input(None, 3, 6, 6), 3, 4, 1, 1, name="front")
    mean = net.node("ReduceMean", x, axes=[1], keepdims=1, name="mean")
    net.output(net.conv(net.node("Sub", x, mean, name="rest"), 4, 2, 1, 1, name="back"))
    onnx.save(net.proto(), tmp_path / "net.onnx")
    spec = hardware(name)
    graph = load_graph(
        tmp_path / "net.onnx",
        lambda raw: next(iter(normal_samples(raw).batches(4))).inputs,
        least_opset=opset_for(spec),
    )
    assert (graph.opset, graph.notes) == (21, ())
    made = line(graph, spec)
    assert "mean" in made.topology.float_nodes
    agreement = made.agree(made.plan((4, 8, 16)), "integer")
    assert agreement.differing == 0 and agreement.max_lsb <= 1, agreement


def test_devices_of_eight_bits_leave_the_opset_alone() -> None:
    assert [opset_for(hardware(n)) for n in ("ort_cpu", "vta", "hago_sample", "hago_int16_acc")] == [17] * 4
