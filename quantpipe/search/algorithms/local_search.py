"""Single steps from a point: they correct a plan whose losses do not quite add up, or a walk in one direction."""

from __future__ import annotations

import math

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.additive import Table
from quantpipe.search.algorithms.free_choices import changed, worth_a_pass
from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.types import ChoiceSpace, Point, Score

_HOPELESS = 4.0
"""Single steps that are predicted to lose this many times the remaining loss are skipped."""


def descend(point: Point, score: Score, table: Table, evaluate: Evaluate, *, objective: Objective) -> None:
    """Change one choice at a time while that is better, in the order of the predictions, until a fruitless round."""
    refused: set[tuple[int, int]] = set()
    went = False
    while True:
        steps = [step for step in _steps(point, score, table, objective) if step not in refused]
        if not steps:
            if not went:
                return
            refused, went = set(), False
            continue
        choice, option = steps[0]
        step = (*point[:choice], option, *point[choice + 1 :])
        (attempt,) = evaluate([step], incumbent=score)
        if objective.better(attempt, score):
            point, score, went = step, attempt, True
        else:
            refused.add((choice, option))


def stepped(
    space: ChoiceSpace, evaluate: Evaluate, objective: Objective, point: Point, *, score: Score
) -> tuple[Point, Score]:
    """Return the point after single steps of priced choices, up or down, in passes until the objective is met.

    Where sums overflow, fewer bits of some tensors lose less, and which ones depends on the others.
    """
    while not objective.feasible(score):
        steps = [(i, o) for i, c in enumerate(space) if not c.free for o in (point[i] - 1, point[i] + 1)]
        steps = [(i, o) for i, o in steps if 0 <= o < len(space.choices[i].options)]
        scores = zip(steps, evaluate([changed(point, *step) for step in steps]), strict=True)
        better = {step: found.compared for step, found in scores if objective.better(found, score)}
        before = score
        for step in sorted(better, key=lambda step: -better[step]):
            (attempt,) = evaluate([changed(point, *step)], incumbent=score)
            if objective.better(attempt, score):
                point, score = changed(point, *step), attempt
        if not better or not worth_a_pass(before, score, objective):
            break
    return point, score


def _steps(point: Point, score: Score, table: Table, objective: Objective) -> list[tuple[int, int]]:
    """Steps that may be better, the most promising first: (choice, option)."""
    if objective.form is ObjectiveForm.PARETO:
        return []
    within_tolerance = objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE
    cost_first = objective.feasible(score) == within_tolerance
    left = score.value - objective.reference_value + objective.tolerance
    # Beside others a change may gain what it lost alone, so those that lose little are tried, too.
    little = max(objective.reference_value - score.value, 0.0) / _HOPELESS
    ranked = []
    for choice, options in enumerate(table):
        now = next((o for o in options if o.index == point[choice]), None)
        if now is None:  # a level's point may hold an option whose own probe was broken
            continue
        for o in options:
            loss, saved = o.loss - now.loss, o.saved - now.saved
            if o is now:
                continue
            if objective.open_ended:
                gain = objective.trade * saved / objective.cost_unit - loss
                if gain > -objective.trade / _HOPELESS**2:
                    ranked.append((-gain, loss, choice, o.index))
            elif within_tolerance and cost_first:
                if saved >= 0 and loss <= _HOPELESS * left:
                    rank = max(loss, 0.0) / saved if saved > 0 else math.inf
                    ranked.append((rank, loss, choice, o.index))
            elif cost_first:
                if saved > 0:
                    ranked.append((-saved, loss, choice, o.index))
            elif loss <= little and score.cost - saved <= (objective.cost_limit or math.inf):
                ranked.append((loss, -saved, choice, o.index))
    return [(choice, option) for *_, choice, option in sorted(ranked)]
