"""Random search: uniform points, the yardstick that every other algorithm has to beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantpipe.option_checks import integer
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace


@dataclass(frozen=True)
class RandomSearch:
    """The most precise point, then independent uniform points, `batch` at a time.

    Of choices that cost nothing (ranges) each point draws a share of its own, small shares more often. With all of
    them drawn, no point would be near the estimated ranges.

    It ends when the whole space is seen; in any larger space the budget ends it.
    """

    batch: int = 16

    def __post_init__(self) -> None:
        integer("search.algorithm.batch", self.batch, least=1)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Evaluate the first point and then random points, `batch` at a time, until all have been seen."""
        first = (space.start, *space.begin)
        evaluate(first)
        seen = set(first)
        options = np.array([len(c.options) for c in space], dtype=np.int64)
        free = np.array([c.free for c in space], dtype=bool)
        while len(seen) < space.size:
            drawn = rng.integers(0, options, size=(self.batch, len(options)))
            if free.any():
                kept = rng.random(drawn.shape) >= rng.random((self.batch, 1)) ** 2
                drawn = np.where(free & kept, 0, drawn)
            points = [tuple(row) for row in drawn.tolist()]
            evaluate(points)
            seen.update(points)
