"""Tree-structured Parzen estimator (Bergstra et al., "Algorithms for Hyper-Parameter Optimization", 2011) by optuna.

Two densities per choice, of the better and of the worse points so far; what is likely under the first and unlikely
under the second comes next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from quantpipe.option_checks import integer
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.ask_tell import Proposals, distributions, optuna_quietly
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point


@dataclass(frozen=True)
class Tpe:
    """One point at a time, first points of equal precision everywhere, then `startup` random neighbours of the best.

    At most `block` choices, drawn again each time, are proposed by the estimator; all others stay as in the best point.
    So a step costs the same in a space of hundreds of choices, and differs from something good in a few of them.
    """

    startup: int = 10
    block: int = 24
    candidates: int = 24

    def __post_init__(self) -> None:
        integer("search.algorithm.startup", self.startup, least=1)
        integer("search.algorithm.block", self.block, least=1)
        integer("search.algorithm.candidates", self.candidates, least=1)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Evaluate what optuna's tree-structured Parzen estimator proposes until every point has been seen."""
        (start,) = evaluate([space.start])
        best, score = space.start, start
        movable = [i for i, c in enumerate(space) if len(c.options) > 1]
        with optuna_quietly() as optuna:
            study = self._study(optuna, rng)
            every = distributions(optuna, space, movable)
            proposals = Proposals(space, rng)
            while not proposals.exhausted:
                point = proposals.forced()
                if point is None:
                    point = self._proposed(optuna, study, every, movable, best=best, rng=rng)
                (attempt,) = evaluate([point])
                if objective.better(attempt, score):
                    best, score = point, attempt
                if point not in proposals.seen:
                    params = {str(i): point[i] for i in movable}
                    energy = objective.energy(attempt, start)
                    study.add_trial(optuna.trial.create_trial(params=params, distributions=every, value=energy))
                proposals.note(point, best)

    def _study(self, optuna: Any, rng: np.random.Generator) -> Any:
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=self.startup,
            n_ei_candidates=self.candidates,
            multivariate=False,
            constant_liar=False,
            seed=int(rng.integers(2**31)),
        )
        return optuna.create_study(direction="minimize", sampler=sampler)

    def _proposed(
        self,
        optuna: Any,
        study: Any,
        every: dict[str, Any],
        movable: list[int],
        *,
        best: Point,
        rng: np.random.Generator,
    ) -> Point:
        """The best point with a block of its choices as the estimator wants them."""
        size = min(self.block, max(1, len(movable) // 2), len(movable))
        block = [movable[int(i)] for i in rng.choice(len(movable), size=size, replace=False)]
        trial = study.ask({str(i): every[str(i)] for i in block})
        # Only a proposal: what is evaluated in the end is told as a trial with all choices.
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        point = list(best)
        for name, option in trial.params.items():
            point[int(name)] = int(option)
        return tuple(point)
