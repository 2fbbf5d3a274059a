"""Choices that cost nothing (`Choice.free`: ranges): find the options with the lowest loss, all else unchanged.

Two ways: `settled` asks every option of each choice and repeats this until nothing is better. `settled_in_turns` takes
the first better option of each choice, then tries again what lost little. It needs less than half of the evaluations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.objective import Objective
from quantpipe.types import ChoiceSpace, Point, Score

ENOUGH = 0.95
"""A pass that leaves more than this share of the loss is the last one."""

_HOPELESS = 2.0
"""An option that lost more than so many times what is left to lose is not tried again."""

_UNTRIED = 0.3
"""What an option that was not tried is expected to lose, as a share of what is left to lose."""

_LEAST_TURNS = 4
"""Options in a row that gain nothing before the search for more ends, at least."""


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
        if last < 0 or not worth_a_pass(before, score, objective):
            return point, score
    return point, score


def settled_in_turns(
    space: ChoiceSpace, evaluate: Evaluate, objective: Objective, point: Point, *, score: Score
) -> tuple[Point, Score]:
    """Return the point with free choices at better options, found with about one evaluation per option.

    One pass takes of each choice the first option that is better. After it, single options are tried again, the
    smallest loss first. It ends when half as many as there are choices gained nothing in a row. Arguments and result
    are as in `settled`.
    """
    turns = _Turns(evaluate, objective, point, score)
    choices = free(space)
    for i in choices:
        turns.first_better(i, [o for o in range(len(space.choices[i].options)) if o != point[i]])
    turns.again(max(_LEAST_TURNS, len(choices) // 2))
    return turns.point, turns.score


@dataclass
class _Turns:
    """Hold the best point so far, and what each option lost that was tried alone there."""

    evaluate: Evaluate
    objective: Objective
    point: Point
    score: Score
    lost: dict[tuple[int, int], float] = field(default_factory=dict)

    def first_better(self, choice: int, options: list[int]) -> None:
        """Take the first of these options that is better; the others are expected to lose a little.

        Where it removes more than half of the loss, the choice matters most, and the others are tried at once.
        """
        for place, option in enumerate(options):
            before = self.objective.reference_value - self.score.compared
            if self._takes(choice, option):
                left = self.objective.reference_value - self.score.compared
                if left < before / 2:
                    continue
                self.lost |= {(choice, other): _UNTRIED * left for other in options[place + 1 :]}
                return

    def again(self, most: int) -> None:
        """Try single options, the smallest known loss first, until so many in a row gained nothing."""
        fruitless, tried = 0, set[tuple[int, int]]()
        while fruitless < most:
            limit = _HOPELESS * (self.objective.reference_value - self.score.compared)
            waiting = [
                (lost, key)
                for key, lost in self.lost.items()
                if key not in tried and self.point[key[0]] != key[1] and lost <= limit
            ]
            if not waiting:
                return
            _, key = min(waiting)
            tried.add(key)
            before = self.point[key[0]]
            fruitless += 1
            if self._takes(*key):
                self.lost[key[0], before] = 0.0
                fruitless, tried = 0, {key}

    def _takes(self, choice: int, option: int) -> bool:
        other = changed(self.point, choice, option)
        (attempt,) = self.evaluate([other], incumbent=self.score)
        if self.objective.better(attempt, self.score):
            self.point, self.score = other, attempt
            return True
        self.lost[choice, option] = self.score.compared - attempt.compared
        return False


def worth_a_pass(before: Score, after: Score, objective: Objective) -> bool:
    """Return whether a pass removed so much of the loss that another one may remove more."""
    lost = objective.reference_value - before.compared
    if math.isnan(lost) or lost <= 0:
        return after.compared > before.compared or math.isnan(lost)
    return objective.reference_value - after.compared < ENOUGH * lost
