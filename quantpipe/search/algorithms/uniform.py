"""No search: every choice at its most precise option."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.begin import begin
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace


@dataclass(frozen=True)
class Uniform:
    """Asks for the most precise point, and those that it is given to begin with, and nothing else."""

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Evaluate the first point, and those that the space is given to begin with."""
        begin(space, evaluate, objective, coarser=False)
