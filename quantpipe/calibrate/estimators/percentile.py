"""percentile: a fixed share of the values is kept, the rest saturates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from quantpipe.calibrate.estimators.legal import legal_range, mirrored
from quantpipe.calibrate.histogram import borders, magnitudes, quantile
from quantpipe.errors import ConfigError
from quantpipe.types import Range, TensorSchema, TensorStats


@dataclass(frozen=True)
class Percentile:
    """The range that holds `p` percent of the values, from the histogram (within one bin, at least one bin wide).

    Symmetric: T = the p-th percentile of |x| (MQBench EMAQuantile, NVIDIA). Otherwise both tails lose (100 - p)/2
    percent (onnxruntime's PercentileCalibrater), except that data of one sign loses all of 100 - p at its far end.
    """

    needs_histogram: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = False

    p: float = 99.99

    def __post_init__(self) -> None:
        if not 0.0 < self.p <= 100.0:
            raise ConfigError(f"percentile p={self.p} keeps nothing or too much; legal: 0 < p <= 100")

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range that keeps `p` percent of the values seen."""
        edges = borders(stats.limit, len(stats.histogram))
        half = len(stats.histogram) // 2
        width = float(edges[-1]) / half
        share = self.p / 100.0
        if mirrored(stats, schema):
            largest = stats.absolute_maximum
            threshold = quantile(magnitudes(stats.histogram), edges[half:], share)
            threshold = min(max(threshold, width), largest)
            return legal_range(-threshold, threshold, stats, schema)
        cut = (1.0 - share) / (1.0 if stats.minimum >= 0.0 or stats.maximum <= 0.0 else 2.0)
        low = quantile(stats.histogram, edges, cut) if stats.minimum < 0.0 else 0.0
        high = quantile(stats.histogram, edges, 1.0 - cut) if stats.maximum > 0.0 else 0.0
        low = float(np.clip(min(low, -width), min(stats.minimum, 0.0), 0.0))
        high = float(np.clip(max(high, width), 0.0, max(stats.maximum, 0.0)))
        return legal_range(low, high, stats, schema)
