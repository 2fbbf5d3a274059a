"""The calibration data of a tensor: statistics, never the tensor itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


def _no_batches() -> NDArray[np.float64]:
    return np.zeros((0, 2))


FOLD_BINS = 1024
"""Bins in which the counts of each part of the samples are kept."""


def _no_folds() -> NDArray[np.int64]:
    return np.zeros((0, FOLD_BINS), np.int64)


@dataclass(frozen=True, eq=False)
class ChannelStats:
    """Hold exact statistics per channel along `axis` of an activation, `[C]` float64 each."""

    axis: int
    minimum: NDArray[np.float64] = field(repr=False)
    maximum: NDArray[np.float64] = field(repr=False)
    mean: NDArray[np.float64] = field(repr=False)
    variance: NDArray[np.float64] = field(repr=False)

    @property
    def table(self) -> NDArray[np.float64]:
        """Return the statistics as one table `[C, 4]`: minimum, maximum, mean, variance."""
        return np.stack([self.minimum, self.maximum, self.mean, self.variance], axis=1)

    @classmethod
    def of(cls, axis: int, table: NDArray[np.float64]) -> ChannelStats:
        """Return the statistics of a table `[C, 4]` as `table` gives it."""
        return cls(axis, *np.ascontiguousarray(table.T))


@dataclass(frozen=True, eq=False)
class TensorStats:
    """Hold streamed statistics of one tensor over all calibration samples.

    `histogram` holds int64 counts over `[-limit, +limit]`, an even number of equal bins; zero is a bin border.
    `minimum`, `maximum`, `mean`, `variance` are exact (float64) over the finite elements.
    `batch_minimum`, `batch_maximum` are the means over batches of the batch extremes; `batch_extremes` `[batches, 2]`
    float64 are (min, max) of the last batches, oldest first. A batch is `Graph.batch_size` samples, however the pass
    was cut into runs. `channels`: the same per channel, where it was asked for.
    `folds` `[parts, bins]` holds the counts of parts of the samples over the same limits, in fewer bins; empty where
    they are not known.

    Statistics of extremes alone (`full` is False) have an empty histogram, and NaN for mean and variance. Those from
    elsewhere may lack the batches too, and have a count of 0.
    """

    name: str
    count: int
    minimum: float
    maximum: float
    mean: float
    variance: float
    batch_minimum: float
    batch_maximum: float
    limit: float
    histogram: NDArray[np.int64] = field(repr=False)
    nonfinite: int = 0
    batch_extremes: NDArray[np.float64] = field(default_factory=_no_batches, repr=False)
    channels: ChannelStats | None = field(default=None, repr=False)
    folds: NDArray[np.int64] = field(default_factory=_no_folds, repr=False)

    @property
    def full(self) -> bool:
        """Return whether there is a histogram, mean and variance, or only extremes."""
        return len(self.histogram) > 0

    @property
    def absolute_maximum(self) -> float:
        """Return the maximum observed magnitude, in real units."""
        return max(abs(self.minimum), abs(self.maximum))


@dataclass(frozen=True, eq=False)
class Profile:
    """Hold all tensors' statistics of one calibration run, keyed by tensor name.

    `loaded` is empty for a measured profile; else it names the file and the adjustments made to it.
    """

    model_hash: str
    samples: int
    tensors: dict[str, TensorStats]
    seconds: float = 0.0
    float_pass_seconds: float = 0.0
    peak_rss_mb: float = 0.0
    loaded: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Range:
    """Hold a real interval to be represented, `low <= 0 <= high`, in real units."""

    low: float
    high: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", min(float(self.low), 0.0))
        object.__setattr__(self, "high", max(float(self.high), 0.0))

    @property
    def threshold(self) -> float:
        """Return T = max(|low|, |high|), real units."""
        return max(-self.low, self.high)
