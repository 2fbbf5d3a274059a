"""The walk up from the last options, which shows what choices save only together.

A kernel is as fast as the widest of its operands lets it be, and on some devices all tensors of a chain of kernels have
one type. Lowered alone, such a choice saves nothing; at the coarse end, each one that is raised costs what they save.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.types import ChoiceSpace, Point, Score

DECAY = 4.0
"""By which one option more of precision divides a loss: the squared error of one bit less is four times as large."""


def raised(
    space: ChoiceSpace,
    evaluate: Evaluate,
    objective: Objective,
    first: Point,
    *,
    start: Score,
    choices: Collection[int],
    decay: float = DECAY,
) -> tuple[Point, Score]:
    """Return where the walk up of these choices from their last options ends; the others stay as in `first`.

    It starts at a point that the space is given to begin with, if one is not good enough yet.
    """
    last = {i: len(space.choices[i].options) - 1 for i in choices if len(space.choices[i].options) > 1}
    if not last:
        return first, start
    probes = evaluate([(*first[:i], option, *first[i + 1 :]) for i, option in last.items()])
    ranks = {i: _sensitivity(start, probe) for i, probe in zip(last, probes, strict=True) if probe.cost < start.cost}
    ranks = _together(
        space, evaluate, first, last, start=start, probes=dict(zip(last, probes, strict=True)), ranks=ranks
    )
    coarse = tuple(last[i] if i in ranks else first[i] for i in range(len(space)))
    point = _coarse(space, evaluate, objective, coarse)
    ranks = {i: rank for i, rank in ranks.items() if point[i] > 0}
    order = sorted(ranks, key=ranks.__getitem__)
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
            ranks[choice] = rank / decay
        point, score = higher, attempt
    if objective.form is not ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE or not objective.feasible(score):
        return point, score
    for choice in order:  # what was raised in vain goes down again
        while point[choice] < last[choice]:
            lower = (*point[:choice], point[choice] + 1, *point[choice + 1 :])
            (attempt,) = evaluate([lower], incumbent=score)
            if attempt.cost >= score.cost or not objective.better(attempt, score):
                break
            point, score = lower, attempt
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
    """Return the ranks of choices by what they save together with the others, if one saves nothing alone.

    A kernel is as fast as the widest of its operands lets it be. What they save shows at the coarse end: of a weight,
    for example, only its bytes before its kernel's input is narrow, and then its kernel's time.
    """
    idle = [i for i in last if i not in ranks and space.choices[i].graded and probes[i].cost == start.cost]
    if not idle:
        return ranks
    asked = [i for i in last if i in ranks or i in idle]
    coarse = tuple(last[i] if i in asked else first[i] for i in range(len(space)))
    points = [coarse, *((*coarse[:i], 0, *coarse[i + 1 :]) for i in asked)]
    low, *high = evaluate(points, incumbent=start)  # only costs are asked, which are exact in every case
    saved = {i: max(score.cost - low.cost, start.cost - probes[i].cost) for i, score in zip(asked, high, strict=True)}
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
