"""Choice by choice: each takes the best of all its options, given those already settled."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.begin import begin
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace


@dataclass(frozen=True)
class GreedyEdge:
    """One pass in the order of the space; all options of a choice are asked in one batch.

    It needs one evaluation per choice and option. Early choices may use up what later ones would have used better.
    """

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Go through the choices once and keep the best option of each."""
        point, score, _ = begin(space, evaluate, objective)
        for i, choice in enumerate(space):
            options = [option for option in range(len(choice.options)) if option != point[i]]
            others = [(*point[:i], option, *point[i + 1 :]) for option in options]
            for other, attempt in zip(others, evaluate(others, incumbent=score), strict=True):
                if objective.better(attempt, score):
                    point, score = other, attempt
