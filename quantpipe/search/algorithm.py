"""What a search algorithm is: a callable that asks for scores until it has nothing left to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np

from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point, Score

Measure = Callable[..., Iterable[Score]]
"""The expensive function of the caller, `measure(points)`: one score per point, in the order of the points. An iterator
measures while it is read. One that can give up (see `Evaluator`) is called with `(points, should_prune)` as well."""


class Evaluate(Protocol):
    """What an algorithm asks: like `Measure`, but remembered, logged and budgeted (see `Evaluator`)."""

    def __call__(self, points: Sequence[Point], incumbent: Score | None = None) -> Sequence[Score]:
        """Return the scores of the points.

        `incumbent`: of each point only this matters: is it better than that score by the objective, and by how
        much. Of one that is not, the measurement may end early; its score is `pruned`, with the exact cost and a value
        that it would not have exceeded. Without one every score is exact.
        """


class Algorithm(Protocol):
    """A frozen dataclass of options with this call.

    It returns nothing, because the evaluator keeps the best; it does not handle the budget either: an exhausted
    budget ends the call from inside `evaluate`. What it asks may depend on (space, scores, rng) only, never on time
    or global state: that is all that makes a resumed search exact. The most precise point (`space.start`) comes first,
    so that the smallest budget has an answer.
    """

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Walk the space and evaluate points until there is no more to ask.

        Args:
            space: the choices.
            evaluate: scores a list of points, in their order; it raises where the budget ends.
            objective: which of two scores is better.
            rng: the only source of chance.
        """
