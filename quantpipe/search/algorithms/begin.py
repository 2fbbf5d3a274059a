"""Where a search begins: at the most precise point, or at better points of an earlier search or of fewer bits."""

from __future__ import annotations

from collections.abc import Sequence

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.levels import levels
from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.types import ChoiceSpace, Point, Score


def begin(
    space: ChoiceSpace, evaluate: Evaluate, objective: Objective, *, coarser: bool = True
) -> tuple[Point, Score, Score]:
    """Return the point to begin with, its score, and the score of the most precise point.

    It is the best of the most precise point and of those that the space is given to begin with; the most precise one is
    asked first, and stays unless one is better. If the best misses a tolerance, `coarser` points are asked, too: all
    choices of bits at the same option. Where sums overflow, only fewer bits of many tensors together are better.
    """
    points = [space.start, *space.begin]
    scores = evaluate(points)
    best = _best(scores, objective)
    within_tolerance = objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE
    if coarser and within_tolerance and not objective.feasible(scores[best]):
        points += [point for point in levels(space) if point not in points]
        scores = evaluate(points)
        best = _best(scores, objective)
    return points[best], scores[best], scores[0]


def _best(scores: Sequence[Score], objective: Objective) -> int:
    best = 0
    for place in range(1, len(scores)):
        if objective.better(scores[place], scores[best]):
            best = place
    return best
