"""Q/DQ for other tools: 16 bits and mixed widths beside the integer form, what TensorRT asks for, planted faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, numpy_helper

from quantpipe.evaluate.agreement import Agreement, compare_with, session_kinds
from quantpipe.evaluate.compared_models import SimulatedModel
from quantpipe.graph.io import model_proto
from quantpipe.lowering import Rendered, render
from quantpipe.realize.vendor_qdq import VendorQdq
from quantpipe.types import QuantPlan
from tests.ops.line import Line, Net, hardware, hardware_data, line


def residual(seed: int = 3) -> Net:
    net = Net(seed=seed)
    x = net.input(None, 3, 8, 8)
    a = net.node("Relu", net.conv(x, 3, 6, 3, 3, pads=[1, 1, 1, 1]))
    b = net.node("Relu", net.node("Add", net.conv(a, 6, 6, 3, 3, pads=[1, 1, 1, 1]), a))
    net.output(net.dense(net.node("Flatten", net.node("GlobalAveragePool", b)), 6, 3))
    return net


def written(made: Line, plan: QuantPlan) -> Rendered:
    return render(made.graph, made.topology, plan, VendorQdq())


def run(made: Line, plan: QuantPlan, found: Rendered) -> Agreement:
    """The file's own float run, beside the simulated integers."""
    simulated = SimulatedModel(made.graph, made.topology, plan, made.simulate(plan), realized=found)
    kinds = [kind for kind in session_kinds(found.model) if kind.decides]
    return compare_with(simulated, found, made.samples, kinds)


def zero_points(proto: onnx.ModelProto) -> dict[str, Any]:
    constants = {i.name: i for i in proto.graph.initializer}
    nodes = [n for n in proto.graph.node if n.op_type in ("QuantizeLinear", "DequantizeLinear")]
    return {n.input[2]: constants[n.input[2]] for n in nodes}


MIXED = {
    "Conv": [{"in": ["int8", "int8"], "out": ["int8"]}],
    "Relu": [{"in": ["int8"], "out": ["int8"]}, {"in": ["int16"], "out": ["int16"]}],
    "Add": [{"in": ["int8"], "out": ["int16"]}],
}
"""What a device that convolves in 8 bits and keeps sums in 16 has."""


@pytest.mark.parametrize("widths", [{16}, {8, 16}])
def test_sixteen_bits_and_mixed_widths(widths: set[int]) -> None:
    ops = hardware_data("npu_w8a16")["ops"] | (MIXED if 8 in widths else {})
    made = line(residual(), hardware("npu_w8a16", ops=ops))
    plan = made.plan(16)
    assert {q.dtype.bits for q in plan.quantizers.values()} == widths
    assert made.agree(plan, "integer").differing == 0  # equality is that of the integer form
    found = written(made, plan)
    assert found.inexact is not None and "16-bit results" in found.inexact
    counted = run(made, plan, found)
    assert counted.elements and counted.differing < counted.elements / 10 and counted.max_lsb <= 2
    proto = model_proto(found.model)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.opset_import[0].version >= 21
    kinds = {z.data_type for z in zero_points(proto).values()}
    assert {TensorProto.INT16, TensorProto.UINT16} & kinds
    narrow = {TensorProto.INT8, TensorProto.UINT8}
    assert narrow & kinds  # of the weights, or of mixed activations
    assert not [
        n.op_type for n in proto.graph.node if n.op_type.startswith(("QLinear", "ConvInteger", "MatMulInteger"))
    ]


def test_a_planted_scale_is_counted() -> None:
    """One scale of a 16-bit tensor is off by a tenth of a percent: far more elements differ than rounding explains."""
    made = line(residual(), "npu_w8a16")
    plan = made.plan(16)
    found = written(made, plan)
    before = run(made, plan, found).differing
    tensor = next(k.output for k in made.topology.kernels if k.output in plan.quantizers)
    proto = model_proto(found.model)
    (scale,) = [i for i in proto.graph.initializer if i.name == f"{tensor}_scale"]
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.001), scale.name))
    changed = Rendered(ir.from_proto(proto), found.integers, found.inside)
    after = run(made, plan, changed)
    assert after.differing > 10 * max(before, 10) and after.first_tensor is not None


@pytest.mark.parametrize("bits", [8, (8, 6)])
def test_tensorrt_gets_symmetric_int8_and_fused_additions(bits: Any) -> None:
    made = line(residual(), "tensorrt")
    proto = model_proto(written(made, made.plan(bits)).model)
    for name, zero in zero_points(proto).items():
        assert zero.data_type == TensorProto.INT8 and not np.any(numpy_helper.to_array(zero)), name
    makes = {o: n.op_type for n in proto.graph.node for o in n.output}
    (add,) = [n for n in proto.graph.node if n.op_type == "Add"]
    assert sorted(makes[i] for i in add.input) == ["Conv", "DequantizeLinear"]
    convs = [n for n in proto.graph.node if n.op_type == "Conv"]
    assert all([makes[i] for i in n.input[:2]] == ["DequantizeLinear", "DequantizeLinear"] for n in convs)
    for node in convs:  # scales of weights are per output channel, biases are real numbers without Q/DQ
        assert len(node.input) == 2 or node.input[2] not in makes
