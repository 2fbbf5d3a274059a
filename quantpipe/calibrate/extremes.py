"""Extremes of a stream: over everything, and per batch, from values or from reductions that the runtime made."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.types import TensorStats

KEPT_BATCHES = 4096
"""How many batches' extremes are remembered one by one (the latest), so that memory has a bound."""


@dataclass
class Extremes:
    """Minimum and maximum of a stream of finite values, and of its batches.

    A batch may come in several pieces: `add` each, then `close`. One without any finite value does not count.
    """

    batches: int = 0
    minimum: float = np.inf
    maximum: float = -np.inf
    sum_minimum: float = 0.0
    sum_maximum: float = 0.0
    recent: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=KEPT_BATCHES))
    open_low: float = np.inf
    open_high: float = -np.inf

    def add(self, low: float, high: float) -> None:
        """Include a piece of the current batch."""
        self.open_low, self.open_high = min(self.open_low, low), max(self.open_high, high)

    def close(self) -> None:
        """End the current batch."""
        low, high = self.open_low, self.open_high
        self.open_low, self.open_high = np.inf, -np.inf
        if low > high:
            return
        self.batches += 1
        self.sum_minimum += low
        self.sum_maximum += high
        self.minimum, self.maximum = min(self.minimum, low), max(self.maximum, high)
        self.recent.append((low, high))

    def merge(self, other: Extremes) -> None:
        """Include another stream, which came after this one."""
        self.batches += other.batches
        self.minimum, self.maximum = min(self.minimum, other.minimum), max(self.maximum, other.maximum)
        self.sum_minimum += other.sum_minimum
        self.sum_maximum += other.sum_maximum
        self.recent.extend(other.recent)

    def fields(self) -> dict[str, Any]:
        """Return the part of `TensorStats` that is known here; all zero when nothing was seen."""
        batches = max(self.batches, 1)
        return {
            "minimum": float(self.minimum) if self.batches else 0.0,
            "maximum": float(self.maximum) if self.batches else 0.0,
            "batch_minimum": self.sum_minimum / batches,
            "batch_maximum": self.sum_maximum / batches,
            "batch_extremes": np.asarray(self.recent, np.float64).reshape(-1, 2),
        }

    def state(self) -> dict[str, NDArray[Any]]:
        """Return everything between two batches, as arrays; `restore` takes it back bit for bit."""
        numbers = [self.batches, self.minimum, self.maximum, self.sum_minimum, self.sum_maximum]
        return {"extremes": np.asarray(numbers, np.float64), "recent": np.asarray(self.recent).reshape(-1, 2)}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """Become what `state` was taken from."""
        batches, *numbers = state["extremes"].tolist()
        self.batches = int(batches)
        self.minimum, self.maximum, self.sum_minimum, self.sum_maximum = numbers
        self.recent.clear()
        self.recent.extend((float(low), float(high)) for low, high in state["recent"])


class ExtremesCollector:
    """Statistics of one tensor when only extremes are wanted; they come reduced, never as a tensor."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0
        self.extremes = Extremes()

    def add(self, low: float, high: float, count: int) -> None:
        """Include a piece of the current batch: its extremes (finite) and its number of values."""
        if count:
            self.count += count
            self.extremes.add(low, high)

    def close_batch(self) -> None:
        """End the current batch."""
        self.extremes.close()

    def finish(self) -> TensorStats:
        """Return the statistics so far, without histogram; mean and variance are NaN."""
        found = self.extremes.fields()
        limit = max(-found["minimum"], found["maximum"]) or 1.0
        nothing = np.zeros(0, np.int64)
        return TensorStats(
            name=self.name, count=self.count, mean=np.nan, variance=np.nan, limit=limit, histogram=nothing, **found
        )

    def state(self) -> dict[str, NDArray[Any]]:
        """See `Extremes.state`."""
        return {"count": np.asarray([self.count], np.int64), **self.extremes.state()}

    def restore(self, state: dict[str, NDArray[Any]]) -> None:
        """See `Extremes.restore`."""
        self.count = int(state["count"][0])
        self.extremes.restore(state)
