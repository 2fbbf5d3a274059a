"""Write Q/DQ as the tools of other devices load it: real ops between DequantizeLinear and QuantizeLinear, nothing else.

Such a tool makes integer kernels of what stands between the two, by its own rules. So there are no integer nodes at
all: clamps are float ones before QuantizeLinear, averages are the original pools, and biases are floats (the values of
the plan's integers). 16-bit tensors have Q/DQ of 16 bits (opset 21). An addition that is fused with a convolution reads
its result as it is, without Q/DQ in between. TensorRT calls that explicit quantization. Nodes that onnxruntime cannot
fuse run in float32. If this differs from the plan, `inexact` names the reason.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from quantpipe.graph.session_options import EXACT_PAIRS
from quantpipe.graph.view import Node
from quantpipe.lowering import Context, Lowering
from quantpipe.lowering import fragments as fr
from quantpipe.oprules import Family
from quantpipe.realize.qdq import Qdq
from quantpipe.types import Accumulate, Contract, Form, FunctionKind, Kernel, Move, Quantizer, Requantize, Sum

NAMED = 3
"""Nodes that are named for each reason."""


class VendorQdq(Qdq):
    """Write the Q/DQ form for other tools, and remember where onnxruntime would compute something else."""

    def __init__(self) -> None:
        super().__init__()
        self._reasons: dict[str, list[str]] = {}
        self.ops: Mapping[str, Lowering] = {
            **self.ops,
            **dict.fromkeys(fr.ops_of(Family.ACCUMULATE), self._accumulate),
            **dict.fromkeys(fr.TRANSPOSED, self._accumulate),
            **dict.fromkeys(fr.ops_of(Family.LOOKUP, Family.ROWS), self._plain),
            **dict.fromkeys(fr.ops_of(Family.SUM, Family.PRODUCT), self._elementwise),
            **dict.fromkeys(fr.ops_of(Family.AVERAGE), self._plain),
            **dict.fromkeys(fr.ops_of(Family.CLAMP), self._clamp),
        }

    @property
    def inexact(self) -> str | None:
        """Return why onnxruntime's own run of the file differs from the plan; None if it does not."""
        told = []
        for reason, nodes in self._reasons.items():
            more = f" and {len(nodes) - NAMED} more" if len(nodes) > NAMED else ""
            told.append(f"{reason}: {', '.join(nodes[:NAMED])}{more}")
        return "; ".join(told) or None

    def session_options(self, context: Context) -> Mapping[str, str]:
        """Return the options for exact sums where onnxruntime runs the file, which is for other tools."""
        return {k: v for k, v in super().session_options(context).items() if k in EXACT_PAIRS}

    def narrow(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write QuantizeLinear after a result that is also read as it is."""
        self._remember("an accumulator is narrowed in float32", tensor)
        q = context.plan.quantizers[tensor]
        return self.store(context, value, q, q.qmin, high=q.qmax)

    def store(self, context: Context, value: ir.Value, q: Quantizer, low: int, *, high: int) -> ir.Value:
        """Write a clamp of float values between `low` and `high` if needed, and QuantizeLinear."""
        least = None if low == q.dtype.qmin else low
        if least == q.dtype.qmin + 1 and q.dtype.signed:
            least = None  # a narrow range: tools store the most negative integer, too
            self._remember("the most negative integer can be stored", q.tensor)
        real = self._clamped(context, value, q, least, high=None if high == q.dtype.qmax else high)
        name = f"{q.tensor}/quantize"
        return context.builder.op("QuantizeLinear", real, *self.grid(context, q), name=name, output=f"{q.tensor}_q")

    def _clamped(
        self, context: Context, value: ir.Value, q: Quantizer, low: int | None, *, high: int | None
    ) -> ir.Value:
        """Write Relu where zero is the only bound, else Clip at steps of the grid, which rounding keeps."""
        if low is None and high is None:
            return value
        if low == q.zero_point and high is None:
            return context.builder.op("Relu", value, name=f"{q.tensor}/relu")
        bounds = [
            None
            if bound is None
            else self.constant(context, f"{q.tensor}_{side}", np.float32((bound - q.zero_point) * np.float32(q.scale)))
            for side, bound in (("low", low), ("high", high))
        ]
        return context.builder.op("Clip", value, *bounds, name=f"{q.tensor}/clip")

    def _accumulate(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        if isinstance(plan, Contract):
            inputs: list[ir.Value | None] = [self._real(context, o.tensor) for o in kernel.operands]
        else:
            assert isinstance(plan, Accumulate)  # noqa: S101  (the planner pairs families with plans)
            inputs = [self._real(context, kernel.operands[0].tensor), self._real_weight(context, plan)]
            if plan.bias is not None:
                real = plan.bias.astype(np.float64) * plan.acc_scale.astype(np.float64)
                inputs.append(self.constant(context, f"{node.name}_bias", real.astype(np.float32)))
            if plan.pairs is not None or plan.limit is not None:
                self._remember("sums that overflow or saturate on the device", node.name)
        if plan.output is None:
            if kernel.output not in context.graph.output_names:
                self._remember("an accumulator is passed on in float32", node.name)
            return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]
        result = context.builder.copy(node, inputs, [f"{node.outputs[0]}_real"])[0]
        return self._finish(context, kernel, result, plan.output)

    def _elementwise(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        output = getattr(plan, "output", None)
        if isinstance(plan, Sum):
            inputs = [self._term(context, t.tensor, t.form) for t in plan.terms]
            if not plan.is_kernel_arithmetic:
                self._remember("operands of an addition are shifted on the device", node.name)
        else:
            inputs = [self._real(context, o.tensor) for o in kernel.operands]
        if output is None:
            return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]
        real = context.builder.copy(node, inputs, [f"{node.outputs[0]}_real"])[0]
        return self._finish(context, kernel, real, output)

    def _term(self, context: Context, tensor: str, form: Form) -> ir.Value:
        return context.get(tensor, Form.RAW) if form is Form.RAW else self._real(context, tensor)

    def _plain(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write the op itself between DequantizeLinear and QuantizeLinear."""
        plan = context.plan.kernels[node.name]
        if getattr(plan, "kind", FunctionKind.TABLE) is not FunctionKind.TABLE:
            self._remember("functions that the device forms from integers", node.name)
        inputs = [self._real(context, node.inputs[0]), *(context.real(t) for t in node.inputs[1:])]
        real = context.builder.copy(node, inputs, [f"{node.outputs[0]}_real"])[0]
        output = getattr(plan, "output", None)
        if isinstance(output, Requantize):
            return self._finish(context, kernel, real, output)
        low, high = getattr(plan, "low", None), getattr(plan, "high", None)
        q = context.plan.quantizers[kernel.output]
        return self.store(context, real, q, q.qmin if low is None else low, high=q.qmax if high is None else high)

    def _clamp(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write a Relu or Clip that is not fused into a producer, on floats."""
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Move)  # noqa: S101
        operand = kernel.operands[0]
        if kernel.form is Form.RAW:
            inputs = [context.get(operand.tensor, Form.RAW), *(context.real(t) for t in node.inputs[1:])]
            return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]
        q = context.plan.quantizers[kernel.output]
        low = q.qmin if plan.low is None else plan.low
        high = q.qmax if plan.high is None else plan.high
        return self.store(context, self._real(context, operand.tensor), q, low, high=high)

    def _move(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        if kernel.form is Form.QUANTIZED:
            return super()._move(context, node, kernel)
        data = {o.port: context.get(o.tensor, Form.RAW) for o in kernel.operands}
        inputs = [data[p] if p in data else context.real(t) for p, t in enumerate(node.inputs)]
        return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]

    def _finish(self, context: Context, kernel: Kernel, real: ir.Value, output: Requantize) -> ir.Value:
        q = context.plan.quantizers[kernel.output]
        if q.dtype.bits > 8:
            self._remember("16-bit results, which onnxruntime computes in float32", kernel.node)
        elif not output.is_kernel_arithmetic:
            self._remember(f"requantized by {output.kind}, {output.rounding} on the device", kernel.node)
        if output.by_channel is not None:
            self._remember("bounds of each channel's own are left out", kernel.node)
        return self.store(context, real, q, output.low, high=output.high)

    def _remember(self, reason: str, where: str) -> None:
        self._reasons.setdefault(reason, []).append(where)
