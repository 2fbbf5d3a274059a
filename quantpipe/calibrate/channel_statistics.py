"""Streaming statistics of every channel of an activation."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.types import ChannelStats


class ChannelCollector:
    """Exact minimum, maximum, mean and variance per channel of a stream of arrays; float64, one size for ever."""

    def __init__(self, axis: int) -> None:
        self.axis = axis
        self.count = 0
        empty = np.zeros(0)
        self.minimum = self.maximum = self.mean = self.squares = empty

    def update(self, array: NDArray[Any]) -> None:
        """Include one array `[N, …]` of finite values, sample by sample."""
        for sample in array:
            rows = np.moveaxis(sample, self.axis - 1, 0)
            rows = rows.reshape(len(rows), -1).astype(np.float64)
            if rows.shape[1]:
                low, high = rows.min(axis=1), rows.max(axis=1)  # before the rows are centred in their place
                mean, squares = _moments(rows)
                self._merge(rows.shape[1], low, high, mean, squares=squares)

    def _merge(self, count: int, low: Any, high: Any, mean: Any, *, squares: Any) -> None:
        """Merge as in Chan, Golub, LeVeque 1979, and in `Moments.merge`, for every channel."""
        if self.count == 0:
            self.count, self.minimum, self.maximum, self.mean, self.squares = count, low, high, mean, squares
            return
        total, difference = self.count + count, mean - self.mean
        self.squares = self.squares + squares + difference**2 * (self.count * count / total)
        self.mean = self.mean + difference * (count / total)
        self.minimum, self.maximum = np.minimum(self.minimum, low), np.maximum(self.maximum, high)
        self.count = total

    def finish(self) -> ChannelStats:
        """Return the statistics so far; `variance` is the population's."""
        variance = self.squares / max(self.count, 1)
        return ChannelStats(self.axis, self.minimum, self.maximum, self.mean, variance)

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything, as arrays; `restore` takes it back bit for bit."""
        table = np.stack([self.minimum, self.maximum, self.mean, self.squares])
        return {"channel_count": np.asarray([self.count], np.int64), "channels": table}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Become what `state` was taken from."""
        self.count = int(state["channel_count"][0])
        self.minimum, self.maximum, self.mean, self.squares = state["channels"]


def _moments(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return mean and sum of squared deviations of each row; changes the rows."""
    mean = rows.mean(axis=1)
    rows -= mean[:, None]
    return mean, np.einsum("ij,ij->i", rows, rows)
