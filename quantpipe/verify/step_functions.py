"""Compare step functions of integers that never fall.

Such a function is known by its steps: the smallest argument of each value. Two are equal everywhere if they are equal
on both sides of each step and at both ends.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify import spec
from quantpipe.verify.files import expect

Ints = NDArray[np.int64]
Function = Callable[[Ints], Ints]
SHOWN = 8
BLOCK = 1 << 16
"""Steps that are held at once."""
MOST_STEPS = 1 << 22
"""Steps of all channels up to which the certificate counts departures."""
MOST_LEVELS = 1 << 16
"""Integers that a result of a requantization may have."""
THINNED = 256
"""Steps of each channel that are looked at where the ops themselves say that they are the specification's."""
BY_CHANNEL = ("multiplier", "q31", "left_shift")


def steps(function: Function, levels: Ints, low: Ints, high: Ints, *, near: NDArray[np.float64]) -> Ints:
    """Return the smallest argument in [low, high] at which a rising function reaches each level.

    `function`: the function, of arguments `[C, K]`. `levels`: the levels, `[K]`. `low`: minimum argument, `[C, 1]`.
    `high`: largest argument, `[C, 1]`. `near`: where to look first, `[C or 1, K]`. Returns the arguments, `[C, K]`;
    high + 1 where a level is not reached.
    """
    shape = (len(low), len(levels))
    found = np.broadcast_to(np.clip(np.ceil(near), low, high + 1).astype(np.int64), shape).copy()
    reached = _reached(function, levels, low, high)
    settled = reached(found) & ~reached(found - 1)
    others = np.flatnonzero(~settled.all(axis=0))  # all that are looked for are few, most of the time
    if others.size:
        few = np.broadcast_to(near, (len(near), len(levels)))[:, others]
        found[:, others] = _bisected(_reached(function, levels[others], low, high), low, high, near=few)
    return found


def _reached(function: Function, levels: Ints, low: Ints, high: Ints) -> Callable[[Ints], NDArray[np.bool_]]:
    def reached(at: Ints) -> NDArray[np.bool_]:
        return np.asarray((at > high) | ((at >= low) & (function(np.clip(at, low, high)) >= levels)))

    return reached


def _bisected(
    reached: Callable[[Ints], NDArray[np.bool_]], low: Ints, high: Ints, *, near: NDArray[np.float64]
) -> Ints:
    """The smallest arguments in [low, high + 1] that reach their levels, `[C, K]`."""
    shape = (len(low), near.shape[1])
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


class ClaimedNarrowing:
    """A `requantize` entry of plan.json over accumulators in [low, high], `[C]` each, at some levels or at all."""

    def __init__(self, numbers: Mapping[str, Any], low: Ints, high: Ints, *, levels: Ints | None = None) -> None:
        self.numbers = numbers
        rows = max(np.size(numbers["multiplier"]), len(low))
        self.low, self.high = (np.broadcast_to(np.asarray(v, np.int64), (rows,)).reshape(-1, 1) for v in (low, high))
        least, most = (int(v) for v in numbers["range"])
        expect(most - least < MOST_LEVELS, "plan.json", f"a result is clamped to {least}, {most}: too many integers")
        self.levels = np.arange(least + 1, most + 1, dtype=np.int64) if levels is None else levels

    @cached_property
    def _near(self) -> NDArray[np.float64]:
        """About where the steps are, `[C or 1, K]`."""
        factor = np.maximum(np.asarray(self.numbers["multiplier"], np.float64).reshape(-1, 1), 2.0**-60)
        near = (self.levels - int(self.numbers["zero_point"]) - 0.5) / factor
        return np.asarray(np.clip(near, -(2.0**60), 2.0**60))

    @property
    def many(self) -> bool:
        """Return whether there are more steps in all channels than are counted."""
        return len(self.low) * len(self.levels) > MOST_STEPS

    def thinned(self) -> ClaimedNarrowing:
        """Return the same with some of its levels, spread evenly, the first and the last among them."""
        kept = np.unique(np.linspace(0, len(self.levels) - 1, THINNED).astype(np.int64))
        return ClaimedNarrowing(self.numbers, self.low[:, 0], self.high[:, 0], levels=self.levels[kept])

    @cached_property
    def steps(self) -> Ints:
        """Return the smallest accumulator of each level, `[C, K]`."""
        return steps(self.specified, self.levels, self.low, self.high, near=self._near)

    @cached_property
    def blocks(self) -> list[tuple[slice, ClaimedNarrowing]]:
        """Yield some channels at a time, so that they fit a processor's cache."""
        count = len(self.low)
        height = max(1, BLOCK // max(1, len(self.levels)))
        if count <= height:
            return [(slice(None), self)]
        found = []
        for first in range(0, count, height):
            rows = slice(first, first + height)
            own = {k: v[rows] if k in BY_CHANNEL and isinstance(v, list) else v for k, v in self.numbers.items()}
            found.append((rows, ClaimedNarrowing(own, self.low[rows, 0], self.high[rows, 0], levels=self.levels)))
        return found

    def specified(self, acc: Ints) -> Ints:
        """Return the specification, clamped to its bounds."""
        return self._clamped(spec.narrowed(self.numbers, acc))

    def _clamped(self, q: Ints) -> Ints:
        return spec.clamp(q, self.numbers["range"])

    def points(self) -> Ints:
        """Return every accumulator next to a step, and both ends, `[C, N]`."""
        beside = [np.clip(self.steps + offset, self.low, self.high) for offset in (-1, 0)]
        return np.concatenate([*beside, self.low, self.high], axis=1)

    def equals(self, found: Function) -> bool:
        """Return whether a rising function is the specification on every accumulator.

        It is where the specification agrees on both sides of each step of the function, and at both ends.
        """
        own = steps(found, self.levels, self.low, self.high, near=self._near)
        at, before = (np.clip(own + offset, self.low, self.high) for offset in (0, -1))
        rises = np.all((self.specified(at) >= self.levels) | (own > self.high))
        rises = rises and np.all((self.specified(before) < self.levels) | (own <= self.low))
        equal = bool(rises and all(np.array_equal(found(e), self.specified(e)) for e in (self.low, self.high)))
        if equal:
            self.__dict__["steps"] = own  # the specification's own are the same
        return equal

    def departures(self, claim: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the claim of the certificate about the exact product.

        Many steps are counted where `claim`, its entry, has their count, as earlier versions wrote it.
        """
        count = int(np.sum((self.high - self.low + 1).astype(object)))
        found: dict[str, Any] = {"accumulators": count, "departing": 0, "first": []}
        once = ("single", "single_away", "half_up", "half_away")
        if self.numbers["kind"] == "shift" or self.numbers["rounding"] in once:
            return found
        if self.many and (claim or {}).get("departing") is None:
            return found | {"departing": None}
        named = len(self.low) > 1
        for rows, block in self.blocks:
            begin, end = block.departing()
            found["departing"] += int((end - begin).sum())
            for c, k in np.argwhere(end > begin)[: SHOWN - len(found["first"])]:
                channel = int(c) + (rows.start or 0) if named else None
                found["first"].append([channel, int(begin[c, k]), int(end[c, k]) - 1])
        return found

    def departing(self) -> tuple[Ints, Ints]:
        """Return the accumulators of each level between its step and the step of the exact product."""
        exact = steps(
            lambda a: self._clamped(spec.exact(self.numbers, a)), self.levels, self.low, self.high, near=self._near
        )
        return np.minimum(self.steps, exact), np.maximum(self.steps, exact)
