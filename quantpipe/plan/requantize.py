"""From an accumulator's scale to a stored one: multipliers, shifts, bounds of the result."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.plan.draft import Draft
from quantpipe.types import Kernel, Quantizer, Requantize, RequantizeKind


def requantize(
    draft: Draft,
    kernel: Kernel,
    scale: NDArray[np.float32],
    out: Quantizer,
    zero_first: bool = False,
    clamp: bool = True,
) -> Requantize:
    """How `kernel` stores sums of `scale`, `()` or `[C]`, in `out`; `clamp`: with the limits of swallowed clamps."""
    low, high = limits(kernel, out) if clamp else (out.qmin, out.qmax)
    kind = draft.spec.requantize.kind
    if kind is RequantizeKind.FLOAT_MULTIPLIER:
        multiplier = np.asarray(scale / out.scale, np.float32)
        return Requantize(kind, multiplier, 0, out.zero_point, low, high, zero_first)
    shift = exponent_of(out.scale, kernel.node) - exponent_of(scale, kernel.node)
    if shift > draft.spec.requantize.max_shift:
        raise HardwareError(
            f"needs a right shift by {shift}, the device shifts by at most {draft.spec.requantize.max_shift}; "
            "its weights or inputs are too small for their threshold",
            stage="plan",
            where=kernel.node,
        )
    return Requantize(kind, np.asarray(2.0**-shift, np.float32), shift, out.zero_point, low, high)


def limits(kernel: Kernel, out: Quantizer) -> tuple[int, int]:
    """Bounds of q: the bits' own, narrowed by the clamps that the kernel swallowed."""
    low, high = (steps_of(b, float(out.scale)) for b in kernel.bounds)
    q_low = out.qmin if low is None else min(max(out.qmin, low + out.zero_point), out.qmax)
    q_high = out.qmax if high is None else max(min(out.qmax, high + out.zero_point), out.qmin)
    return q_low, q_high


def exponent_of(scale: NDArray[np.float32], node: str) -> int:
    """k of a scale 2^k. Raises HardwareError when it is not a power of two."""
    mantissa, exponent = math.frexp(float(scale))
    if mantissa != 0.5:
        raise HardwareError(f"the scale {float(scale)!r} is not a power of two", stage="plan", where=node)
    return exponent - 1


def steps_of(bound: float, scale: float) -> int | None:
    """A real clamp bound in integer steps, or None when it is infinite."""
    return int(intmath.round_real(bound / scale)) if math.isfinite(bound) else None
