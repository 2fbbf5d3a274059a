"""Greedy from the other end: everything at its last option, then raised where that is expected to gain most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quantpipe.option_checks import number
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.begin import begin
from quantpipe.search.algorithms.free_choices import settled_in_turns
from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.types import ChoiceSpace, Point, Score


@dataclass(frozen=True)
class GreedyBackward:
    """Walks up from the last options, one choice by one option at a time; the most precise point is asked first.

    What each choice loses alone at its last option orders the walk: one probe per choice, at the precise end, as near
    the coarse end everything is broken and a single raise gains nothing. Each raise is expected to leave 1 / `decay` of
    the loss (4: the squared error of one bit less). Within a tolerance the walk ends as soon as the value is near
    enough. Within a cost it goes on while the cost fits, and leaves a choice alone that no longer fits. Where cost and
    value are weighed against each other, it goes all the way. A choice that saves nothing stays at its first option.
    Choices that cost nothing (ranges) are settled first where the tolerance is missed, and at the end.
    """

    decay: float = 4.0

    def __post_init__(self) -> None:
        number("search.algorithm.decay", self.decay, least=1.0)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Start from the coarsest options and raise the choice that loses most, until the objective is met."""
        point, score, start = begin(space, evaluate, objective)
        within_tolerance = objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE
        first = space.start
        if within_tolerance and not objective.feasible(score):
            first, start = settled_in_turns(space, evaluate, objective, point, score=score)
        elif objective.open_ended:
            first, start = settled_in_turns(space, evaluate, objective, first, score=start)
        point, score = self._raised(space, evaluate, objective, first, start=start)
        best = max(((first, start), (point, score)), key=lambda found: objective.key(found[1]))
        if not objective.open_ended:
            settled_in_turns(space, evaluate, objective, best[0], score=best[1])

    def _raised(
        self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, first: Point, *, start: Score
    ) -> tuple[Point, Score]:
        """Return where the walk up from the last options ends; choices that cost nothing stay as they are."""
        last = {i: len(c.options) - 1 for i, c in enumerate(space) if len(c.options) > 1 and not c.free}
        if not last:
            return first, start
        probes = evaluate([(*first[:i], option, *first[i + 1 :]) for i, option in last.items()])
        ranks = {
            i: _sensitivity(start, probe) for i, probe in zip(last, probes, strict=True) if probe.cost < start.cost
        }
        ranks |= _together(
            space, evaluate, first, last, start=start, probes=dict(zip(last, probes, strict=True)), ranks=ranks
        )
        coarse = tuple(last[i] if i in ranks else first[i] for i in range(len(space)))
        point = _coarse(space, evaluate, objective, coarse)
        ranks = {i: rank for i, rank in ranks.items() if point[i] > 0}
        (score,) = evaluate([point])
        # Of a tolerance the search wants the first feasible point, of a cost limit the last one.
        within_cost = objective.form is ObjectiveForm.BEST_VALUE_WITHIN_COST
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
        return point, score


def _together(
    space: ChoiceSpace,
    evaluate: Evaluate,
    first: Point,
    last: dict[int, int],
    *,
    start: Score,
    probes: dict[int, Score],
    ranks: dict[int, float],
) -> dict[int, float]:
    """Return the ranks of graded choices that save nothing alone, and something together with the others.

    A kernel is as fast as the widest of its operands lets it be. What they save shows at the coarse end.
    """
    idle = [i for i in last if i not in ranks and space.choices[i].graded and probes[i].cost == start.cost]
    if not idle:
        return {}
    coarse = tuple(last[i] if i in ranks or i in idle else first[i] for i in range(len(space)))
    low, *high = evaluate([coarse, *((*coarse[:i], 0, *coarse[i + 1 :]) for i in idle)])
    saved = {i: score.cost - low.cost for i, score in zip(idle, high, strict=True)}
    losses = {i: (start.compared - probes[i].compared) / found for i, found in saved.items() if found > 0}
    return {i: math.inf if math.isnan(loss) else loss for i, loss in losses.items()}


def _coarse(space: ChoiceSpace, evaluate: Evaluate, objective: Objective, last: Point) -> Point:
    """Return where the walk up begins.

    That is a point of an earlier search that is not good enough yet, or the last options.
    """
    if objective.form is not ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE:
        return last
    scores = zip(space.begin, evaluate(space.begin), strict=True)
    return next((point for point, score in scores if not objective.feasible(score)), last)


def _sensitivity(before: Score, after: Score) -> float:
    """Loss per saved cost; a broken model (NaN) loses most."""
    loss = (before.compared - after.compared) / (before.cost - after.cost)
    return math.inf if math.isnan(loss) else loss
