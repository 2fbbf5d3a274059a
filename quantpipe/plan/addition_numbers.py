"""Additions: how two operands of scales of their own come to one sum."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.plan.bounds import bounded, limit_of
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.requantize import exponent_of, fixed_point, limits, real_of, requantize
from quantpipe.types import (
    DType,
    FixedPoint,
    FixedRounding,
    Form,
    Kernel,
    Overflow,
    Requantize,
    RequantizeKind,
    Rounding,
    Sum,
    Term,
    Unify,
)

LEFT_8, LEFT_16 = 20, 15
"""Bits by which stored operands are shifted left before a fixed-point addition rescales them."""


WHOLE_BITS = 21
"""Bits of the larger of two whole multipliers."""
RATIOS = (2.0**-10, 2.0**8)
"""How many times the scale of the result those of operands may be, from the first to below the last."""

Signs = tuple[int, int]
"""1 for an operand that is added, -1 for one that is subtracted."""


def plan_sum(builder: PlanBuilder, kernel: Kernel, sign: int) -> Sum:
    """Plan an addition, or a subtraction with `sign` -1, by the hardware's `unify`."""
    kernel, signs = _broadcast_last(builder, kernel, sign)
    if builder.spec.unify is not Unify.FREE:
        return _unified(builder, kernel, signs)
    how = builder.narrowing(kernel)
    if how.rounding is FixedRounding.COMMON_SHIFT:
        return _shifted_once(builder, kernel, signs)
    fixed = how.kind is RequantizeKind.FIXED_POINT
    return _fixed(builder, kernel, signs) if fixed else _free(builder, kernel, signs)


def _fixed(builder: PlanBuilder, kernel: Kernel, signs: Signs) -> Sum:
    """Plan an addition with fixed-point multipliers, as TFLite's quantized ADD does.

    Both operands are brought to twice the larger scale / 2^left by multipliers below 1, after a left shift that keeps
    their low bits (20 bits for 8-bit operands, 15 for 16-bit ones). An accumulator is not shifted first: it has its own
    low bits.
    """
    out = builder.quantizers[kernel.output]
    scales = [builder.scale(o.tensor, o.form).astype(np.float64) for o in kernel.operands]
    # An accumulator's values are those of a stored tensor some bits wider: the result's scale stands for it.
    stored = [builder.quantizers[o.tensor] if o.form is Form.QUANTIZED else out for o in kernel.operands]
    left = LEFT_16 if max(q.dtype.bits for q in stored) > 8 else LEFT_8
    twice = 2.0 * max(float(q.scale) for q in stored)
    terms = []
    for o, scale, sign in zip(kernel.operands, scales, signs, strict=True):
        shift = left if o.form is Form.QUANTIZED else 0
        fixed = fixed_point(builder, kernel, np.asarray(scale / twice * 2.0 ** (left - shift)))
        terms.append(
            Term(
                o.tensor,
                o.form,
                builder.scale(o.tensor, o.form),
                builder.zero_point(o.tensor, o.form),
                shift,
                np.float32(sign) * real_of(fixed),
                fixed,
            )
        )
    common = np.asarray(twice / 2.0**left)
    bound = DType.INT32.qmax  # terms and sum saturate there; real values stay far below
    output = requantize(builder, kernel, common, out)
    return Sum(kernel.node, tuple(terms), np.asarray(common, np.float32), np.float32(0), bound, output)


def _shifted_once(builder: PlanBuilder, kernel: Kernel, signs: Signs) -> Sum:
    """Plan an addition as XNNPACK's qs8-vadd does: q = (a·M_a + b·M_b + 2^(n-1)) >> n.

    M = rint(f32(s / s_y) · 2^n) for each operand, n such that the larger one has 21 bits.
    """
    out, terms = builder.quantizers[kernel.output], []
    scales = [np.asarray(builder.scale(o.tensor, o.form), np.float32) for o in kernel.operands]
    ratios = [np.asarray(scale / out.scale, np.float32) for scale in scales]
    raw = any(o.form is not Form.QUANTIZED for o in kernel.operands) or any(r.ndim for r in ratios)
    low, high = min(float(np.min(r)) for r in ratios), max(float(np.max(r)) for r in ratios)
    if raw or low < RATIOS[0] or high >= RATIOS[1]:
        raise HardwareError(
            f"its operands have {low:g} and {high:g} times the scale of its result; legal are stored operands at "
            f"{RATIOS[0]:g} up to {RATIOS[1]:g} times (XNNPACK's kernel takes no others)",
            stage="plan",
            where=kernel.node,
        )
    count = WHOLE_BITS - math.frexp(high)[1]
    for o, scale, ratio, sign in zip(kernel.operands, scales, ratios, signs, strict=True):
        whole = intmath.round_real(np.float64(ratio) * 2.0**count)
        fixed = FixedPoint(*intmath.quantize_multipliers(whole))
        zero = builder.zero_point(o.tensor, o.form)
        terms.append(Term(o.tensor, o.form, scale, zero, 0, np.float32(sign) * real_of(fixed), fixed))
    low_q, high_q = limits(kernel, out)
    fixed = FixedPoint(*intmath.quantize_multipliers(np.asarray(2.0**-count)))
    common = np.asarray(np.float64(out.scale) * 2.0**-count, np.float32)
    output = Requantize(RequantizeKind.FIXED_POINT, real_of(fixed), 0, out.zero_point, low_q, high_q, False,
                        FixedRounding.SINGLE, fixed)  # fmt: skip
    return Sum(kernel.node, tuple(terms), common, np.float32(0), DType.INT32.qmax, output, whole=True)


def _free(builder: PlanBuilder, kernel: Kernel, signs: Signs) -> Sum:
    """The kernel rescales inside, in float32."""
    out = builder.quantizers[kernel.output]
    terms = []
    for o, sign in zip(kernel.operands, signs, strict=True):
        scale, zero = builder.scale(o.tensor, o.form), builder.zero_point(o.tensor, o.form)
        terms.append(Term(o.tensor, o.form, scale, zero, 0, np.asarray(sign * scale / out.scale, np.float32)))
    one = np.asarray(1.0, np.float32)
    low, high = limits(kernel, out)
    how = builder.narrowing(kernel)
    output = Requantize(how.kind, one, 0, out.zero_point, low, high, True, how.rounding)
    return Sum(kernel.node, tuple(terms), None, _free_offset(tuple(terms), out.zero_point), 0, output)


def _unified(builder: PlanBuilder, kernel: Kernel, signs: Signs) -> Sum:
    """Both operands are shifted to one power-of-two scale."""
    scales = [builder.scale(o.tensor, o.form) for o in kernel.operands]
    zeros = [builder.zero_point(o.tensor, o.form) for o in kernel.operands]
    peaks = [builder.peak(o.tensor, o.form) for o in kernel.operands]
    exponents = [exponent_of(s, kernel.node) for s in scales]
    common = min(exponents) if builder.spec.unify is Unify.MIN_SCALE else max(exponents)
    # Head-room. A narrow accumulator that wraps or saturates is left to do so once the larger scale is reached: its
    # operands may fill it wholly, and every further bit of head-room would be lost on all of their values.
    accumulator = builder.accumulator(kernel)
    narrow = accumulator.width < 32 and accumulator.overflow is not Overflow.NEVER
    most = 2.0 ** (min(accumulator.width, 32) - 2)
    while sum(p * 2.0 ** (e - common) for p, e in zip(peaks, exponents, strict=True)) >= most:
        if narrow and common >= max(exponents):
            break
        common += 1
    scale = np.asarray(2.0**common, np.float32)
    terms = tuple(
        Term(o.tensor, o.form, s, z, e - common, np.asarray(sign, np.float32))
        for o, s, z, e, sign in zip(kernel.operands, scales, zeros, exponents, signs, strict=True)
    )
    for term in terms:
        if term.shift:
            builder.rescales.append(
                {"node": kernel.node, "tensor": term.tensor, "from": float(term.scale), "to": float(scale)}
            )
    bound = math.ceil(sum(p * 2.0 ** (e - common) + 1 for p, e in zip(peaks, exponents, strict=True)))
    limit = limit_of(builder, kernel, bound)
    builder.bounds[kernel.output] = bounded(bound, limit)
    output = None
    if kernel.form is Form.RAW:
        builder.raw[kernel.output] = scale
    else:
        output = requantize(builder, kernel, scale, builder.quantizers[kernel.output])
    rounding = Rounding(builder.narrowing(kernel).rounding)
    return Sum(kernel.node, terms, scale, np.float32(0), bound, output, rounding, limit)


def _broadcast_last(builder: PlanBuilder, kernel: Kernel, sign: int) -> tuple[Kernel, Signs]:
    """The operand that is broadcast goes second: the order decides which product is fused first. With the signs."""
    sizes = [math.prod(builder.graph.shapes[o.tensor]) for o in kernel.operands]
    if sizes[0] < sizes[-1]:
        return replace(kernel, operands=kernel.operands[::-1]), (sign, 1)
    return kernel, (1, sign)


def _free_offset(terms: tuple[Term, ...], zero_point: int) -> np.float32:
    """Return z_y - (z_a·r_a + z_b·r_b) as onnxruntime's QLinearAdd forms it: the first product fused with the sum.

    Accumulators have zero point 0, and perhaps a ratio per channel: they add nothing.
    """
    a, b = terms
    second = np.float32(b.zero_point * b.ratio) if b.zero_point else np.float32(0)
    both = intmath.fused_multiply_add(a.zero_point, a.ratio, second) if a.zero_point else second
    return np.float32(np.float32(zero_point) - both)
