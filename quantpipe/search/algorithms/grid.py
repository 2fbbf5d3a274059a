"""The whole space, from precise to coarse."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantpipe.option_checks import integer
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point


@dataclass(frozen=True)
class Grid:
    """Evaluate every point, `batch` at a time.

    The most precise point comes first, then all that are one option coarser in sum, then two, and so on. A space larger
    than the budget is walked until the budget ends; what was seen then is its most precise corner.
    """

    batch: int = 16

    def __post_init__(self) -> None:
        integer("search.algorithm.batch", self.batch, least=1)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Evaluate all points in the order of how much coarser they are in sum."""
        evaluate([space.start, *space.begin])
        last = [len(c.options) - 1 for c in space]
        points = itertools.chain.from_iterable(_level(last, total) for total in range(1, sum(last) + 1))
        while batch := list(itertools.islice(points, self.batch)):
            evaluate(batch)


def _level(last: list[int], total: int) -> Iterator[Point]:
    """All points of this sum of options, in lexicographic order. No recursion: spaces have hundreds of choices."""
    point = _filled(last, total)
    while True:
        yield tuple(point)
        tail = 0
        for i in reversed(range(len(last))):
            if tail and point[i] < last[i]:
                point[i:] = [point[i] + 1, *_filled(last[i + 1 :], tail - 1)]
                break
            tail += point[i]
        else:
            return


def _filled(last: list[int], total: int) -> list[int]:
    """The total spread over the choices, as much as fits on the last ones."""
    point = [0] * len(last)
    for i in reversed(range(len(last))):
        point[i] = min(total, last[i])
        total -= point[i]
    return point
