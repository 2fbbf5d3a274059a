"""Estimators that begin with the range of another one, and read the statistics that it reads."""

from __future__ import annotations

from quantpipe.calibrate.estimators.legal import Estimator
from quantpipe.types import Range, TensorSchema, TensorStats


class OverBase:
    """Give the range of `base`, an estimator, which others then change."""

    base: Estimator

    @property
    def needs_histogram(self) -> bool:
        """Return whether the base reads the histogram."""
        return self.base.needs_histogram

    @property
    def needs_batches(self) -> bool:
        """Return whether the base reads the extremes of each batch."""
        return self.base.needs_batches

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the base's range."""
        return self.base(stats, bits, schema)
