"""Streaming statistics of one tensor: batches go in, `TensorStats` come out, memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.channel_statistics import ChannelCollector
from quantpipe.calibrate.extremes import Extremes
from quantpipe.calibrate.histogram import CHUNK, FOLDS, LARGEST, SignedHistogram
from quantpipe.types import TensorStats
from quantpipe.types.statistics import FOLD_BINS


@dataclass
class StreamMoments:
    """Count, mean and sum of squared deviations of a stream, float64 (Chan, Golub, LeVeque 1979)."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def add(self, values: NDArray[Any]) -> None:
        """Include a non-empty 1-D array of finite values: two exact passes over them, then a merge."""
        deviations = values.astype(np.float64)
        mean = float(deviations.sum()) / values.size
        deviations -= mean
        # einsum, not dot: BLAS would start threads for every chunk.
        self.merge(StreamMoments(values.size, mean, float(np.einsum("i,i->", deviations, deviations))))

    def merge(self, other: StreamMoments) -> None:
        """Include another stream: M2 = M2a + M2b + d²·na·nb/(na + nb), d the difference of the means."""
        total = self.count + other.count
        if total == 0:
            return
        difference = other.mean - self.mean
        self.squares += other.squares + difference * difference * (self.count * other.count / total)
        self.mean += difference * (other.count / total)
        self.count = total


class StatsCollector:
    """Statistics of one tensor over any number of batches; its state is bounded, however many come.

    Values that float32 cannot hold as finite numbers (NaN, infinities, float64 beyond float32) are counted apart and
    otherwise left out. `first_nonfinite` is the index of the first sample that has one, or None. `channel_axis`: also
    gather the exact statistics of each channel along this axis (of tensors without such values). `most`: at most so
    many values of each sample, evenly spread, go into histogram, mean and variance (None: all); extremes cover all.
    """

    def __init__(self, name: str, channel_axis: int | None = None, most: int | None = None) -> None:
        self.name = name
        self._most = most
        self.nonfinite = 0
        self.first_nonfinite: int | None = None
        self.extremes = Extremes()
        self.moments = StreamMoments()
        self.histogram = SignedHistogram()
        self.channels = None if channel_axis is None else ChannelCollector(channel_axis)

    def update(self, array: NDArray[Any], first_sample: int, *, batch_ends: bool = True) -> None:
        """Include an array of any shape; values that are not finite are counted and left out.

        Axis 0 counts samples, the first of which errors name `first_sample`. `batch_ends=False`: the next call
        continues the same batch.
        """
        self._include(array, first_sample)
        if batch_ends:
            self.close_batch()

    def close_batch(self) -> None:
        """End the current batch."""
        self.extremes.close()

    def _include(self, array: NDArray[Any], first_sample: int) -> None:
        values = _flat(array)
        if values.size == 0:
            return
        low, high = _extremes(values)
        finite = low >= -LARGEST and high <= LARGEST  # false for NaN, too
        if not finite:
            values = self._finite(array, values, first_sample)
            if values.size == 0:
                return
            low, high = _extremes(values)
        elif self.channels is not None:
            self.channels.update(array)
        self.extremes.add(low, high)
        self.histogram.cover(max(-low, high))
        if self._most is not None:
            values = np.ascontiguousarray(values[:: _stride(array, self._most)])
        for chunk in _chunks(values):
            self.moments.add(chunk)
        for fold, part in _folds(values, array.shape[0] if array.ndim else 1, first_sample):
            for chunk in _chunks(part):
                self.histogram.add(chunk, fold)

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
        self.nonfinite += other.nonfinite
        seen = [i for i in (self.first_nonfinite, other.first_nonfinite) if i is not None]
        self.first_nonfinite = min(seen, default=None)
        self.extremes.merge(other.extremes)
        self.moments.merge(other.moments)
        self.histogram.merge(other.histogram)

    def finish(self) -> TensorStats:
        """Return the statistics so far, over the finite values (`count` of them); all zero when there were none.

        `variance` is the population's (divided by count). A tensor of zeros gets limit 1.
        """
        count = self.moments.count
        return TensorStats(
            name=self.name,
            count=count,
            mean=self.moments.mean,
            variance=self.moments.squares / count if count else 0.0,
            limit=1.0 if self.histogram.limit is None else self.histogram.limit,
            histogram=self.histogram.counts,
            folds=self.histogram.folds.reshape(FOLDS, FOLD_BINS, -1).sum(axis=2),
            nonfinite=self.nonfinite,
            channels=self.channels.finish() if self.channels is not None and self.channels.count else None,
            **self.extremes.fields(),
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything between two batches of finite values, as arrays; `restore` takes it back bit for bit."""
        channels = {} if self.channels is None or not self.channels.count else self.channels.state()
        limit = np.nan if self.histogram.limit is None else self.histogram.limit
        return {
            **self.extremes.state(),
            **channels,
            "count": np.asarray([self.moments.count], np.int64),
            "moments": np.asarray([self.moments.mean, self.moments.squares, limit], np.float64),
            "counts": self.histogram.folds,
        }

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Become what `state` was taken from."""
        mean, squares, limit = state["moments"].tolist()
        self.extremes.restore(state)
        self.moments = StreamMoments(int(state["count"][0]), mean, squares)
        self.histogram.folds = np.asarray(state["counts"], np.int64)
        self.histogram.limit = None if np.isnan(limit) else limit
        if self.channels is not None and "channels" in state:
            self.channels.restore(state)


def merge(a: StatsCollector, b: StatsCollector) -> StatsCollector:
    """Return the state of one collector after both streams; neither argument is changed."""
    merged = StatsCollector(a.name)
    merged.merge(a)
    merged.merge(b)
    return merged


def _flat(array: NDArray[Any]) -> NDArray[Any]:
    """Return all values as one contiguous axis, float32 or float64 (other types: whichever holds them)."""
    values = np.asarray(array).reshape(-1)
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float32 if values.dtype == np.float16 else np.float64)
    return np.asarray(np.ascontiguousarray(values))


def _stride(array: NDArray[Any], most: int) -> int:
    """Return the n of "every n-th value" that leaves at most `most` values of a sample (axis 0).

    It has no factor in common with any axis, so that it meets every channel and every place.
    """
    size = array.size // array.shape[0] if array.ndim else array.size
    stride = max(1, -(-size // most))
    while gcd(stride, size) != 1:
        stride += 1
    return stride


def _folds(values: NDArray[Any], samples: int, first_sample: int) -> Iterator[tuple[int, NDArray[Any]]]:
    """Yield the values of some samples in parts, each with the number of its fold: every fourth sample is of one.

    The values of a sample follow one another; values that fit no sample are all of the first sample's fold.
    """
    each, rest = divmod(values.size, samples)
    if rest or not each:
        yield first_sample % FOLDS, values
        return
    step = max(samples // FOLDS, 1)
    for number, begin in enumerate(range(0, samples, step)):
        fold = (number if step > 1 else first_sample + begin) % FOLDS
        yield fold, values[begin * each : min(begin + step, samples) * each]


def _chunks(values: NDArray[Any]) -> Iterator[NDArray[Any]]:
    return (values[i : i + CHUNK] for i in range(0, values.size, CHUNK))


def _extremes(values: NDArray[Any]) -> tuple[float, float]:
    """Return (min, max), chunk by chunk so that memory is read once; NaN when any value is."""
    pairs = [(chunk.min(), chunk.max()) for chunk in _chunks(values)]
    lows, highs = np.asarray(pairs, dtype=np.float64).T
    return float(lows.min()), float(highs.max())
