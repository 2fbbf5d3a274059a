"""Streaming statistics of one tensor: batches go in, `TensorStats` come out, memory stays constant."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.histogram import CHUNK, LARGEST, SignedHistogram
from quantpipe.types import TensorStats


@dataclass
class Moments:
    """Count, mean and sum of squared deviations of a stream, float64 (Chan, Golub, LeVeque 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: NDArray[Any]) -> None:
        """Include a non-empty 1-D array of finite values: two exact passes over it, then a merge."""
        deviations = values.astype(np.float64)
        mean = float(deviations.sum()) / values.size
        deviations -= mean
        # einsum, not dot: BLAS would start threads for every chunk.
        self.merge(Moments(values.size, mean, float(np.einsum("i,i->", deviations, deviations))))

    def merge(self, other: Moments) -> None:
        """Include another stream: M2 = M2a + M2b + d²·na·nb/(na + nb), d the difference of the means."""
        total = self.count + other.count
        if total == 0:
            return
        difference = other.mean - self.mean
        self.squares += other.squares + difference * difference * (self.count * other.count / total)
        self.mean += difference * (other.count / total)
        self.count = total


class StatsCollector:
    """Statistics of one tensor over any number of batches; its state has one size for ever.

    Values that float32 cannot hold as finite numbers (NaN, infinities, float64 beyond float32) are counted apart and
    otherwise left out; `first_nonfinite` is the index of the first sample that has one, or None.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.batches = 0
        self.nonfinite = 0
        self.first_nonfinite: int | None = None
        self.minimum, self.maximum = np.inf, -np.inf
        self.sum_batch_minimum = self.sum_batch_maximum = 0.0
        self.moments = Moments()
        self.histogram = SignedHistogram()

    def update(self, array: NDArray[Any], first_sample: int) -> None:
        """Include one batch: any shape, any real dtype; axis 0 counts samples from `first_sample` on."""
        values = _flat(array)
        if values.size == 0:
            return
        low, high = _extremes(values)
        if not (low >= -LARGEST and high <= LARGEST):  # false for NaN, too
            values = self._finite(array, values, first_sample)
            if values.size == 0:
                return
            low, high = _extremes(values)
        self.batches += 1
        self.sum_batch_minimum += low
        self.sum_batch_maximum += high
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        self.histogram.cover(max(-low, high))
        for chunk in _chunks(values):
            self.moments.add(chunk)
            self.histogram.add(chunk)

    def _finite(self, array: NDArray[Any], values: NDArray[Any], first_sample: int) -> NDArray[Any]:
        with np.errstate(invalid="ignore"):
            finite = np.abs(values) <= LARGEST
        self.nonfinite += int(values.size - np.count_nonzero(finite))
        if self.first_nonfinite is None:
            per_sample = values.size // array.shape[0] if array.ndim else values.size
            self.first_nonfinite = first_sample + int(np.argmin(finite)) // per_sample
        return np.asarray(values[finite])

    def merge(self, other: StatsCollector) -> None:
        """Include what another collector of the same tensor saw (another worker's share of the samples)."""
        self.batches += other.batches
        self.nonfinite += other.nonfinite
        seen = [i for i in (self.first_nonfinite, other.first_nonfinite) if i is not None]
        self.first_nonfinite = min(seen, default=None)
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        self.sum_batch_minimum += other.sum_batch_minimum
        self.sum_batch_maximum += other.sum_batch_maximum
        self.moments.merge(other.moments)
        self.histogram.merge(other.histogram)

    def finish(self) -> TensorStats:
        """The statistics so far, over the finite values (`count` of them); all zero when there were none.

        `variance` is the population's (divided by count). A tensor of zeros gets limit 1.
        """
        count, batches = self.moments.count, max(self.batches, 1)
        return TensorStats(
            name=self.name,
            count=count,
            minimum=float(self.minimum) if count else 0.0,
            maximum=float(self.maximum) if count else 0.0,
            mean=self.moments.mean,
            variance=self.moments.squares / count if count else 0.0,
            batch_minimum=self.sum_batch_minimum / batches,
            batch_maximum=self.sum_batch_maximum / batches,
            limit=1.0 if self.histogram.limit is None else self.histogram.limit,
            histogram=self.histogram.counts.copy(),
            nonfinite=self.nonfinite,
        )


def merge(a: StatsCollector, b: StatsCollector) -> StatsCollector:
    """What one collector would hold after both streams; neither argument is changed."""
    merged = StatsCollector(a.name)
    merged.merge(a)
    merged.merge(b)
    return merged


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """All values as one contiguous axis, float32 or float64 (other types: whichever holds them)."""
    values = np.asarray(array).reshape(-1)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
    return np.asarray(np.ascontiguousarray(values))


def _chunks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (values[i : i + CHUNK] for i in range(0, values.size, CHUNK))


def _extremes(values: NDArray[Any]) -> tuple[float, float]:
    """(min, max), chunk by chunk so that memory is read once; NaN when any value is."""
    pairs = [(chunk.min(), chunk.max()) for chunk in _chunks(values)]
    lows, highs = np.asarray(pairs, dtype=np.float64).T
    return float(lows.min()), float(highs.max())
