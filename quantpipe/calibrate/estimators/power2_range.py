"""power2_range: the largest magnitude, rounded up to a power of two."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from quantpipe.calibrate.estimators.legal import legal_range
from quantpipe.types import Range, TensorSchema, TensorStats


@dataclass(frozen=True)
class Power2Range:
    """T = 2^ceil(log2 max|x|), 1 for a tensor of zeros. RFC `power2_range` (its text says nearest, its code rounds up).

    With `denominator: range` the scale T/2^(b-1) is a power of two as well. An asymmetric range never exceeds the
    observed one, so there this equals max_range; use the schema's `power_of_two` to get such scales.
    """

    needs_histogram: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range up to the power of two at or above the largest magnitude."""
        threshold = _power_above(stats.absolute_maximum)
        return legal_range(-threshold if stats.minimum < 0.0 else 0.0, threshold, stats, schema)


def _power_above(x: float) -> float:
    """Return 2^ceil(log2 x), exactly; 1 for 0."""
    if x == 0.0:
        return 1.0
    mantissa, exponent = math.frexp(x)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))
