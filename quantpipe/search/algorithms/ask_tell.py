"""Ask and tell: what the two searches by optuna share. Imported when they run, as no other search needs optuna.

The study lives in memory and is rebuilt from the log's answers: the same seed asks the same again, so a resumed search
goes on exactly. What optuna proposes twice costs nothing; after a few such proposals an unseen neighbour is asked.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from quantpipe.search.algorithms.levels import levels, unseen
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point, Score

_REPEATS = 3
"""Proposals in a row that were seen before, after which an unseen neighbour is asked instead."""

_WORST = 1e9
"""Represents a value that is infinite or no number: optuna takes finite ones only."""

Values = Callable[[Score], Sequence[float]]


@contextmanager
def optuna_quietly() -> Iterator[Any]:
    """Yield optuna without its log lines and its warnings about experimental options."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield optuna
    finally:
        optuna.logging.set_verbosity(before)


def distributions(optuna: Any, space: ChoiceSpace, only: Sequence[int]) -> dict[str, Any]:
    """Return the options of some choices by index: integers where they are graded, else categories."""
    found: dict[str, Any] = {}
    for i in only:
        count = len(space.choices[i].options)
        if space.choices[i].graded:
            found[str(i)] = optuna.distributions.IntDistribution(0, count - 1)
        else:
            found[str(i)] = optuna.distributions.CategoricalDistribution(tuple(range(count)))
    return found


def losses(score: Score, start: Score, objective: Objective) -> tuple[float, float]:
    """Return the loss against the reference, and the cost as a share of the most precise point's.

    Both are finite and to be minimized.
    """
    loss = objective.reference_value - score.compared
    return (loss if math.isfinite(loss) else _WORST), score.cost / start.cost if start.cost > 0 else 0.0


class Proposals:
    """Which points were proposed, and when to leave the sampler's proposals for an unseen point.

    The first ones are the points of every level, as random points of a large space are all alike bad.
    """

    def __init__(self, space: ChoiceSpace, rng: np.random.Generator) -> None:
        self.space, self._rng = space, rng
        self.seen: set[Point] = set()
        self._waiting = [*space.begin, *levels(space)]
        self._repeats = 0
        self._best = space.start

    @property
    def exhausted(self) -> bool:
        """Return whether every point of the space has been proposed."""
        return len(self.seen) >= self.space.size

    def forced(self) -> Point | None:
        """Return a point to be asked whatever the sampler says, or None."""
        if self._waiting:
            return self._waiting.pop(0)
        if self._repeats < _REPEATS:
            return None
        self._repeats = 0
        return unseen(self.space, self._best, self.seen, self._rng)

    def note(self, point: Point, best: Point) -> None:
        """Remember what was asked in the end."""
        self._repeats = self._repeats + 1 if point in self.seen else 0
        self.seen.add(point)
        self._best = best
