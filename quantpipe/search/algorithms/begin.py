"""Where a search begins: at the most precise point, or at points of an earlier search that are better."""

from __future__ import annotations

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point, Score


def begin(space: ChoiceSpace, evaluate: Evaluate, objective: Objective) -> tuple[Point, Score, Score]:
    """Return the point to begin with, its score, and the score of the most precise point.

    It is the best of the most precise point and of those that the space is given to begin with; the most precise one is
    asked first, and stays where none is better.
    """
    points = [space.start, *space.begin]
    scores = evaluate(points)
    best = 0
    for place in range(1, len(points)):
        if objective.better(scores[place], scores[best]):
            best = place
    return points[best], scores[best], scores[0]
