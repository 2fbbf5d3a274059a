"""Greedy from the other end: everything at its last option, then raised where that is expected to gain most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.objective import Form, Objective
from quantpipe.search.options import real
from quantpipe.types import ChoiceSpace, Point, Score


@dataclass(frozen=True)
class GreedyBackward:
    """Walks up from the last options, one choice by one option at a time; the most precise point is asked first.

    What each choice loses alone at its last option orders the walk: one probe per choice, at the precise end, as near
    the coarse end everything is broken and a single raise gains nothing. Each raise is expected to leave 1 / `decay` of
    the loss (4: the squared error of one bit less). Within a tolerance the walk ends as soon as the value is near
    enough. Within a cost it goes on while the cost fits, and leaves a choice alone that no longer fits. Where cost and
    value are weighed against each other, it goes all the way. A choice that saves nothing (a threshold step) stays at
    its first option.
    """

    decay: float = 4.0

    def __post_init__(self) -> None:
        real("search.algorithm.decay", self.decay, least=1.0)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Start from the coarsest options and raise the choice that loses most, until the objective is met."""
        first = space.start
        (start,) = evaluate([first])
        last = {i: len(c.options) - 1 for i, c in enumerate(space) if len(c.options) > 1}
        probes = evaluate([(*first[:i], option, *first[i + 1 :]) for i, option in last.items()])
        ranks = {
            i: _sensitivity(start, probe) for i, probe in zip(last, probes, strict=True) if probe.cost < start.cost
        }
        point: Point = tuple(last[i] if i in ranks else 0 for i in range(len(space)))
        (score,) = evaluate([point])
        # Of a tolerance the search wants the first feasible point, of a cost limit the last one.
        within_cost = objective.form is Form.BEST_VALUE_WITHIN_COST
        while ranks and (objective.open_ended or objective.feasible(score) == within_cost):
            choice = max(ranks, key=ranks.__getitem__)
            rank = ranks.pop(choice)
            higher = (*point[:choice], point[choice] - 1, *point[choice + 1 :])
            (attempt,) = evaluate([higher])
            if within_cost and not objective.feasible(attempt):
                continue
            if higher[choice] > 0:
                ranks[choice] = rank / self.decay
            point, score = higher, attempt


def _sensitivity(before: Score, after: Score) -> float:
    """Loss per saved cost; a broken model (NaN) loses most."""
    loss = (before.value - after.value) / (before.cost - after.cost)
    return math.inf if math.isnan(loss) else loss
