"""What a search algorithm is: a callable that asks for scores until it has nothing left to ask."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point, Score

Measure = Callable[[Sequence[Point]], Sequence[Score]]
"""The expensive function of the caller: one score per point, in the order of the points."""

Evaluate = Callable[[Sequence[Point]], Sequence[Score]]
"""What an algorithm asks: like `Measure`, but remembered, logged and budgeted (see `Evaluator`)."""


class Algorithm(Protocol):
    """A frozen dataclass of options with this call.

    It returns nothing, because the evaluator keeps the best; it does not handle the budget either: an exhausted
    budget ends the call from inside `evaluate`. What it asks may depend on (space, scores, rng) only, never on time
    or global state: that is all that makes a resumed search exact. The most precise point (`space.start`) comes first,
    so that the least budget has an answer.
    """

    def __call__(
        self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator
    ) -> None: ...
