"""Write QONNX: real ops, and a node Quant wherever integers are stored, whose result is their real value.

The nodes (fastmachinelearning/qonnx, docs/qonnx-custom-ops), in float32:

* `Quant(x, scale, zero, bits)` = scale · (round(clamp(x / scale + zero)) - zero)
* `BipolarQuant(x, scale)` = ±scale, by the sign of x: weights of -1 and 1
* `Trunc(x, scale, zero, bits, out_scale, out_bits)`, version 2: whole steps of `scale` cut to whole ones of `out_scale`

So an accumulator exists as a float value only. Where all scales are powers of two and sums stay below 2^22 steps,
float32 holds them exactly, and the form computes the device's integers; `inexact` lists the exceptions. Quant rounds
ties to even. For a device that rounds ties up, a quarter of an accumulator's step is added, in the bias where there is
one: it moves ties, and no other sum, to the other side.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from quantpipe.errors import HardwareError
from quantpipe.graph.view import Node
from quantpipe.lowering import Context, Lowering
from quantpipe.lowering import fragments as fr
from quantpipe.lowering.loop_writers import CarriedState, StepBody
from quantpipe.oprules import OP_RULES, Family
from quantpipe.realize.qonnx.arithmetic import (
    EXACT,
    IN_REALS,
    NEAREST,
    OFFSET,
    QonnxNarrowing,
    Scale,
    is_binary,
    narrowing_of,
    term_of,
)
from quantpipe.realize.qonnx.nodes import Nodes, QuantParameters
from quantpipe.realize.vendor_qdq import VendorQdq
from quantpipe.types import Accumulate, Average, Contract, Form, Kernel, Quantizer, Requantize, Rounding, Sum

WIDE = 32
"""Bits of an operand on the common scale of an addition."""


class Qonnx(VendorQdq):
    """Write the QONNX form, and record where it would compute other numbers than the plan."""

    name = "qonnx"

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[str, ir.Value] = {}
        self._binary: bool | None = None
        self.ops: Mapping[str, Lowering] = {
            **self.ops,
            **dict.fromkeys(fr.ops_of(Family.DEVICE), _refuse_device_op),
        }

    # --- conversions ------------------------------------------------------------------------------------------------

    def quantize(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the grid values of a real tensor."""
        return self._at(context, context.plan.quantizers[tensor], value, f"{tensor}_quant")

    def dequantize(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Return the value as it is: it is real."""
        if value.name == tensor:
            return value
        return context.builder.op("Identity", value, name=f"{tensor}/real", output=tensor, claim=True)

    def narrow(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write Quant after an accumulator that is also read as it is."""
        output, step = context.plan.narrowings[tensor], context.plan.raw_scales[tensor]
        how = self._how(context, tensor, output, 0)
        real = self._raised(context, value, how, step, name=tensor)
        return self._narrowed(context, real, tensor, output, how=how, output=f"{tensor}_quant")

    def rescale(self, context: Context, tensor: str, target: str, value: ir.Value) -> ir.Value:
        """Write a stored tensor on the grid of another one."""
        return self._at(context, context.plan.quantizers[target], value, f"{tensor}_as_{target}")

    def stored_constant(self, context: Context, tensor: str) -> ir.Value:
        """Write the real values of a constant that is read as data, and Quant after them."""
        q = context.plan.quantizers[tensor]
        centred = context.plan.constants[tensor].astype(np.float32) - np.float32(q.zero_point)
        value = self.constant(context, f"{tensor}_on_grid", centred * np.float32(q.scale))
        return self._nodes(context).quant(value, QuantParameters.of(q), f"{tensor}_quant")

    def store(self, context: Context, value: ir.Value, q: Quantizer, low: int, *, high: int) -> ir.Value:
        """Write a clamp of float values between `low` and `high` if needed, and Quant; return values on the grid."""
        real = self._within(context, value, q, low, high=high)
        return self._nodes(context).quant(real, QuantParameters.of(q), q.tensor, claim=True)

    # --- ops --------------------------------------------------------------------------------------------------------

    def _accumulate(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Accumulate | Contract)  # noqa: S101  (the planner pairs families with plans)
        how = NEAREST if plan.output is None else self._how(context, node.name, plan.output, plan.bound)
        in_bias = isinstance(plan, Accumulate) and OP_RULES[node.op].bias is not None
        if isinstance(plan, Contract):
            inputs: list[ir.Value | None] = [self._real(context, o.tensor) for o in kernel.operands]
        else:
            inputs = [self._real(context, kernel.operands[0].tensor), self._real_weight(context, plan)]
            if in_bias and (how.raised or plan.bias is not None):
                inputs.append(self._moved_bias(context, node, plan, quarters=int(how.raised)))
            if plan.pairs is not None or plan.limit is not None:
                self._remember("sums that overflow or saturate on the device", node.name)
        if plan.output is None:
            if plan.bound >= EXACT or not self._is_binary(context):
                self._remember(IN_REALS, node.name)
            return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]
        real = context.builder.copy(node, inputs, [f"{node.outputs[0]}_real"])[0]
        if not in_bias:
            real = self._raised(context, real, how, plan.acc_scale, name=node.outputs[0])
        return self._kept(context, kernel, real, plan.output, how=how)

    def _elementwise(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        if isinstance(plan, Sum):
            inputs = [self._on_common_scale(context, node, plan, number) for number in range(len(plan.terms))]
            step, bound = _step_of_sum(context, plan)
            if plan.limit is not None:
                self._remember("sums that overflow or saturate on the device", node.name)
        else:
            inputs = [self._real(context, o.tensor) for o in kernel.operands]
            scales = [np.float32(context.plan.quantizers[o.tensor].scale) for o in kernel.operands]
            step, bound = np.float32(np.prod(scales)), int(getattr(plan, "bound", EXACT))
        output = getattr(plan, "output", None)
        if output is None:
            return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]
        how = self._how(context, node.name, output, bound)
        real = context.builder.copy(node, inputs, [f"{node.outputs[0]}_real"])[0]
        raised = self._raised(context, real, how, step, name=node.outputs[0])
        return self._kept(context, kernel, raised, output, how=how)

    def _on_common_scale(self, context: Context, node: Node, plan: Sum, number: int) -> ir.Value:
        """Return an operand of an addition; one that the device shifts right is narrowed to the common scale first."""
        term = plan.terms[number]
        value = self._term(context, term.tensor, term.form)
        if plan.scale is None or term.fixed is not None or term.shift >= 0:
            return value
        how, name = term_of(self._is_binary(context), plan.rounding, -term.shift), f"{node.name}/term{number}"
        if how.reason is not None:
            self._remember(how.reason, node.name)
        raised = self._raised(context, value, how, np.float32(np.max(term.scale)), name=name)
        grid = QuantParameters(np.asarray(plan.scale, np.float32), np.zeros((), np.float32), WIDE, True, False)
        if how.rounding is Rounding.FLOOR:
            return self._nodes(context).trunc(raised, grid, name, shift=how.shift)
        return self._nodes(context).quant(raised, grid, name, how=how)

    def _plain(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        if not isinstance(plan, Average):
            self._remember("functions are computed in float", node.name)
            return super()._plain(context, node, kernel)
        step = np.float32(context.plan.quantizers[kernel.operands[0].tensor].scale) / np.float32(plan.count)
        halves = plan.count & (plan.count - 1) == 0
        how = self._how(context, node.name, plan.output, plan.bound if halves else EXACT)
        inputs = [self._real(context, node.inputs[0]), *(context.real(t) for t in node.inputs[1:])]
        real = context.builder.copy(node, inputs, [f"{node.outputs[0]}_real"])[0]
        raised = self._raised(context, real, how, step, name=node.outputs[0])
        return self._kept(context, kernel, raised, plan.output, how=how)

    def _move(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write the op on real values: values on a grid stay there."""
        data = {o.port: context.operand(o, kernel.output) for o in kernel.operands}
        inputs = [data[p] if p in data else context.real(t) for p, t in enumerate(node.inputs)]
        return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]

    def _finish(self, context: Context, kernel: Kernel, real: ir.Value, output: Requantize) -> ir.Value:
        self._remember(IN_REALS, kernel.node)
        return self.store(context, real, context.plan.quantizers[kernel.output], output.low, high=output.high)

    # --- pieces -----------------------------------------------------------------------------------------------------

    def _kept(
        self, context: Context, kernel: Kernel, real: ir.Value, output: Requantize, *, how: QonnxNarrowing
    ) -> ir.Value:
        real = self._within_channels(context, kernel.output, real, output)
        return self._narrowed(context, real, kernel.output, output, how=how, output=kernel.output)

    def _how(self, context: Context, where: str, output: Requantize, bound: int) -> QonnxNarrowing:
        how = narrowing_of(self._is_binary(context), output, bound)
        if how.reason is not None:
            self._remember(how.reason, where)
        return how

    def _narrowed(
        self, context: Context, real: ir.Value, tensor: str, r: Requantize, *, how: QonnxNarrowing, output: str
    ) -> ir.Value:
        q, nodes, claim = context.plan.quantizers[tensor], self._nodes(context), output == tensor
        real = self._within(context, real, q, r.low, high=r.high)
        if how.rounding is Rounding.FLOOR:
            return nodes.trunc(real, QuantParameters.of(q), output, shift=how.shift, claim=claim)
        return nodes.quant(real, QuantParameters.of(q), output, how=how, claim=claim)

    def _at(self, context: Context, q: Quantizer, value: ir.Value, output: str) -> ir.Value:
        """Write real values on the grid of a tensor, as QuantizeLinear would make them but for the zero point."""
        if q.zero_point:
            self._remember(OFFSET, q.tensor)
        real = self._within(context, value, q, q.qmin, high=q.qmax)
        return self._nodes(context).quant(real, QuantParameters.of(q), output)

    def _within(self, context: Context, real: ir.Value, q: Quantizer, low: int, *, high: int) -> ir.Value:
        """Write a clamp of float values where bounds are tighter than the bounds of Quant's bits."""
        least, most = QuantParameters.of(q).ends
        return self._clamped(context, real, q, low if low > least else None, high=high if high < most else None)

    def _within_channels(self, context: Context, tensor: str, real: ir.Value, r: Requantize) -> ir.Value:
        """Clip each channel to its own bounds; they are on the grid, so clamping before the rounding is the same."""
        q = context.plan.quantizers[tensor]
        for op, bound in zip(("Max", "Min"), r.by_channel or (), strict=False):
            ends = fr.along_channels((bound - q.zero_point) * np.float64(q.scale), context.graph, tensor)
            limit = self.constant(context, f"{tensor}_channel_{op.lower()}", ends.astype(np.float32))
            real = context.builder.op(op, real, limit, name=f"{tensor}/channel_{op.lower()}")
        return real

    def _raised(self, context: Context, real: ir.Value, how: QonnxNarrowing, step: Scale, *, name: str) -> ir.Value:
        """Add a quarter of a step where ties go up on the device."""
        if not how.raised:
            return real
        quarter = np.asarray(step, np.float32) / np.float32(4)
        shaped = fr.along_channels(quarter, context.graph, name) if quarter.ndim else quarter
        constant = self.constant(context, f"{name}_quarter", shaped)
        return context.builder.op(fr.SUM, real, constant, name=f"{name}/halves_up")

    def _real(self, context: Context, tensor: str) -> ir.Value:
        return context.get(tensor, Form.QUANTIZED)

    def _real_weight(self, context: Context, plan: Accumulate) -> ir.Value:
        if plan.weight not in self._weights:
            self._weights[plan.weight] = self._nodes(context).weight(context.plan.weights[plan.weight])
        return self._weights[plan.weight]

    def _moved_bias(self, context: Context, node: Node, plan: Accumulate, *, quarters: int) -> ir.Value:
        channels = context.graph.shapes[node.outputs[0]][fr.output_axis(context.graph, node.outputs[0])]
        steps = np.zeros(channels) if plan.bias is None else plan.bias.astype(np.float64)
        real = (steps + quarters / 4) * plan.acc_scale.astype(np.float64)
        return self.constant(context, f"{node.name}_bias", real.astype(np.float32))

    def _nodes(self, context: Context) -> Nodes:
        return Nodes(context.builder, lambda name, value: self.constant(context, name, value))

    def multiply_state(self, context: Context, step: StepBody) -> ir.Value:
        """Reject products inside loops: tools of the format read none of its nodes in a body."""
        raise HardwareError(
            "the qonnx form writes no product inside of a loop; legal are model.recurrent=cells, which leaves the layer"
            " in float, and realize=integer",
            stage="realize",
            where=step.product.node,
        )

    def store_state(self, context: Context, state: CarriedState) -> ir.Value:
        """Reject states stored from step to step; `multiply_state` rejects their products first."""
        raise HardwareError(
            "the qonnx form stores nothing inside of a loop", stage="realize", where=state.quantizer.tensor
        )

    def _is_binary(self, context: Context) -> bool:
        if self._binary is None:
            self._binary = is_binary(context.plan)
        return self._binary


def _step_of_sum(context: Context, plan: Sum) -> tuple[Scale, int]:
    """Return a sum's step and maximum magnitude; if it rescales inside, the smaller operand's step."""
    if plan.scale is not None:
        return np.float32(plan.scale), plan.bound
    step = np.float32(min(np.min(t.scale) for t in plan.terms))
    stored = [context.plan.quantizers.get(t.tensor) for t in plan.terms]
    if any(q is None or t.form is Form.RAW for q, t in zip(stored, plan.terms, strict=True)):
        return step, EXACT
    most = [max(-q.low, q.high) * float(np.max(t.scale) / step) for q, t in zip(stored, plan.terms, strict=True) if q]
    return step, int(sum(most))


def _refuse_device_op(context: Context, node: Node, kernel: Kernel) -> ir.Value:
    raise HardwareError(
        f"the qonnx form has no node for {node.op}, an op of a package; legal are realize=integer and"
        " the package's form",
        stage="realize",
        where=node.name,
    )
