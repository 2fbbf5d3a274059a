"""Write the body of a loop in the realized forms: products of stored states, and states passed between steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import EXACT_FLOAT32
from quantpipe.graph.build import ir_dtype
from quantpipe.lowering import Context
from quantpipe.lowering.loop_writers import CarriedState, StepBody
from quantpipe.realize.stored_constants import StoredConstants
from quantpipe.types import WeightTensor


def multiply_state(form: StoredConstants, context: Context, step: StepBody) -> ir.Value:
    """Write the product of a loop's state by an integer weight: MatMulInteger on its stored integers.

    onnxruntime multiplies no 16-bit integers; they become integral values in float32, or float64 where sums need it.
    """
    q, product = step.quantizer, step.product
    weight, grid = context.plan.weights[product.weight], form.grid(context, q)
    state = step.op("QuantizeLinear", step.state, *grid, name="quantize")
    if q.dtype.bits > 8:
        sums = _whole_product(form, context, step, state, weight=weight)
    else:
        if q.qmin > q.dtype.qmin or q.qmax < q.dtype.qmax:
            state = _bounded(form, context, step, state, dtype=np.dtype(q.dtype.numpy), bounds=(q.qmin, q.qmax))
        zeros = [grid[1]]
        if weight.has_zero_point:
            own = weight.zero.astype(weight.values.dtype)
            zeros.append(form.constant(context, f"{weight.tensor}_zero_point", own))
        sums = step.op("MatMulInteger", state, form.weight(context, weight), *zeros, name="sums")
    real = step.op("Cast", sums, name="single", to=int(ir.DataType.FLOAT))
    return step.op("Mul", real, form.constant(context, f"{product.node}_scale", product.scale), name="real")


def store_state(form: StoredConstants, context: Context, state: CarriedState) -> ir.Value:
    """Write the state that a step passes to the next one: QuantizeLinear and DequantizeLinear.

    Where fewer integers are legal than the type has, they are bounded in int32: runtimes clip no int16.
    """
    q, grid = state.quantizer, form.grid(context, state.quantizer)
    codes = state.op("QuantizeLinear", state.value, *grid, name="quantize")
    if q.qmin > q.dtype.qmin or q.qmax < q.dtype.qmax:
        ends = [form.constant(context, f"{q.tensor}_carried_{side}", np.int32(end)) for side, end in
                (("low", q.qmin), ("high", q.qmax))]  # fmt: skip
        wide = state.op("Cast", codes, name="int32", to=int(ir.DataType.INT32))
        clipped = state.op("Clip", wide, *ends, name="clip")
        codes = state.op("Cast", clipped, name="narrow", to=int(ir_dtype(np.dtype(q.dtype.numpy).name)))
    return state.op("DequantizeLinear", codes, *grid, name="real")


def _whole_product(
    form: StoredConstants, context: Context, step: StepBody, stored: ir.Value, *, weight: WeightTensor
) -> ir.Value:
    """Return the sums of centred integers, carried by floats that hold them."""
    b, q, wide = context.builder, step.quantizer, step.product.bound >= EXACT_FLOAT32
    to = int(ir.DataType.DOUBLE if wide else ir.DataType.FLOAT)
    dtype = np.dtype(np.float64 if wide else np.float32)
    state = step.op("Cast", stored, name="whole", to=to)
    held = b.op("Cast", form.weight(context, weight), name=f"{weight.tensor}/whole", to=to)
    if q.zero_point:
        zero = form.constant(context, f"{q.tensor}_state_zero", np.asarray(q.zero_point, dtype))
        state = step.op("Sub", state, zero, name="centre")
    if weight.has_zero_point:
        own = form.constant(context, f"{weight.tensor}_zero_{dtype}", weight.zero.astype(dtype))
        held = b.op("Sub", held, own, name=f"{weight.tensor}/centre")
    return step.op(
        "MatMul", _bounded(form, context, step, state, dtype=dtype, bounds=(q.low, q.high)), held, name="sums"
    )


def _bounded(
    form: StoredConstants,
    context: Context,
    step: StepBody,
    value: ir.Value,
    *,
    dtype: np.dtype[Any],
    bounds: tuple[int, int],
) -> ir.Value:
    """Write a state clipped to its smallest and largest integer."""
    name = f"{step.quantizer.tensor}_state"
    ends = [form.constant(context, f"{name}_{side}", np.asarray(bound, dtype)) for side, bound in
            zip(("low", "high"), bounds, strict=True)]  # fmt: skip
    return step.op("Clip", value, *ends, name="clip")
