"""From an accumulator's scale to a stored one: multipliers, shifts, bounds of the result."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.plan.builder import PlanBuilder
from quantpipe.types import FixedPoint, Kernel, Quantizer, Requantize, RequantizeKind


def requantize(
    draft: PlanBuilder,
    kernel: Kernel,
    scale: NDArray[Any],
    out: Quantizer,
    *,
    zero_first: bool = False,
    clamp: bool = True,
) -> Requantize:
    """How `kernel` stores sums of `scale`, `()` or `[C]`, in `out`; `clamp`: with the limits of swallowed clamps."""
    low, high = limits(kernel, out) if clamp else (out.qmin, out.qmax)
    own = channel_limits(kernel, out) if clamp else None
    kind, rounding = draft.spec.requantize.kind, draft.spec.requantize.rounding
    if kind is RequantizeKind.FLOAT_MULTIPLIER:
        multiplier = np.asarray(np.asarray(scale, np.float32) / out.scale, np.float32)
        return Requantize(kind, multiplier, 0, out.zero_point, low, high, zero_first, rounding, None, own)
    if kind is RequantizeKind.FIXED_POINT:
        fixed = fixed_point(draft, kernel, np.asarray(scale, np.float64) / np.float64(out.scale))
        return Requantize(kind, real_of(fixed), 0, out.zero_point, low, high, False, rounding, fixed, own)
    shift = exponent_of(out.scale, kernel.node) - exponent_of(scale, kernel.node)
    _check_shift(draft, kernel, shift)
    multiplier = np.asarray(2.0**-shift, np.float32)
    return Requantize(kind, multiplier, shift, out.zero_point, low, high, False, rounding, None, own)


def fixed_point(draft: PlanBuilder, kernel: Kernel, real: NDArray[np.float64]) -> FixedPoint:
    """A real multiplier, `()` or `[C]`, as Q31 multipliers and shifts (TFLite's QuantizeMultiplier)."""
    multiplier, shift = intmath.quantize_multipliers(real)
    _check_shift(draft, kernel, int(np.max(-shift)))
    return FixedPoint(multiplier, shift)


def real_of(fixed: FixedPoint) -> NDArray[np.float32]:
    """What a fixed-point number stands for, to the nearest float32."""
    return np.asarray(fixed.multiplier * np.exp2(fixed.shift - 31.0), np.float32)


def _check_shift(draft: PlanBuilder, kernel: Kernel, shift: int) -> None:
    if shift > draft.spec.requantize.max_shift:
        raise HardwareError(
            f"needs a right shift by {shift}, the device shifts by at most {draft.spec.requantize.max_shift}; "
            "its weights or inputs are too small for their threshold",
            stage="plan",
            where=kernel.node,
        )


def limits(kernel: Kernel, out: Quantizer) -> tuple[int, int]:
    """Bounds of q: the bits' own, narrowed by the clamps that the kernel swallowed."""
    low, high = (steps_of(b, float(out.scale)) for b in kernel.bounds)
    q_low = out.qmin if low is None else min(max(out.qmin, low + out.zero_point), out.qmax)
    q_high = out.qmax if high is None else max(min(out.qmax, high + out.zero_point), out.qmin)
    return q_low, q_high


def channel_limits(kernel: Kernel, out: Quantizer) -> tuple[NDArray[np.int64], NDArray[np.int64]] | None:
    """Bounds of q per channel, where the swallowed clamps have such."""
    if kernel.channel_bounds is None:
        return None
    low, high = (np.asarray(b, np.float64) / float(out.scale) for b in kernel.channel_bounds)
    steps = [intmath.round_real(np.clip(b, out.low, out.high)).astype(np.int64) + out.zero_point for b in (low, high)]
    return steps[0], steps[1]


def exponent_of(scale: NDArray[Any], node: str) -> int:
    """Return k of a scale 2^k.

    Raises:
        HardwareError: where the scale is not a power of two.
    """
    mantissa, exponent = math.frexp(float(scale))
    if mantissa != 0.5:
        raise HardwareError(f"the scale {float(scale)!r} is not a power of two", stage="plan", where=node)
    return exponent - 1


def steps_of(bound: float, scale: float) -> int | None:
    """A real clamp bound in integer steps, or None when it is infinite."""
    return int(intmath.round_real(bound / scale)) if math.isfinite(bound) else None
