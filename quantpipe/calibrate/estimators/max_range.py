"""max_range: nothing saturates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quantpipe.calibrate.estimators.legal import legal_range
from quantpipe.types import Range, TensorSchema, TensorStats


@dataclass(frozen=True)
class MaxRange:
    """T = max|x| (symmetric), or [min(0, min x), max(0, max x)] (asymmetric). RFC `max_range`, TFLite, Glow."""

    needs_histogram: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = False

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range between the minimum and the maximum seen."""
        return legal_range(stats.minimum, stats.maximum, stats, schema)
