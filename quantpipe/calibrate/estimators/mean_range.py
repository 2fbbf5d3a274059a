"""mean_range: the average over batches of the extremes, which forgives single outliers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from quantpipe.calibrate.estimators.legal import legal_range
from quantpipe.types import Range, TensorSchema, TensorStats


@dataclass(frozen=True)
class MeanRange:
    """T = max(|mean over batches of min|, |mean over batches of max|) (symmetric), or those two means (asymmetric).

    Hago's `avg_range`; per batch, not per sample, which its authors found more accurate. It depends on the batch size.
    """

    needs_histogram: ClassVar[bool] = False
    needs_batches: ClassVar[bool] = True

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range between the means of the batches' minima and maxima."""
        low, high = stats.batch_minimum, stats.batch_maximum
        # A tensor of one sign has both means on one side; the magnitude that counts is the larger one.
        return legal_range(min(low, 0.0), max(high, 0.0), stats, schema)
