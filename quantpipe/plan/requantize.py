"""Bring an accumulator's scale to a stored one: multipliers, shifts, bounds of the result."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.plan.builder import PlanBuilder
from quantpipe.types import (
    MULTIPLIER_BITS,
    DType,
    FixedPoint,
    FixedRounding,
    Kernel,
    Quantizer,
    Requantize,
    RequantizeKind,
)


def requantize(
    builder: PlanBuilder,
    kernel: Kernel,
    scale: NDArray[Any],
    out: Quantizer,
    *,
    zero_first: bool = False,
    clamp: bool = True,
) -> Requantize:
    """Return how `kernel` stores sums in `out`.

    `scale`: real units per step of the sums, `()` or `[C]`. Raises HardwareError where the device cannot express the
    multiplier.
    """
    low, high = limits(kernel, out) if clamp else (out.qmin, out.qmax)
    own = channel_limits(kernel, out) if clamp else None
    how = builder.narrowing(kernel)
    kind, rounding = how.kind, how.rounding
    if kind is RequantizeKind.FLOAT_MULTIPLIER:
        multiplier = np.asarray(np.asarray(scale, np.float32) / out.scale, np.float32)
        first = zero_first if how.zero_first is None else how.zero_first
        return Requantize(kind, multiplier, 0, out.zero_point, low, high, first, rounding, None, own)
    if kind is RequantizeKind.FIXED_POINT:
        fixed = fixed_point(builder, kernel, _ratio(scale, out, single=how.single_ratio))
        fixed = replace(fixed, single_ratio=how.single_ratio)
        return Requantize(kind, real_of(fixed), 0, out.zero_point, low, high, False, rounding, fixed, own)
    shift = exponent_of(out.scale, kernel.node) - exponent_of(scale, kernel.node)
    _check_shift(builder, kernel, shift)
    multiplier = np.asarray(2.0**-shift, np.float32)
    return Requantize(kind, multiplier, shift, out.zero_point, low, high, False, rounding, None, own)


def _ratio(scale: NDArray[Any], out: Quantizer, *, single: bool) -> NDArray[np.float64]:
    """How many steps of the result a step of the sums is, computed in float64, or in float32 as some runtimes do."""
    if single:
        return np.asarray(np.asarray(scale, np.float32) / np.float32(out.scale), np.float64)
    return np.asarray(np.asarray(scale, np.float64) / np.float64(out.scale))


def fixed_point(builder: PlanBuilder, kernel: Kernel, real: NDArray[np.float64]) -> FixedPoint:
    """Return a real multiplier, `()` or `[C]`, as Q31 multipliers and shifts (TFLite's QuantizeMultiplier).

    `real`: the multipliers, `()` or `[C]`. Raises HardwareError for a multiplier that the device cannot hold.
    """
    multiplier, shift = intmath.quantize_multipliers(real)
    _check_shift(builder, kernel, int(np.max(-shift)))
    return narrowed(builder, kernel, FixedPoint(multiplier, shift))


def narrowed(builder: PlanBuilder, kernel: Kernel, fixed: FixedPoint) -> FixedPoint:
    """Return a multiplier of 31 bits with as many as the device's has."""
    how = builder.narrowing(kernel)
    bits = how.multiplier_bits
    if bits == MULTIPLIER_BITS:
        return fixed
    multiplier, rest = intmath.narrow_multiplier(fixed.multiplier, bits), MULTIPLIER_BITS - bits
    if how.rounding is FixedRounding.DOUBLE or int(np.max(fixed.shift)) >= bits:  # nothing would be shifted right
        return FixedPoint(multiplier << rest, fixed.shift, bits)
    return FixedPoint(multiplier, fixed.shift + rest, bits)


def refuse_wide_products(kernel: Kernel, output: Requantize | None, bound: int) -> None:
    """Reject sums that cannot be multiplied by the device's fixed-point numbers in 64 bits.

    `output`: how its sums are narrowed; None: they are passed on. Raises HardwareError for sums beyond int32 that are
    rounded twice, or whose product does not fit int64.
    """
    if output is None or output.fixed is None or bound <= DType.INT32.qmax:
        return
    double = output.rounding is FixedRounding.DOUBLE
    room = 62 - int(np.max(output.fixed.multiplier)).bit_length()
    if double or bound.bit_length() > room:
        legal = "int32 sums" if double else f"sums of {room} bits"
        raise HardwareError(
            f"its sums may reach {bound}; its fixed-point multiplication takes {legal}: give its inputs or weights "
            "fewer bits",
            stage="plan",
            where=kernel.node,
        )


def shared_among(builder: PlanBuilder, kernel: Kernel, real: np.float64, count: int) -> FixedPoint:
    """Return the multiplier of sums of `count` elements, from that of a single one.

    TFLite's MEAN divides the multiplier, which it first shifts left by as many bits as the count has, and drops the
    rest: M' = floor(M · 2^b / n), b = floor(log2 n).
    """
    multiplier, shift = intmath.quantize_multiplier(float(real))
    bits = min(count.bit_length() - 1, 31 + shift)
    fixed = FixedPoint(np.asarray((multiplier << bits) // count, np.int64), np.asarray(shift - bits, np.int64))
    return narrowed(builder, kernel, fixed)


def real_of(fixed: FixedPoint) -> NDArray[np.float32]:
    """Return what a fixed-point number stands for, to the nearest float32."""
    return np.asarray(fixed.multiplier * np.exp2(fixed.shift - 31.0), np.float32)


def _check_shift(builder: PlanBuilder, kernel: Kernel, shift: int) -> None:
    most = builder.narrowing(kernel).max_shift
    if shift > most:
        raise HardwareError(
            f"needs a right shift by {shift}, the device shifts by at most {most}; "
            "its weights or inputs are too small for their threshold",
            stage="plan",
            where=kernel.node,
        )


def limits(kernel: Kernel, out: Quantizer) -> tuple[int, int]:
    """Return the bounds of q: the bits' own, narrowed by the clamps that the kernel swallowed."""
    low, high = (steps_of(b, float(out.scale)) for b in kernel.bounds)
    q_low = out.qmin if low is None else min(max(out.qmin, low + out.zero_point), out.qmax)
    q_high = out.qmax if high is None else max(min(out.qmax, high + out.zero_point), out.qmin)
    return q_low, q_high


def channel_limits(kernel: Kernel, out: Quantizer) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Return the bounds of q per channel, where the swallowed clamps have such."""
    if kernel.channel_bounds is None:
        return None
    low, high = (np.asarray(b, np.float64) / float(out.scale) for b in kernel.channel_bounds)
    steps = [intmath.round_real(np.clip(b, out.low, out.high)).astype(np.int64) + out.zero_point for b in (low, high)]
    return steps[0], steps[1]


def exponent_of(scale: NDArray[Any], node: str) -> int:
    """Return k of a scale 2^k.

    Raises HardwareError where the scale is not a power of two.
    """
    mantissa, exponent = math.frexp(float(scale))
    if mantissa != 0.5:
        raise HardwareError(f"the scale {float(scale)!r} is not a power of two", stage="plan", where=node)
    return exponent - 1


def steps_of(bound: float, scale: float) -> int | None:
    """Return a real clamp bound in integer steps, or None when it is infinite."""
    return int(intmath.round_real(bound / scale)) if math.isfinite(bound) else None
