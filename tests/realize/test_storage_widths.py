"""4-bit weights are stored in 4 bits and run in integer kernels; 16-bit tensors run in the integer form, and nowhere
else; sums of 16-bit operands are those of an int64 interpreter."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from quantpipe.errors import HardwareError
from quantpipe.graph.io import model_bytes
from quantpipe.graph.load import load_graph
from quantpipe.lowering import opset_for
from tests.ops.line import Net, hardware, line, normal_samples
from tests.ops.test_every_op import graph_of
from tests.simulate.test_against_interpreter import check

FORMS = ("qdq", "qoperator", "integer")

BYTES = {"granularity": ["per_channel", "per_tensor"], "bits": 8}
"""Limits of weights that are stored in a byte."""


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
