"""Write the integer form: ConvInteger and MatMulInteger, additions, shifts, clips, casts.

It shows op by op the arithmetic of an accelerator without a multiplier after its array (VTA). Hardware with float
multipliers gets Mul and Round in float32 instead of the shift, with fixed-point ones a multiplication in int64.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.graph.build import ir_dtype
from quantpipe.graph.view import Node
from quantpipe.lowering import Context, Lowering
from quantpipe.lowering import fragments as fr
from quantpipe.lowering.fixedpoint import fixed_sum, multiplied
from quantpipe.lowering.integers import NARROW, WIDE, IntegerWriter, round_real
from quantpipe.lowering.pairs import pair_excess
from quantpipe.lowering.products import exact_accumulator, int32_accumulator, limited, needs_parts, window_sum
from quantpipe.oprules import Family
from quantpipe.realize import realized_functions as functions
from quantpipe.realize.stored import PADS, Stored
from quantpipe.types import (
    Accumulate,
    Average,
    Contract,
    DType,
    Form,
    Kernel,
    Move,
    Product,
    Program,
    Quantizer,
    Requantize,
    RequantizeKind,
    Rounding,
    Sum,
)

IN_DOUBLE = frozenset({"MaxPool", "DepthToSpace", "SpaceToDepth"})
"""Moves that onnxruntime has no int32 kernel of; float64 holds every int32, so the detour changes nothing."""


class Integer(Stored):
    """Write the integer form."""

    name = "integer"
    integer_accumulators = True
    without_options = True

    def __init__(self) -> None:
        super().__init__()
        self._wide_sums: set[str] = set()
        self.ops: Mapping[str, Lowering] = {
            **dict.fromkeys(fr.ops_of(Family.ACCUMULATE), self._accumulate),
            **dict.fromkeys(fr.TRANSPOSED, self._transposed),
            **dict.fromkeys(fr.ops_of(Family.LOOKUP), partial(functions.gathered, self)),
            **dict.fromkeys(fr.ops_of(Family.ROWS), self._program),
            **dict.fromkeys(fr.ops_of(Family.DEVICE), partial(functions.device, self)),
            **dict.fromkeys(fr.ops_of(Family.SUM), self._add),
            **dict.fromkeys(fr.ops_of(Family.PRODUCT), self._multiply),
            **dict.fromkeys(fr.ops_of(Family.AVERAGE), fr.by_plan(self._average, self._program)),
            **dict.fromkeys(fr.ops_of(Family.CLAMP), self._clamp),
            **dict.fromkeys(fr.ops_of(Family.MOVE), self._move),
        }

    def narrow(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the narrowing of an accumulator to its stored integers."""
        wide, bound = tensor in self._wide_sums, 1 << NARROW.lift
        return self._requantize(
            context, context.plan.narrowings[tensor], value, tensor, layout=None, bound=bound, wide=wide
        )

    def widen(self, context: Context, tensor: str, value: ir.Value) -> ir.Value:
        """Write the real values of an accumulator, float32."""
        scale = context.plan.raw_scales[tensor]
        # DequantizeLinear reads no int64. And where a node in float that only moves values reads its result,
        # onnxruntime (1.32) quantizes that again behind the node, without a zero point: to uint8.
        moved = fr.is_moved(context.graph, tensor)
        if tensor in self._wide_sums or moved or fr.weighs_in_float(context, tensor):
            single = self._writer(context).cast(value, np.float32, f"{tensor}/single")
            parameter = self.constant(context, f"{tensor}_acc_scale", fr.along_channels(scale, context.graph, tensor))
            return context.builder.op("Mul", single, parameter, name=f"{tensor}/real", output=tensor, claim=True)
        axis: dict[str, Any] = {} if scale.ndim == 0 else {"axis": fr.output_axis(context.graph, tensor)}
        parameter = self.constant(context, f"{tensor}_acc_scale", scale)
        return context.builder.op(
            "DequantizeLinear", value, parameter, name=f"{tensor}/dequantize", output=tensor, claim=True, **axis
        )

    # --- ops --------------------------------------------------------------------------------------------------------

    def _accumulate(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        if isinstance(plan, Contract):
            acc = functions.integer_matmul(self, context, node, kernel)
            if wide := functions.is_wide_product(context, kernel):
                self._wide_sums.add(kernel.output)
            if plan.output is None:
                return acc
            return self._requantize(context, plan.output, acc, kernel.output, layout=None, bound=plan.bound, wide=wide)
        assert isinstance(plan, Accumulate)  # noqa: S101  (the planner pairs families with plans; narrows the type)
        data = kernel.operands[0].tensor
        weight = context.plan.weights[plan.weight]
        q = context.plan.quantizers[data]
        if needs_parts(plan, q.dtype, weight, context.topology.weight_of[weight.tensor].channel_axis):
            acc = exact_accumulator(
                context, self._writer(context), node, plan, q=q, stored=context.get(data, Form.QUANTIZED)
            )
            return self._accumulated(context, node, kernel, plan, acc=acc, wide=True)
        values = self.weight(context, weight, fr.matrix_weight(node, weight.values))
        zero = self._zero(context, context.plan.quantizers[data])
        stored = context.get(data, Form.QUANTIZED)
        acc = int32_accumulator(
            context, self._writer(context).constants, node, stored, zero=zero, values=values, weight=weight
        )
        if plan.bias is not None:
            bias = fr.along_channels(plan.bias.astype(np.int32), context.graph, node.outputs[0])
            parameter = self.constant(context, f"{node.name}_bias_q", bias)
            acc = context.builder.op("Add", acc, parameter, name=f"{node.name}/bias", output=f"{node.outputs[0]}_acc")
        return self._accumulated(context, node, kernel, plan, acc=acc, wide=False)

    def _accumulated(
        self, context: Context, node: Node, kernel: Kernel, plan: Accumulate, *, acc: ir.Value, wide: bool
    ) -> ir.Value:
        """Write the kernel's result from exact sums (int32, or int64 where `wide`)."""
        writer, bound = self._writer(context), plan.bound
        if plan.pairs is not None:
            tensor = kernel.operands[0].tensor
            centred = writer.cast(
                self._wide(context, tensor, Form.QUANTIZED, f"{node.name}/pairs"), np.float32, f"{node.name}/pairs/real"
            )
            zero_point = context.plan.quantizers[tensor].zero_point
            excess = pair_excess(context, writer.constants, node, plan, centred=centred, zero_point=zero_point)
            lost = writer.cast(excess, np.int64 if wide else np.int32, f"{node.name}/pairs/lost")
            acc = context.builder.op("Sub", acc, lost, name=f"{node.name}/less_pairs")
        if plan.limit is not None:
            acc = limited(writer, acc, plan.limit, node.outputs[0])
            bound, wide = -plan.limit.qmin, wide and plan.limit.width > 32
        if wide and bound <= DType.INT32.qmax:
            acc, wide = writer.cast(acc, np.int32, f"{node.name}/int32"), False
        if wide:
            self._wide_sums.add(kernel.output)
        if plan.output is None:
            return acc
        return self._requantize(
            context, plan.output, acc, kernel.output, layout=node.outputs[0], bound=bound, wide=wide
        )

    def _transposed(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Accumulate)  # noqa: S101
        wide = plan.bound > DType.INT32.qmax
        acc = functions.transposed_accumulator(self, context, node, kernel, wide=wide)
        return self._accumulated(context, node, kernel, plan, acc=acc, wide=wide)

    def _add(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Sum)  # noqa: S101
        if plan.scale is None:
            return self._add_free(context, node, kernel, plan)
        if plan.terms[0].fixed is not None:
            return self._add_fixed(context, node, kernel, plan)
        terms = []
        for number, term in enumerate(plan.terms):
            value = self._wide(context, term.tensor, term.form, f"{node.name}/term{number}")
            name = f"{node.name}/term{number}"
            shifted = self._shift(context, value, -term.shift, name, bound=plan.bound, rounding=plan.rounding)
            terms.append(fr.signed(context, plan, number, shifted))
        acc = context.builder.op(fr.SUM, *terms, name=node.name, output=f"{node.outputs[0]}_acc")
        bound = plan.bound
        if plan.limit is not None:
            acc = limited(self._writer(context), acc, plan.limit, node.outputs[0])
            bound = -plan.limit.qmin
        if plan.output is None:
            return acc
        return self._requantize(context, plan.output, acc, kernel.output, layout=None, bound=bound)

    def _add_free(self, context: Context, node: Node, kernel: Kernel, plan: Sum) -> ir.Value:
        assert plan.output is not None  # noqa: S101
        operands = [context.get(t.tensor, t.form) for t in plan.terms]
        writer = self._writer(context)
        total = fr.free_sum(context, node, plan, operands, constants=writer.constants)
        rounding = Rounding(plan.output.rounding)
        rounded = round_real(context.builder, writer.constants, total, rounding, name=kernel.output)
        return self._fit(context, rounded, plan.output, kernel.output, dtype=np.dtype(np.float32))

    def _add_fixed(self, context: Context, node: Node, kernel: Kernel, plan: Sum) -> ir.Value:
        assert plan.output is not None  # noqa: S101
        writer, values = self._writer(context), []
        for number, term in enumerate(plan.terms):
            name = f"{node.name}/term{number}"
            values.append(writer.cast(self._wide(context, term.tensor, term.form, name), np.int64, f"{name}/int64"))
        acc = fixed_sum(context, writer, node.name, plan, values=values)
        return self._store_fixed(context, plan.output, acc, kernel.output, layout=None)

    def _store_fixed(
        self, context: Context, r: Requantize, acc: ir.Value, tensor: str, *, layout: str | None
    ) -> ir.Value:
        """Return an int64 accumulator times a fixed-point number, stored."""
        scaled = multiplied(context, self._writer(context), r, acc, layout=layout or tensor, name=tensor)
        if r.zero_point:
            zero = self.constant(context, f"{tensor}_zero_int64", np.int64(r.zero_point))
            scaled = context.builder.op("Add", scaled, zero, name=f"{tensor}/zero")
        real = self._writer(context).cast(scaled, np.float64, f"{tensor}/double")
        return self._fit(context, real, r, tensor, dtype=np.dtype(np.float64), layout=layout)

    def _writer(self, context: Context) -> IntegerWriter:
        return IntegerWriter(context.builder, lambda name, value: self.constant(context, name, value))

    def _multiply(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Product)  # noqa: S101
        operands = [
            self._wide(context, o.tensor, o.form, f"{node.name}/operand{n}") for n, o in enumerate(kernel.operands)
        ]
        if wide := plan.bound > DType.INT32.qmax:
            operands = [self._writer(context).cast(v, np.int64, f"{node.name}/long{n}") for n, v in enumerate(operands)]
        acc = context.builder.op("Mul", *operands, name=node.name, output=f"{node.outputs[0]}_acc")
        return self._requantize(context, plan.output, acc, kernel.output, layout=None, bound=plan.bound, wide=wide)

    def _average(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Average)  # noqa: S101
        b, tensor, output = context.builder, kernel.operands[0].tensor, f"{node.outputs[0]}_acc"
        if fr.is_window(node) and context.plan.quantizers[tensor].dtype.bits > 8:
            wide = self._wide(context, tensor, Form.QUANTIZED, node.name)
            acc = self._writer(context).cast(
                window_sum(context, self._writer(context), node, wide), np.int32, f"{node.name}/int32", output
            )
        elif fr.is_window(node):
            ones, attributes = fr.window_ones(context, node)
            weight = self.constant(context, f"{node.name}_ones", ones.astype(np.int8))
            zero = self._zero(context, context.plan.quantizers[tensor])
            data = context.get(tensor, Form.QUANTIZED)
            inputs = (data, weight, zero) if zero is not None else (data, weight)
            acc = b.op("ConvInteger", *inputs, name=node.name, output=output, **attributes)
        else:
            axes = self.constant(context, f"{node.name}_axes", fr.map_axes(context, node))
            wide = self._wide(context, tensor, Form.QUANTIZED, node.name)
            acc = b.op("ReduceSum", wide, axes, name=node.name, output=output, keepdims=1)
        return self._requantize(context, plan.output, acc, kernel.output, layout=None, bound=plan.bound)

    def _program(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        plan = context.plan.kernels[node.name]
        if not isinstance(plan, Program) or plan.output is None:
            return functions.programmed(self, context, node, kernel)
        acc = functions.program_result(self, context, kernel, plan)
        acc = self._writer(context).cast(acc, np.int32, f"{node.name}/int32", f"{node.outputs[0]}_acc")
        return self._requantize(context, plan.output, acc, kernel.output, layout=None, bound=plan.bound)

    def _clamp(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        if kernel.form is Form.QUANTIZED:
            return self.clamp(context, node, kernel)
        plan = context.plan.kernels[node.name]
        assert isinstance(plan, Move)  # noqa: S101
        bounds = [
            None if bound is None else self.constant(context, f"{node.name}_{side}", np.int32(bound))
            for side, bound in (("low", plan.low), ("high", plan.high))
        ]
        value = context.get(kernel.operands[0].tensor, Form.RAW)
        return context.builder.op("Clip", value, *bounds, name=node.name, output=fr.stored_name(kernel))

    def _move(self, context: Context, node: Node, kernel: Kernel) -> ir.Value:
        if kernel.form is Form.QUANTIZED:
            return self.move(context, node, kernel)
        inputs, name = fr.moved(context, node, kernel), fr.stored_name(kernel)
        if node.op in PADS and len(inputs) > 2 and inputs[2] is not None:
            inputs[2] = self.constant(context, f"{node.name}_zero", np.int32(0))
        if node.op in fr.GLOBAL_MAXIMUM:
            return fr.global_maximum(context, node, inputs[0], name)
        if node.op not in IN_DOUBLE:
            return context.builder.copy(node, inputs, [name])[0]
        inputs[0] = context.builder.op("Cast", inputs[0], name=f"{node.name}/double", to=int(ir.DataType.DOUBLE))
        moved = context.builder.copy(node, inputs, [f"{kernel.output}_double"])[0]
        return context.builder.op("Cast", moved, name=f"{node.name}/int32", output=name, to=int(ir.DataType.INT32))

    # --- arithmetic -------------------------------------------------------------------------------------------------

    def _requantize(
        self,
        context: Context,
        r: Requantize,
        acc: ir.Value,
        tensor: str,
        *,
        layout: str | None,
        bound: int,
        wide: bool = False,
    ) -> ir.Value:
        """Write the narrowing of an int32 accumulator (`wide`: int64) to stored integers.

        `layout` is the tensor whose channels a multiplier follows.
        """
        b = context.builder
        if r.kind is RequantizeKind.SHIFT:
            if wide:
                return self._shift_wide(context, acc, r, tensor, layout=layout)
            shifted = self._shift(context, acc, r.shift, tensor, bound=bound, rounding=r.rounding)
            return self._fit(context, shifted, r, tensor, dtype=np.dtype(np.int32), layout=layout)
        if r.kind is RequantizeKind.FIXED_POINT:
            acc64 = acc if wide else self._writer(context).cast(acc, np.int64, f"{tensor}/int64")
            return self._store_fixed(context, r, acc64, tensor, layout=layout)
        real = b.op("Cast", acc, name=f"{tensor}/cast", to=int(ir.DataType.FLOAT))
        multiplier = fr.along_channels(r.multiplier, context.graph, layout or tensor)
        scaled = b.op("Mul", real, self.constant(context, f"{tensor}_multiplier", multiplier), name=f"{tensor}/scaled")
        zero = self.constant(context, f"{tensor}_zero", np.float32(r.zero_point))
        constants, rounding = self._writer(context).constants, Rounding(r.rounding)
        if r.zero_first:
            moved = b.op("Add", scaled, zero, name=f"{tensor}/zero")
            rounded = round_real(b, constants, moved, rounding, name=tensor)
        else:
            rounded = b.op("Add", round_real(b, constants, scaled, rounding, name=tensor), zero, name=f"{tensor}/zero")
        return self._fit(context, rounded, r, tensor, dtype=np.dtype(np.float32), layout=layout)

    def _fit(
        self,
        context: Context,
        value: ir.Value,
        r: Requantize,
        tensor: str,
        *,
        dtype: np.dtype[np.int32 | np.float64 | np.float32],
        layout: str | None = None,
    ) -> ir.Value:
        """Clip into the bounds, then narrow: the device's own narrowing may wrap, after the clip it cannot."""
        bounds = [
            self.constant(context, f"{tensor}_{side}_{dtype.name}", np.asarray(bound, dtype))
            for side, bound in (("low", r.low), ("high", r.high))
        ]
        clipped = context.builder.op("Clip", value, *bounds, name=f"{tensor}/clip")
        for bound, op, side in zip(r.by_channel or (), ("Max", "Min"), ("low", "high"), strict=False):
            own = fr.along_channels(bound.astype(dtype), context.graph, layout or tensor)
            parameter = self.constant(context, f"{tensor}_channel_{side}_{dtype.name}", own)
            clipped = context.builder.op(op, clipped, parameter, name=f"{tensor}/channel_{side}")
        stored = int(ir_dtype(context.plan.quantizers[tensor].dtype))
        return context.builder.op("Cast", clipped, name=f"{tensor}/store", output=f"{tensor}_q", to=stored)

    def _shift(
        self, context: Context, value: ir.Value, shift: int, name: str, *, bound: int, rounding: str = Rounding.HALF_UP
    ) -> ir.Value:
        """Write v / 2^shift on int32, rounded; |v| <= `bound`. Below 0 it goes to the left; 0 writes nothing."""
        b = context.builder
        if shift == 0:
            return value
        if shift < 0:
            bits = b.op("Cast", value, name=f"{name}/bits", to=int(ir.DataType.UINT32))
            amount = self.constant(context, f"shift_{-shift}", np.uint32(-shift))
            left = b.op("BitShift", bits, amount, name=f"{name}/shift_left", direction="LEFT")
            return b.op("Cast", left, name=f"{name}/shifted", to=int(ir.DataType.INT32))
        writer = self._writer(context)
        if shift <= NARROW.lift and bound + (1 << (shift - 1)) < 1 << NARROW.lift:
            return writer.right_shift(value, shift, Rounding(rounding), name, width=NARROW)
        value = writer.cast(value, np.int64, f"{name}/wide")
        shifted = writer.right_shift(value, shift, Rounding(rounding), name, width=WIDE)
        return writer.cast(shifted, np.int32, f"{name}/int32")

    def _shift_wide(
        self, context: Context, acc: ir.Value, r: Requantize, tensor: str, *, layout: str | None
    ) -> ir.Value:
        """Return the same on int64, clipped in float64."""
        writer = self._writer(context)
        if r.shift > 0:
            acc = writer.right_shift(acc, r.shift, Rounding(r.rounding), tensor, width=WIDE)
        real = writer.cast(acc, np.float64, f"{tensor}/double")
        if r.shift < 0:
            factor = self.constant(context, f"{tensor}_left", np.float64(2.0**-r.shift))
            real = context.builder.op("Mul", real, factor, name=f"{tensor}/left")
        return self._fit(context, real, r, tensor, dtype=np.dtype(np.float64), layout=layout)

    def _wide(self, context: Context, tensor: str, form: Form, name: str) -> ir.Value:
        """Return a stored tensor as int32 q - z; an accumulator as it is."""
        value = context.get(tensor, form)
        if form is Form.RAW:
            return value
        wide = context.builder.op("Cast", value, name=f"{name}/int32", to=int(ir.DataType.INT32))
        zero_point = context.plan.quantizers[tensor].zero_point
        if not zero_point:
            return wide
        zero = self.constant(context, f"{tensor}_zero_int32", np.int32(zero_point))
        return context.builder.op("Sub", wide, zero, name=f"{name}/centred")

    def _zero(self, context: Context, q: Quantizer) -> ir.Value | None:
        return self.grid(context, q)[1] if q.zero_point else None
