"""One search from start to end: it always comes back with the best so far, however it ended."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from quantpipe.errors import ConfigError
from quantpipe.option_checks import integer
from quantpipe.search.algorithm import Algorithm
from quantpipe.search.evaluator import BudgetExhausted, Evaluator, TargetReached
from quantpipe.search.objective import Objective
from quantpipe.search.pareto import front
from quantpipe.types import ChoiceSpace, Point, Score, Trial


class Stopped(StrEnum):
    """Name why a search ended.

    The algorithm had no more to ask, the budget was used up, the target was reached, or the user stopped it.
    """

    DONE = "done"
    BUDGET = "budget"
    TARGET = "target"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True)
class SearchResult:
    """What a search found. `trace` has each trial that was the best when it was answered; its last one is the best.

    `evaluations` counts distinct points, `evaluations_new` the ones that were measured now and not taken from the
    log; `seconds` is the time of measuring them all, logged ones with their logged time; `pruned` of the trials were
    given up early. `front` is the Pareto front of the exact ones, the cheapest first.
    """

    best: Point
    score: Score
    feasible: bool
    evaluations: int
    evaluations_new: int
    seconds: float
    stopped: Stopped
    trace: tuple[Trial, ...]
    pruned: int = 0
    front: tuple[Trial, ...] = ()


def run_search(
    algorithm: Algorithm, space: ChoiceSpace, evaluator: Evaluator, objective: Objective, *, seed: int
) -> SearchResult:
    """Run the algorithm until it is done, the budget is used up, or KeyboardInterrupt.

    The app turns SIGTERM into KeyboardInterrupt. An interrupt before the first trial has no result and is raised again;
    every other exception passes through. The same seed and log resume where an earlier run ended.
    """
    if evaluator.objective != objective:
        raise ValueError(f"the evaluator keeps the best by another objective: {evaluator.objective} and {objective}")
    rng = np.random.default_rng(integer("seed", seed, least=0))
    stopped = Stopped.DONE
    try:
        algorithm(space, evaluator, objective, rng)
    except TargetReached:
        stopped = Stopped.TARGET
    except BudgetExhausted:
        stopped = Stopped.BUDGET
    except KeyboardInterrupt:
        if evaluator.best is None:
            raise
        stopped = Stopped.INTERRUPTED
    best = evaluator.best
    if best is None:
        raise ConfigError(
            f"{type(algorithm).__name__} asked for no point; it must ask for the most precise one first",
            stage="search",
            where="search.algorithm",
        )
    return SearchResult(
        best=best.point,
        score=best.score,
        feasible=objective.feasible(best.score),
        evaluations=evaluator.evaluations,
        evaluations_new=evaluator.evaluations_new,
        seconds=evaluator.seconds,
        stopped=stopped,
        trace=tuple(evaluator.trace),
        pruned=evaluator.pruned,
        front=front(evaluator.trials),
    )
