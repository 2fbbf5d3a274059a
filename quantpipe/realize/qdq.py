"""Write the QDQ form: float ops between DequantizeLinear and QuantizeLinear, which onnxruntime fuses at load.

Swallowed clamps disappear: the bounds of the stored type do their work, or a clip on the stored integers where those
are wider (a float clamp would block the fusion). Biases are int32 at s_x·s_w.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.graph.session_options import INT8_KERNELS
from quantpipe.graph.view import Node
from quantpipe.lowering import Context, Lowering
from quantpipe.lowering import fragments as fr
from quantpipe.oprules import Family
from quantpipe.realize import realized_functions as functions
from quantpipe.realize.stored import Stored, exact_pairs_only, kernels_only, no_accumulators, refuse_without_kernel
from quantpipe.types import Accumulate, Average, Contract, Form, Kernel, Lookup, Requantize, Sum

UNFUSED_MOVES = ("Pad",)
"""Ops that move values and that onnxruntime 1.32 leaves in float between DequantizeLinear and QuantizeLinear, though it
has a kernel for bytes. (Max and Min it leaves there, too, but has no kernel for bytes.)"""


class Qdq(Stored):
    """Write the QDQ form, which needs float multipliers: the fused kernels requantize in float32.

    `here`: The file is for onnxruntime alone, so ops that it would not fuse work on the integers themselves. Other
    tools expect float ops between the two and load no such file.
    """

    name = "qdq"
    integer_accumulators = False

    def __init__(self, here: bool = False) -> None:
        super().__init__()
        self._entered: dict[str, ir.Value] = {}
        self.ops: Mapping[str, Lowering] = {
            **dict.fromkeys(fr.ops_of(Family.ACCUMULATE), self._accumulate),
            **dict.fromkeys(fr.TRANSPOSED, partial(functions.transposed, self)),
            **dict.fromkeys(fr.ops_of(Family.LOOKUP), self._lookup),
            **dict.fromkeys(fr.ops_of(Family.DEVICE), partial(functions.device, self)),
            **dict.fromkeys(fr.ops_of(Family.SUM, Family.PRODUCT), self._elementwise),
            "Sub": partial(functions.difference, self),
            **dict.fromkeys(fr.ops_of(Family.ROWS), partial(functions.programmed, self)),
            **dict.fromkeys(fr.ops_of(Family.AVERAGE), fr.by_plan(self._average, partial(functions.programmed, self))),
            **dict.fromkeys(fr.ops_of(Family.CLAMP), self.clamp),
            **dict.fromkeys(fr.ops_of(Family.MOVE), self._move),
            **(dict.fromkeys(UNFUSED_MOVES, self.move) if here else {}),
        }

    def session_options(self, context: Context) -> Mapping[str, str]:
        """Return the session option that int8 activations need, by its name.

        A default session on x86 runs their ops in float wherever it cannot rewrite the integers to uint8.
        """
        int8 = any(q.dtype.signed and q.dtype.bits == 8 for q in context.plan.quantizers.values())
        return {**super().session_options(context), **(INT8_KERNELS if int8 else {})}

    def narrow(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Raise HardwareError: this form has no accumulators between ops."""
        raise no_accumulators(tensor)

    def widen(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Return the value as it is: the accumulator of this form is the real result itself."""
        return value  # the accumulator of this form is the real result itself

    def _accumulate(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        if isinstance(plan, Contract):
            return self._contract(context, node, kernel, plan)
        assert isinstance(plan, Accumulate)  # noqa: S101  (the planner pairs families with plans; narrows the type)
        exact_pairs_only(plan)
        refuse_without_kernel(context, kernel, plan)
        inputs = [self._real(context, kernel.operands[0].tensor), self._real_weight(context, plan)]
        if plan.bias is not None:
            inputs.append(self._real_bias(context, node, plan))
        if plan.output is None:
            return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]
        real = context.builder.copy(node, inputs, [_unrounded(node)])[0]
        return self._finish(context, kernel, real, plan.output)

    def _contract(self, context: Context, node: Node, kernel: Kernel, plan: Contract) -> ir.Value:
        inputs = [self._real(context, o.tensor) for o in kernel.operands]
        if plan.output is None:
            return context.builder.copy(node, inputs, [kernel.output], claim=True)[0]
        real = context.builder.copy(node, inputs, [_unrounded(node)])[0]
        return self._finish(context, kernel, real, plan.output)

    def _lookup(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write a function as the float op between Q and DQ, whose results are the table's own entries.

        Several such ops are fused. A function that has no value for some code is gathered from the table, and so are
        16-bit codes, which no kernel reads.
        """
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Lookup)  # noqa: S101
        stored = (context.plan.quantizers[t] for t in (kernel.operands[0].tensor, kernel.output))
        if not plan.defined or any(q.dtype.bits > 8 for q in stored):
            return functions.gathered(self, context, node, kernel)
        inputs = [self._real(context, node.inputs[0]), *(context.real(t) for t in node.inputs[1:])]
        real = context.builder.copy(node, inputs, [_unrounded(node)])[0]
        return self.store(context, real, context.plan.quantizers[kernel.output], plan.low, high=plan.high)

    def _elementwise(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        output = getattr(plan, "output", None)
        if not isinstance(output, Requantize) or (isinstance(plan, Sum) and not plan.is_kernel_arithmetic):
            raise no_accumulators(node.name)
        tensors = [t.tensor for t in plan.terms] if isinstance(plan, Sum) else [o.tensor for o in kernel.operands]
        inputs = [self._real(context, t) for t in tensors]
        real = context.builder.copy(node, inputs, [_unrounded(node)])[0]
        return self._finish(context, kernel, real, output)

    def _average(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write a window average as a convolution with weights of 1 at scale 1/count.

        It is exact, and faster than the pool kernel.
        """
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Average)  # noqa: S101
        data = self._real(context, kernel.operands[0].tensor)
        if not fr.is_window(node):
            real = context.builder.copy(node, [data], [_unrounded(node)])[0]
            return self._finish(context, kernel, real, plan.output)
        ones, attributes = fr.window_ones(context, node)
        weight = context.builder.op(
            "DequantizeLinear",
            self.constant(context, f"{node.name}_ones", ones.astype(np.int8)),
            self.constant(context, f"{node.name}_ones_scale", np.float32(1 / plan.count)),
            self.constant(context, "weight_zero_point", np.int8(0)),
            name=f"{node.name}/ones",
        )
        real = context.builder.op("Conv", data, weight, name=node.name, output=_unrounded(node), **attributes)
        return self._finish(context, kernel, real, plan.output)

    def _move(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        inputs = [
            self._real(context, t) if p in {o.port for o in kernel.operands} else context.real(t)
            for p, t in enumerate(node.inputs)
        ]
        real = context.builder.copy(node, inputs, [_unrounded(node)])[0]
        q = context.plan.quantizers[kernel.output]
        if any(o.rescaled for o in kernel.operands):
            return self.store(context, real, q, q.qmin, high=q.qmax)
        # Values only moved: they are inside their bits already, so the full storage bounds are enough.
        return self.store(context, real, q, q.dtype.qmin, high=q.dtype.qmax)

    def _finish(self, context: Context, kernel: Kernel, real: ir.Value, output: Requantize) -> ir.Value:
        q = context.plan.quantizers[kernel.output]
        kernels_only(output, q, kernel.node)
        return self.store(context, real, q, output.low, high=output.high)

    def _real(self, context: Context, tensor: str) -> ir.Value:
        """Return a data operand after DequantizeLinear, also for a constant or a tensor that is float already."""
        if context.is_stored(tensor) and not fr.must_stay_real(context, tensor):
            return context.get(tensor, Form.FLOAT)
        if tensor not in self._entered:
            grid = self.grid(context, context.plan.quantizers[tensor])
            stored = context.get(tensor, Form.QUANTIZED)
            name, output = f"{tensor}/dequantize", f"{tensor}_real"
            self._entered[tensor] = context.builder.op("DequantizeLinear", stored, *grid, name=name, output=output)
        return self._entered[tensor]

    def _real_weight(self, context: Context, plan: Accumulate) -> ir.Value:
        weight = context.plan.weights[plan.weight]
        axis: dict[str, Any] = {} if weight.axis is None else {"axis": weight.axis}
        return context.builder.op(
            "DequantizeLinear",
            self.weight(context, weight),
            self.constant(context, f"{weight.tensor}_scale", weight.scale),
            self.constant(context, f"{weight.tensor}_zero_point", weight.zero),
            name=f"{plan.node}/weight",
            **axis,
        )

    def _real_bias(self, context: Context, node: Node, plan: Accumulate) -> ir.Value:
        assert plan.bias is not None  # noqa: S101
        axis: dict[str, Any] = {} if plan.acc_scale.ndim == 0 else {"axis": 0}
        return context.builder.op(
            "DequantizeLinear",
            self.constant(context, f"{node.name}_bias_q", plan.bias.astype(np.int32)),
            self.constant(context, f"{node.name}_bias_scale", plan.acc_scale),
            self.constant(context, f"{node.name}_bias_zero_point", np.zeros(plan.acc_scale.shape, np.int32)),
            name=f"{node.name}/bias",
            **axis,
        )


def _unrounded(node: Node) -> str:
    """Return the name of a result before it is stored.

    The tensor's own name belongs to the dequantized one, which leaves the graph and is read by float nodes and
    sub-graphs.
    """
    return f"{node.outputs[0]}_real"
