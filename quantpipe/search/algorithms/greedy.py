"""Greedy squash: lower one choice after the other while the result stays good enough.

The search of the HAGO RFC (`greedy_squash`: start at the most bits, lower the current dimension while little is lost,
else go on to the next, wrap around, stop after a full fruitless round), in an order taken from measured
sensitivities: the smallest loss per saved cost is lowered first, as single losses predict the joint loss well (recovery
trials: Spearman 0.75 to 0.98 between their sum and the joint loss).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from quantpipe.option_checks import word_of
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.begin import begin
from quantpipe.search.algorithms.free_choices import settled
from quantpipe.search.algorithms.local_search import stepped
from quantpipe.search.algorithms.raised import raised
from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.types import ChoiceSpace, Point, Score


class Order(StrEnum):
    """In which order choices are lowered: lowest loss per saved cost first (one more batch), or the space's own."""

    SENSITIVITY = "sensitivity"
    TOPOLOGICAL = "topological"


@dataclass(frozen=True)
class Greedy:
    """Walk down from the most precise point, one choice by one option at a time.

    Within a tolerance the walk begins at a better point that the space is given to begin with, where there is one.
    Within a tolerance, the same choice is lowered until that is rejected, round after round. Within a cost, the choice
    with the smallest expected loss per saved cost is lowered next (topological: they take turns) until the cost fits;
    where cost and value are weighed against each other, to the cheap end, as every point on the way may be wanted.
    A choice whose lowering saved nothing is not tried again: precision is never given away for nothing. Unless the
    probe of such a choice came out better (scales per channel may): then the best of its options is taken before the
    walk. Within a tolerance that the most precise point misses, choices whose probe gained something for a cost (a
    layer in float) are taken first, until it is met; then single steps of priced choices, up or down. Choices that cost
    nothing (ranges) are settled before the walk where the tolerance is missed, and after it; the walk goes on as long
    as that leaves room. Choices that save nothing one by one, and something together, are lowered together, and raised
    again one by one until the objective is met.
    """

    order: Order = Order.SENSITIVITY

    def __post_init__(self) -> None:
        object.__setattr__(self, "order", word_of(Order, self.order, "search.algorithm.order"))

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Lower the choices one after the other, in the order of what they lose, as the objective's form asks."""
        point, score, start = begin(space, evaluate, objective)
        if objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE:
            if not objective.feasible(score):
                point, score = settled(space, evaluate, objective, point, score=score)
            self._while_it_holds(space, evaluate, objective, point, start=score)
            return
        point, score = space.start, start
        if objective.open_ended:
            point, score = settled(space, evaluate, objective, point, score=score)
        if objective.open_ended or not objective.feasible(score):
            point, score = self._until_it_fits(space, evaluate, objective, point, start=score)
        if not objective.open_ended:
            settled(space, evaluate, objective, point, score=score)

    def _while_it_holds(
        self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, first: Point, *, start: Score
    ) -> None:
        ranks, free, dearer = self._ranks(space, evaluate, objective, first, start=start)
        point, score = _settled(space, evaluate, objective, free, first=first, start=start)
        point, score = _lifted(space, evaluate, objective, dearer, point=point, score=score)
        if self.order is Order.SENSITIVITY:
            point, score = stepped(space, evaluate, objective, point, score=score)
        order = sorted(ranks, key=ranks.__getitem__)
        while True:
            point, score = self._walk(space, evaluate, objective, order, point=point, score=score)
            better, found = settled(space, evaluate, objective, point, score=score)
            if better == point or not order:
                return
            point, score = better, found  # which leaves room for the walk

    def _walk(
        self,
        space: ChoiceSpace,
        evaluate: Evaluate,
        objective: Objective,
        order: list[int],
        *,
        point: Point,
        score: Score,
    ) -> tuple[Point, Score]:
        """Return the point with choices lowered in turns, those included that save only after others."""
        turns = deque(order)
        idle = [i for i, c in enumerate(space) if c.graded and i not in turns]
        while True:
            point, score, dropped = self._in_turns(space, evaluate, objective, turns, point=point, score=score)
            if self.order is Order.TOPOLOGICAL:
                return point, score
            idle += [i for i in dropped if space.choices[i].graded]
            woken = self._woken(space, evaluate, idle, point=point, score=score)
            if not woken:
                return self._joined(space, evaluate, objective, idle, point=point, score=score)
            idle = [i for i in idle if i not in woken]
            turns.extend(woken)

    def _woken(
        self, space: ChoiceSpace, evaluate: Evaluate, idle: list[int], *, point: Point, score: Score
    ) -> list[int]:
        """Return the choices that saved nothing so far and do now, lowest loss per saved cost first.

        A kernel is as fast as the widest of its operands lets it be: the second of them saves only after the first.
        """
        lowered = {i: p for i in idle if (p := _lowered(space, point, i)) is not None}
        if point == space.start:
            return []
        scores = dict(zip(lowered, evaluate(list(lowered.values()), incumbent=score), strict=True))
        ranks = {i: _sensitivity(score, found) for i, found in scores.items() if found.cost < score.cost}
        return sorted(ranks, key=ranks.__getitem__)

    def _in_turns(
        self,
        space: ChoiceSpace,
        evaluate: Evaluate,
        objective: Objective,
        turns: deque[int],
        *,
        point: Point,
        score: Score,
    ) -> tuple[Point, Score, list[int]]:
        """Lower the choices in turns, until each was rejected once more.

        The last of the result are those that saved nothing any more, and left the turns.
        """
        fruitless, dropped = 0, []
        while fruitless < len(turns):
            choice = turns.popleft()
            while (lower := _lowered(space, point, choice)) is not None:
                (attempt,) = evaluate([lower], incumbent=score)
                if attempt.cost >= score.cost:
                    dropped.append(choice)
                    break
                if not objective.better(attempt, score):
                    turns.append(choice)
                    fruitless += 1
                    break
                point, score, fruitless = lower, attempt, 0
        return point, score, dropped

    def _until_it_fits(
        self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, first: Point, *, start: Score
    ) -> tuple[Point, Score]:
        ranks, free, _ = self._ranks(space, evaluate, objective, first, start=start)
        point, score = _settled(space, evaluate, objective, free, first=first, start=start)
        while ranks and (objective.open_ended or not objective.feasible(score)):
            choice = min(ranks, key=ranks.__getitem__)
            rank = ranks.pop(choice)
            lower = _lowered(space, point, choice)
            if lower is None:
                continue
            (attempt,) = evaluate([lower])
            if attempt.cost >= score.cost:
                continue
            # The next step of this choice is expected to lose at least what this one lost.
            by_loss = self.order is Order.SENSITIVITY
            ranks[choice] = _sensitivity(score, attempt) if by_loss else (rank[0] + 1, rank[1])
            point, score = lower, attempt
        if objective.open_ended or objective.feasible(score):
            return point, score
        idle = [i for i, choice in enumerate(space) if choice.graded]
        return self._joined(space, evaluate, objective, idle, point=point, score=score)

    def _joined(
        self,
        space: ChoiceSpace,
        evaluate: Evaluate,
        objective: Objective,
        idle: list[int],
        *,
        point: Point,
        score: Score,
    ) -> tuple[Point, Score]:
        """Return the point with idle choices lowered that save something only together, where that is better."""
        last = {i: len(space.choices[i].options) - 1 for i in idle}
        idle = [i for i in idle if point[i] < last[i]]
        if len(idle) < 2 or self.order is Order.TOPOLOGICAL:
            return point, score
        (low,) = evaluate([tuple(last[i] if i in idle else o for i, o in enumerate(point))], incumbent=score)
        if low.cost >= score.cost:
            return point, score
        found = raised(replace(space, begin=()), evaluate, objective, point, start=score, choices=idle)
        return found if objective.better(found[1], score) else (point, score)

    def _ranks(
        self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, first: Point, *, start: Score
    ) -> tuple[dict[int, tuple[float, float]], list[int], list[int]]:
        """Return the ranks of the choices that may save cost, and the choices that gain something.

        The first is choice -> rank, smallest first; then come the choices that are better at the same cost; then those
        that gain something for a cost, the most per cost first.
        """
        priced = [i for i, choice in enumerate(space) if not choice.free]
        lowered = {i: p for i in priced if (p := _lowered(space, first, i)) is not None}
        if self.order is Order.TOPOLOGICAL:
            return {i: (0.0, float(i)) for i in lowered}, [], []
        scores = dict(zip(lowered, evaluate(list(lowered.values())), strict=True))
        ranks = {i: _sensitivity(start, score) for i, score in scores.items() if score.cost < start.cost}
        free = [i for i, score in scores.items() if score.cost == start.cost and objective.better(score, start)]
        paid = {i: s for i, s in scores.items() if s.cost > start.cost}
        gains = {i: (s.compared - start.compared) / (s.cost - start.cost) for i, s in paid.items()}
        dearer = sorted((i for i, gain in gains.items() if gain > 0), key=lambda i: -gains[i])
        return ranks, free, dearer


def _settled(
    space: ChoiceSpace, evaluate: Evaluate, objective: Objective, free: list[int], *, first: Point, start: Score
) -> tuple[Point, Score]:
    """The first point with each free choice, one after the other, at the best of its options."""
    point, score = first, start
    for choice in free:
        options = [o for o in range(len(space.choices[choice].options)) if o != point[choice]]
        others = [(*point[:choice], o, *point[choice + 1 :]) for o in options]
        for option, attempt in zip(others, evaluate(others), strict=True):
            if attempt.cost <= score.cost and objective.better(attempt, score):
                point, score = option, attempt
    return point, score


def _lifted(
    space: ChoiceSpace, evaluate: Evaluate, objective: Objective, dearer: list[int], *, point: Point, score: Score
) -> tuple[Point, Score]:
    """Where the start is not good enough: with choices at dearer options, one after the other, until it is."""
    for choice in dearer:
        if objective.feasible(score):
            break
        higher = _lowered(space, point, choice)
        if higher is not None:
            (attempt,) = evaluate([higher])
            if objective.better(attempt, score):
                point, score = higher, attempt
    return point, score


def _sensitivity(before: Score, after: Score) -> tuple[float, float]:
    """Loss per saved cost of one step; a gain is no loss, and of equals what saves more comes first."""
    saved = before.cost - after.cost
    loss = before.compared - after.compared
    # NaN (a broken model) comes last; `max` alone would let it pass as no loss.
    return (float("inf") if np.isnan(loss) else max(loss, 0.0) / saved), -saved


def _lowered(space: ChoiceSpace, point: Point, choice: int) -> Point | None:
    """The point with one choice one option less precise; None at the last option."""
    option = point[choice] + 1
    if option >= len(space.choices[choice].options):
        return None
    return (*point[:choice], option, *point[choice + 1 :])
