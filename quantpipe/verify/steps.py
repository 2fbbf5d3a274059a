"""A step function of whole numbers that never falls is known by its steps: the least argument of each value. Two such
functions are equal everywhere where they are equal on both sides of each step and at both ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify import spec

Ints = NDArray[np.int64]
Function = Callable[[Ints], Ints]
SHOWN = 8


def steps(function: Function, levels: Ints, low: Ints, high: Ints, near: NDArray[np.float64]) -> Ints:
    """The least argument in [low, high] at which a rising function reaches each level (high + 1 where it does not).
    `low`, `high`: `[C, 1]`; `levels`: `[K]`; `near`: where to look first, `[C or 1, K]`."""
    shape = (len(low), len(levels))

    def reached(at: Ints) -> NDArray[np.bool_]:
        return np.asarray((at > high) | ((at >= low) & (function(np.clip(at, low, high)) >= levels)))

    width = 2 + np.abs(near) * 2.0**-21
    begin = np.broadcast_to(np.clip(near - width, low - 1, high).astype(np.int64), shape)
    end = np.broadcast_to(np.clip(near + width, low, high + 1).astype(np.int64) + 1, shape)
    begin = np.where(reached(begin), low - 1, begin)
    end = np.where(reached(end), np.minimum(end, high + 1), high + 1)
    while np.any(end - begin > 1):
        middle = begin + (end - begin) // 2
        up = reached(middle)
        begin, end = np.where(up, begin, middle), np.where(up, middle, end)
    return np.asarray(end)


class Narrowing:
    """A `requantize` entry of plan.json over accumulators in [low, high], `[C]` each."""

    def __init__(self, numbers: Mapping[str, Any], low: Ints, high: Ints) -> None:
        self.numbers = numbers
        rows = max(np.size(numbers["multiplier"]), len(low))
        self.low, self.high = (np.broadcast_to(np.asarray(v, np.int64), (rows,)).reshape(-1, 1) for v in (low, high))
        least, most = (int(v) for v in numbers["range"])
        self.levels = np.arange(least + 1, most + 1, dtype=np.int64)
        factor = np.maximum(np.asarray(numbers["multiplier"], np.float64).reshape(-1, 1), 2.0**-60)
        near = (self.levels - int(numbers["zero_point"]) - 0.5) / factor
        self._near = np.clip(near, -(2.0**60), 2.0**60)
        self.steps = steps(self.specified, self.levels, self.low, self.high, self._near)

    def specified(self, acc: Ints) -> Ints:
        """The specification, clamped to its bounds."""
        return self._clamped(spec.narrowed(self.numbers, acc))

    def _clamped(self, q: Ints) -> Ints:
        return np.clip(q, *(int(v) for v in self.numbers["range"]))

    def points(self) -> Ints:
        """Every accumulator beside a step, and both ends, `[C, N]`."""
        beside = [np.clip(self.steps + offset, self.low, self.high) for offset in (-1, 0)]
        return np.concatenate([*beside, self.low, self.high], axis=1)

    def departures(self) -> dict[str, Any]:
        """What the certificate says of the exact product."""
        count = int(np.sum((self.high - self.low + 1).astype(object)))
        found: dict[str, Any] = {"accumulators": count, "departing": 0, "first": []}
        kind, rounding = self.numbers["kind"], self.numbers["rounding"]
        if kind == "shift" or rounding in ("single", "half_up", "half_away"):
            return found
        whole = steps(
            lambda a: self._clamped(spec.exact(self.numbers, a)), self.levels, self.low, self.high, self._near
        )
        begin, end = np.minimum(self.steps, whole), np.maximum(self.steps, whole)
        named = len(self.low) > 1
        places = np.argwhere(end > begin)[:SHOWN]
        found["first"] = [[int(c) if named else None, int(begin[c, k]), int(end[c, k]) - 1] for c, k in places]
        found["departing"] = int((end - begin).sum())
        return found
