"""Choices that cost nothing (`Choice.free`: ranges): find the options with the lowest loss, all else unchanged.

Two ways: one choice after the other, each improvement kept at once; or each option alone, then the best of all together
and back again where that is too much. The second way needs about one evaluation per option.
"""

from __future__ import annotations

import math

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point, Score

ENOUGH = 0.95
"""A pass that leaves more than this share of the loss is the last one."""

_HALVINGS = 4
"""Of how many changes are taken together, at most."""


def free(space: ChoiceSpace) -> list[int]:
    """Return the places of the choices that cost nothing and have something to choose."""
    return [i for i, choice in enumerate(space) if choice.free and len(choice.options) > 1]


def changed(point: Point, choice: int, option: int) -> Point:
    """Return the point with one choice at another option."""
    return (*point[:choice], option, *point[choice + 1 :])


def settled(
    space: ChoiceSpace, evaluate: Evaluate, objective: Objective, point: Point, *, score: Score
) -> tuple[Point, Score]:
    """Return the point with each free choice at its best option, found in passes over all of them.

    A pass asks every other option of each choice in one batch, and keeps the best one. The passes end as soon as one
    leaves most of the loss.
    """
    choices, last = free(space), -1
    while choices:
        before = score
        for i in choices:
            if i == last:  # everything since was asked from this very point
                return point, score
            others = [changed(point, i, o) for o in range(len(space.choices[i].options)) if o != point[i]]
            for other, attempt in zip(others, evaluate(others, incumbent=score), strict=True):
                if objective.better(attempt, score):
                    point, score, last = other, attempt, i
        if last < 0 or not _worth_a_pass(before, score, objective):
            return point, score
    return point, score


def settled_together(
    space: ChoiceSpace, evaluate: Evaluate, objective: Objective, point: Point, *, score: Score
) -> tuple[Point, Score]:
    """Return the point with free choices at other options, found from what each option gains alone.

    All options that gain are taken together, then the better half of them, and so on. From the best of these points
    the others are taken one at a time, the largest gain first. Arguments and result are as in `settled`.
    """
    gains = _gains(space, evaluate, objective, point, score=score)
    taken, best = 0, (point, score)
    for count in _halves(len(gains)):
        together = point
        for i, option in gains[:count]:
            together = changed(together, i, option)
        (attempt,) = evaluate([together])
        if objective.better(attempt, best[1]):
            taken, best = count, (together, attempt)
    for i, option in gains[taken:]:
        other = changed(best[0], i, option)
        (attempt,) = evaluate([other], incumbent=best[1])
        if objective.better(attempt, best[1]):
            best = (other, attempt)
    return best


def _gains(
    space: ChoiceSpace, evaluate: Evaluate, objective: Objective, point: Point, *, score: Score
) -> list[tuple[int, int]]:
    """(choice, option) of the best option of each free choice that is better alone, the largest gain first."""
    asked = [(i, o) for i in free(space) for o in range(len(space.choices[i].options)) if o != point[i]]
    scores = evaluate([changed(point, i, o) for i, o in asked])
    best: dict[int, tuple[Score, int]] = {}
    for (i, option), attempt in zip(asked, scores, strict=True):
        if objective.better(attempt, best[i][0] if i in best else score):
            best[i] = (attempt, option)
    order = sorted(best, key=lambda i: -best[i][0].value if math.isfinite(best[i][0].value) else math.inf)
    return [(i, best[i][1]) for i in order]


def _halves(count: int) -> list[int]:
    """The counts that are tried together: all, half of them, a quarter, down to one."""
    found: list[int] = []
    while count and len(found) < _HALVINGS:
        found.append(count)
        count //= 2
    return found


def _worth_a_pass(before: Score, after: Score, objective: Objective) -> bool:
    """Whether a pass removed so much of the loss that another one may remove more."""
    lost = objective.reference_value - before.value
    if math.isnan(lost) or lost <= 0:
        return after.value > before.value or math.isnan(lost)
    return objective.reference_value - after.value < ENOUGH * lost
