"""Decide where float32 values, rounded by QONNX's nodes, are exactly the plan's, and where they are not."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.types import QuantPlan, Requantize, RequantizeKind, Rounding

EXACT = 1 << 22
"""Sums below it, in steps, are exact in float32 with two bits behind the point, which say where a half goes."""
IN_REALS = "float values are between the integers"
OFFSET = "zero points are added before the rounding"
LONG = "sums beyond the integers of float32"

Scale = NDArray[np.float32] | np.float32


@dataclass(frozen=True)
class QonnxNarrowing:
    """Describe how a float result becomes integers.

    `rounding`: The rounding of the node; ties never go up, they are moved beforehand. `raised`: A quarter of a step is
    added beforehand, so that ties go up. `shift`: By how many bits Trunc cuts; 0 elsewhere. `reason`: Why the integers
    may differ from the plan's; None where they do not.
    """

    rounding: Rounding = Rounding.HALF_EVEN
    raised: bool = False
    shift: int = 0
    reason: str | None = None


NEAREST = QonnxNarrowing()


def is_binary(plan: QuantPlan) -> bool:
    """Return whether all scales of a plan are powers of two."""
    scales = [np.asarray(q.scale).reshape(-1) for q in plan.quantizers.values()]
    scales += [w.scale.reshape(-1) for w in plan.weights.values()]
    return bool(np.all(np.frexp(np.concatenate(scales))[0] == 0.5)) if scales else True


def narrowing_of(binary: bool, output: Requantize, bound: int) -> QonnxNarrowing:
    """Return how a result is narrowed.

    `binary`: all scales are powers of two. `bound` is the largest magnitude of the result in its own steps.
    """
    if output.kind is RequantizeKind.FIXED_POINT or not binary:
        return QonnxNarrowing(reason=IN_REALS)
    shift, rounding = output.shift, Rounding(output.rounding)
    if output.kind is RequantizeKind.FLOAT_MULTIPLIER:
        shift = max(1, -int(np.min(np.frexp(output.multiplier)[1])) + 1)
    moved = bound + (abs(output.zero_point) << max(shift, 0))
    reason = LONG if moved >= EXACT else None
    if output.kind is RequantizeKind.SHIFT and shift <= 0:
        return QonnxNarrowing(reason=reason)
    if rounding is Rounding.HALF_UP:
        return QonnxNarrowing(raised=True, reason=reason)
    if rounding is Rounding.FLOOR:
        cut = output.kind is RequantizeKind.SHIFT
        return QonnxNarrowing(rounding if cut else Rounding.HALF_EVEN, shift=shift if cut else 0,
                         reason=reason if cut else IN_REALS)  # fmt: skip
    odd = output.zero_point % 2 if rounding is Rounding.HALF_EVEN else output.zero_point
    if odd and not output.zero_first:
        reason = reason or OFFSET
    return QonnxNarrowing(rounding, reason=reason)


def term_of(binary: bool, rounding: Rounding, shift: int) -> QonnxNarrowing:
    """Return how an operand of an addition is brought to a coarser common scale, by a right shift."""
    if not binary:
        return QonnxNarrowing(reason=IN_REALS)
    if rounding is Rounding.HALF_UP:
        return QonnxNarrowing(raised=True)
    return QonnxNarrowing(rounding, shift=shift if rounding is Rounding.FLOOR else 0)
