"""What is realized for a device without float hardware holds nothing but integers between its ends."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from quantpipe.graph.execute import Kernels, Session
from quantpipe.graph.io import model_proto
from quantpipe.graph.normalize import expose
from tests.ops.test_every_op import line_of

ARITHMETIC = {"ConvInteger", "MatMulInteger", "Add", "Sub", "BitShift", "Clip", "Cast", "MaxPool", "ReduceSum"}
MOVEMENT = {"Concat", "Pad", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Identity"}
ENDS = {"QuantizeLinear", "DequantizeLinear"}
NETS = (
    "conv_chain", "conv_strides", "residual_block", "residual_projection", "add_activations", "add_channel",
    "add_broadcast_activation", "max_pool_pads", "global_average_pool", "average_pool", "concat_three", "concat_twice",
    "gemm_trans", "matmul_rank3_add", "clip_standalone", "relu_standalone", "reshape", "squeeze_unsqueeze",
    "slice_maps", "transpose", "pad_constant", "tied_weights", "wide_sums", "two_inputs",
)  # fmt: skip


@pytest.mark.sliced(3)
@pytest.mark.parametrize("name", NETS)
def test_only_integer_ops_between_the_ends(name: str) -> None:
    made = line_of(name, "vta", "auto")
    assert not made.topology.float_nodes, "the case must be one that VTA runs whole"
    model = made.realize(made.plan((8, 6)), "integer").model
    nodes = model_proto(model).graph.node
    assert {n.op_type for n in nodes} <= ARITHMETIC | MOVEMENT | ENDS
    made_by = {o: n for n in nodes for o in n.output}
    inputs, outputs = {i.name for i in model.graph.inputs}, {o.name for o in model.graph.outputs}
    for node in nodes:
        if node.op_type == "QuantizeLinear":
            assert node.input[0] in inputs
        if node.op_type == "DequantizeLinear":
            assert node.output[0] in outputs
            assert made_by[node.input[0]].op_type != "QuantizeLinear" or node.input[0] in made_by
    batch = next(iter(made.samples.batches(made.graph.batch_size))).inputs
    inner = [o for n in nodes if n.op_type != "DequantizeLinear" for o in n.output if o]
    values = Session(expose(model, inner), kernels=Kernels.AS_WRITTEN).run(batch)
    for tensor in inner:
        assert values[tensor].dtype.kind in "iu", f"{tensor} is {values[tensor].dtype}"
    for initializer in model_proto(model).graph.initializer:
        scale = initializer.name.endswith("_scale")
        assert scale or onnx.numpy_helper.to_array(initializer).dtype.kind in "iu", initializer.name


@pytest.mark.parametrize("name", NETS)
def test_stored_integers_are_int8_and_inside_their_bits(name: str) -> None:
    made = line_of(name, "vta", "auto")
    plan = made.plan((8, 6, 4), seed=3)
    realized = made.realize(plan, "integer")
    batch = next(iter(made.samples.batches(made.graph.batch_size))).inputs
    values = Session(expose(realized.model, list(realized.integers.values()))).run(batch)
    for tensor, value in realized.integers.items():
        if tensor not in plan.quantizers:
            assert values[value].dtype == np.int32
            continue
        q = plan.quantizers[tensor]
        assert values[value].dtype == np.int8
        assert q.qmin == -(2 ** (q.bits - 1) - 1) and q.qmax == 2 ** (q.bits - 1) - 1
        assert values[value].min() >= q.qmin and values[value].max() <= q.qmax


def test_shifts_round_to_nearest_and_reach_their_ends() -> None:
    """The rendered BitShift chain against Python's own shift, over accumulators near every border."""
    from quantpipe.lowering import Context
    from quantpipe.realize.integer import Integer
    from quantpipe.types import QuantPlan

    made = line_of("conv_plain", "vta", "auto")
    edges = {0, 1, 127, 128, 1 << 20, (1 << 29) - 1, (1 << 30) - 1, (1 << 31) - 1}
    accumulators = sorted({s * (e + d) for e in edges for d in (-1, 0, 1) for s in (-1, 1)} | {-(1 << 31)})
    values = np.asarray([a for a in accumulators if -(1 << 31) <= a < 1 << 31], np.int64)
    for shift in (-3, -1, 0, 1, 2, 7, 15, 16, 29, 30, 31):
        for bound in (1 << 20, 1 << 31):
            inside = values[np.abs(values) <= min(bound, (1 << 31) >> max(-shift, 0))]
            inside = inside[inside << max(-shift, 0) < 1 << 31]
            context = Context(made.graph, made.topology, QuantPlan({}, {}, {}, {}), Integer())
            acc = context.builder.input("acc", "int32", [None])
            result = Integer()._shift(context, acc, shift, "s", bound=bound)
            if result is acc:
                assert shift == 0
                continue
            result.name = "result"
            import onnx_ir as ir

            result.type = ir.TensorType(ir.DataType.INT32)
            found = Session(context.builder.build([result])).run({"acc": inside.astype(np.int32)})["result"]
            expected = [v << -shift if shift < 0 else (v + (1 << (shift - 1))) >> shift for v in inside.tolist()]
            np.testing.assert_array_equal(found, expected, f"shift {shift}, bound {bound}")
