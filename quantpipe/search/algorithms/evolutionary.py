"""NSGA-II (Deb et al., "A Fast and Elitist Multiobjective Genetic Algorithm: NSGA-II", 2002) by optuna.

It minimizes loss and cost at once and so carries a whole front along; points that do not keep the objective's promise
come after the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantpipe.option_checks import integer, number
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.ask_tell import Proposals, distributions, losses, optuna_quietly
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace

_VIOLATION = "violation"


@dataclass(frozen=True)
class Evolutionary:
    """Generations of `population` points; the first one begins with points of equal precision everywhere.

    `mutation`: probability that a choice of a child is drawn again, as a multiple of 1 / number of choices.
    """

    population: int = 20
    mutation: float = 1.0

    def __post_init__(self) -> None:
        integer("search.algorithm.population", self.population, least=2)
        number("search.algorithm.mutation", self.mutation, above=0.0)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Evaluate what the evolution strategy proposes until every point has been seen."""
        (start,) = evaluate([space.start])
        best, score = space.start, start
        movable = [i for i, c in enumerate(space) if len(c.options) > 1]
        with optuna_quietly() as optuna:
            study = self._study(optuna, objective, len(movable), rng)
            every = distributions(optuna, space, movable)
            proposals = Proposals(space, rng)
            while not proposals.exhausted:
                forced = proposals.forced()
                if forced is not None:
                    study.enqueue_trial({str(i): forced[i] for i in movable})
                trial = study.ask(every)
                params = trial.params  # made anew at each look
                point = tuple(int(params[str(i)]) if str(i) in every else 0 for i in range(len(space)))
                (attempt,) = evaluate([point])
                if objective.better(attempt, score):
                    best, score = point, attempt
                energy = objective.energy(attempt, start)
                trial.set_user_attr(_VIOLATION, 0.0 if objective.feasible(attempt) else energy)
                study.tell(trial, losses(attempt, start, objective))
                proposals.note(point, best)

    def _study(self, optuna: Any, objective: Objective, choices: int, rng: np.random.Generator) -> Any:
        def violation(trial: Any) -> Sequence[float]:
            return (trial.user_attrs[_VIOLATION],)

        sampler = optuna.samplers.NSGAIISampler(
            population_size=self.population,
            mutation_prob=min(1.0, self.mutation / max(choices, 1)),
            constraints_func=None if objective.open_ended else violation,
            seed=int(rng.integers(2**31)),
        )
        return optuna.create_study(directions=["minimize", "minimize"], sampler=sampler)
