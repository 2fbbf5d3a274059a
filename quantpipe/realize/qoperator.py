"""Write the QOperator form: onnxruntime's integer ops (QLinearConv, QGemm, QLinearAdd, …).

No fusion is needed at load.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from quantpipe.graph.view import MS_DOMAIN, Node
from quantpipe.lowering import Context, Lowering
from quantpipe.lowering import fragments as fr
from quantpipe.oprules import Family
from quantpipe.realize import realized_functions as functions
from quantpipe.realize.stored import Stored, exact_pairs_only, kernels_only, no_accumulators, refuse_without_kernel
from quantpipe.types import Accumulate, Average, Contract, Form, Kernel, Quantizer, Requantize, Sum


class QOperator(Stored):
    """Write the QOperator form, which needs float multipliers, as its kernels do."""

    name = "qoperator"
    without_options = True
    integer_accumulators = False

    def __init__(self) -> None:
        super().__init__()
        self.ops: Mapping[str, Lowering] = {
            "Conv": self._conv,
            "Gemm": self._gemm,
            "MatMul": self._gemm,
            **dict.fromkeys(fr.TRANSPOSED, partial(functions.transposed, self)),
            **dict.fromkeys(fr.ops_of(Family.LOOKUP), partial(functions.gathered, self)),
            **dict.fromkeys(fr.ops_of(Family.DEVICE), partial(functions.device, self)),
            "Sub": partial(functions.difference, self),
            "Add": self._elementwise("QLinearAdd"),
            "Mul": self._elementwise("QLinearMul"),
            **dict.fromkeys(fr.ops_of(Family.ROWS), partial(functions.programmed, self)),
            **dict.fromkeys(fr.ops_of(Family.AVERAGE), fr.by_plan(self._average, partial(functions.programmed, self))),
            **dict.fromkeys(fr.ops_of(Family.CLAMP), self.clamp),
            **dict.fromkeys(fr.ops_of(Family.MOVE), self.move),
        }

    def narrow(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Raise HardwareError: this form has no accumulators between ops."""
        raise no_accumulators(tensor)

    def widen(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Return the value as it is: QGemm without an output scale returns floats."""
        return value  # QGemm without an output scale gives real numbers

    def _conv(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Accumulate)  # noqa: S101  (the planner pairs families with plans; narrows the type)
        exact_pairs_only(plan)
        refuse_without_kernel(context, kernel, plan)
        if plan.output is None:
            raise no_accumulators(node.name)
        out = context.plan.quantizers[kernel.output]
        weight = context.plan.weights[plan.weight]
        kept = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
        result = context.builder.op(
            "QLinearConv",
            *self._stored(context, kernel.operands[0].tensor),
            self.weight(context, weight),
            *self._weight_grid(context, plan),
            *self.grid(context, out),
            self._bias(context, node, plan),
            name=node.name,
            output=self._result_name(out, plan.output),
            **{k: node.attr(k) for k in kept if k in node.attributes},
        )
        return self._finish(context, out, plan.output, result)

    def _gemm(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        if isinstance(plan, Contract):
            return functions.linear_matmul(self, context, node, kernel)
        assert isinstance(plan, Accumulate)  # noqa: S101
        exact_pairs_only(plan)
        refuse_without_kernel(context, kernel, plan)
        if len(context.graph.shapes[kernel.operands[0].tensor]) != 2:
            return self._matmul(context, node, kernel, plan)
        out = context.plan.quantizers[kernel.output] if plan.output is not None else None
        weight = context.plan.weights[plan.weight]
        grid = self.grid(context, out) if out is not None else ()
        result = context.builder.op(
            "QGemm",
            *self._stored(context, kernel.operands[0].tensor),
            self.weight(context, weight),
            *self._weight_grid(context, plan),
            self._bias(context, node, plan),
            *grid,
            name=node.name,
            output=kernel.output if out is None or plan.output is None else self._result_name(out, plan.output),
            claim=out is None,
            domain=MS_DOMAIN,
            transB=int(node.attr("transB", 0)),
        )
        return result if out is None or plan.output is None else self._finish(context, out, plan.output, result)

    def _matmul(self, context: Context, node: Node, kernel: Kernel, plan: Accumulate) -> ir.Value:
        weight = context.plan.weights[plan.weight]
        operands = (
            *self._stored(context, kernel.operands[0].tensor),
            self.weight(context, weight),
            *self._weight_grid(context, plan),
        )
        if plan.output is None:
            data, s_x, z_x, values, s_w, z_w = operands
            return context.builder.op(
                "MatMulIntegerToFloat",
                *(data, values, s_x, s_w, z_x, z_w),
                name=node.name,
                output=kernel.output,
                claim=True,
                domain=MS_DOMAIN,
            )
        out = context.plan.quantizers[kernel.output]
        name = self._result_name(out, plan.output)
        result = context.builder.op("QLinearMatMul", *operands, *self.grid(context, out), name=node.name, output=name)
        return self._finish(context, out, plan.output, result)

    def _elementwise(self, op: str) -> Lowering:
        def lower(context: Context, node: Node, kernel: Kernel) -> ir.Value:
            plan = context.plan.kernels[node.name]
            output = getattr(plan, "output", None)
            if not isinstance(output, Requantize) or (isinstance(plan, Sum) and not plan.is_kernel_arithmetic):
                raise no_accumulators(node.name)
            out = context.plan.quantizers[kernel.output]
            tensors = [t.tensor for t in plan.terms] if isinstance(plan, Sum) else [o.tensor for o in kernel.operands]
            operands = [v for t in tensors for v in self._stored(context, t)]
            name = self._result_name(out, output)
            grid = self.grid(context, out)
            result = context.builder.op(op, *operands, *grid, name=node.name, output=name, domain=MS_DOMAIN)
            return self._finish(context, out, output, result)

        return lower

    def _average(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        """Write averages: whole maps by their kernel, windows as a convolution with weights of 1 at 1/count (exact)."""
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Average)  # noqa: S101
        out = context.plan.quantizers[kernel.output]
        data = self._stored(context, kernel.operands[0].tensor)
        name = self._result_name(out, plan.output)
        if not fr.is_window(node):
            result = context.builder.op(
                "QLinearGlobalAveragePool",
                *data,
                *self.grid(context, out),
                name=node.name,
                output=name,
                domain=MS_DOMAIN,
                channels_last=0,
            )
            return self._finish(context, out, plan.output, result)
        ones, attributes = fr.window_ones(context, node)
        result = context.builder.op(
            "QLinearConv",
            *data,
            self.constant(context, f"{node.name}_ones", ones.astype(np.int8)),
            self.constant(context, f"{node.name}_ones_scale", np.float32(1 / plan.count)),
            self.constant(context, "weight_zero_point", np.int8(0)),
            *self.grid(context, out),
            name=node.name,
            output=name,
            **attributes,
        )
        return self._finish(context, out, plan.output, result)

    def _finish(self, context: Context, q: Quantizer, output: Requantize, result: ir.Value) -> ir.Value:
        kernels_only(output, q, q.tensor)
        tight = self._tight(q, output)
        return self.clip(context, result, q, output.low, high=output.high) if tight else result

    def _result_name(self, q: Quantizer, output: Requantize) -> str:
        return f"{q.tensor}_wide" if self._tight(q, output) else f"{q.tensor}_q"

    @staticmethod
    def _tight(q: Quantizer, output: Requantize) -> bool:
        """Return whether the bounds are tighter than the storage, so that the kernel's own saturation is not enough."""
        return output.low > q.dtype.qmin or output.high < q.dtype.qmax

    def _stored(self, context: Context, tensor: str) -> tuple[ir.Value, ir.Value, ir.Value]:
        scale, zero = self.grid(context, context.plan.quantizers[tensor])
        return context.get(tensor, Form.QUANTIZED), scale, zero

    def _weight_grid(self, context: Context, plan: Accumulate) -> tuple[ir.Value, ir.Value]:
        weight = context.plan.weights[plan.weight]
        return (
            self.constant(context, f"{weight.tensor}_scale", weight.scale),
            self.constant(context, f"{weight.tensor}_zero_point", weight.zero),
        )

    def _bias(self, context: Context, node: Node, plan: Accumulate) -> ir.Value | None:
        if plan.bias is None:
            return None
        return self.constant(context, f"{node.name}_bias_q", plan.bias.astype(np.int32))
