"""Sensitivities and a knapsack: measure options alone, solve for the best combination, check and correct.

The losses of single options add up well (recovery trials: Spearman 0.75 to 0.98 between their sum and the joint loss,
median ratio 1.0 to 1.3): good enough to plan with, not to finish with. So an integer program plans, and every plan is
evaluated: one that does not hold is made again with a tighter budget, one that holds with a looser one.

Planning does not wait for the last probe. The levels of equal precision come first, then the last option of every
choice, then the others, nearest to the plan first; in between, what is known so far is planned with (`additive`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from quantpipe.option_checks import integer
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.additive import Additive, Table, plan, rebased, used, useful, weighed
from quantpipe.search.algorithms.begin import begin
from quantpipe.search.algorithms.levels import depth, level, levels
from quantpipe.search.algorithms.local_search import descend
from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.types import ChoiceSpace, Point, Score

_CHUNKS = 4
"""Before each of so many parts of the probes a plan is made, from what is known by then."""

_FIRST_PLANS = 3
"""Plans from the levels alone: the guess is rough, and each one corrects the next, whether it holds or not."""

_ATTEMPTS = 2
"""Later plans in a row at most: what one that does not hold used corrects the next one."""

_EARLY_ROUNDS = 5
"""Plans at most once every choice was probed once, before the other options are."""

_PRICES = (1.0, 2.0, 0.5, 4.0, 0.25)
"""Factors on the price of cost, where it is weighed against value: the joint loss is not quite the sum."""


@dataclass(frozen=True)
class Knapsack:
    """One probe per choice and option, plans in between and at most `rounds` at the end, then single steps.

    Within a tolerance a plan has the minimum cost with a sum of losses that fits; within a cost the minimum loss.
    Losses below 0 do not pay for others, but the option is preferred; an option whose probe is NaN is never taken.
    Saved costs add up exactly for bits and weight bytes, nearly for others; the cost of the evaluated point decides. Of
    a Pareto front the plans are spread over all costs.
    """

    rounds: int = 20

    def __post_init__(self) -> None:
        integer("search.algorithm.rounds", self.rounds, least=1)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Probe single options, plan the best combinations as if losses added up, and evaluate the plans."""
        point, score, start = begin(space, evaluate, objective)
        run = _Run(space, evaluate, objective, space.start, start)
        run.best = (point, score)
        run.levels()
        run.rebase()
        if not objective.feasible(run.start) and objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE:
            run.probe(run.model.unmeasured())  # there is no budget to plan with, so nothing to plan early
        else:
            run.probe_in_parts([(i, o) for i, o in run.model.unmeasured() if o == len(space.choices[i].options) - 1])
            run.plans(_EARLY_ROUNDS)
            run.move()
            run.probe_in_parts(run.nearest_first(run.model.unmeasured()))
        run.plans(self.rounds)
        descend(*run.best, run.model.table(), evaluate, objective=objective)


@dataclass
class _Run:
    """Hold one search: what it may ask, what it knows, and the best combination it has seen.

    Where cost is what is minimized, single probes do not count as combinations.
    """

    space: ChoiceSpace
    evaluate: Evaluate
    objective: Objective
    base: Point
    start: Score
    """The score of the base, which all probes start from."""
    model: Additive = field(init=False)
    best: tuple[Point, Score] = field(init=False)
    ratio: float = 1.0
    """The ratio of used to predicted cost, at the latest plan."""

    def __post_init__(self) -> None:
        self.model = Additive(self.space, self.base, self.start)
        self.best = (self.base, self.start)
        self.within_cost = self.objective.cost_limit is not None

    def levels(self) -> None:
        """Find by bisection the coarsest level that is feasible; of a cost limit, the most precise one.

        All levels are evaluated where cost and value are weighed, and where nothing says that the most precise one is
        the best.
        """
        if self.objective.open_ended or self.objective.feasible(self.start) == self.within_cost:
            points = levels(self.space)[1:]
            for index, (point, score) in enumerate(zip(points, self.evaluate(points), strict=True), start=1):
                self._see(point, score)
                self.model.learn_level(index, score)
            return
        low, high = 0, depth(self.space) + 1
        while high - low > 1:
            middle = (low + high) // 2
            point = level(self.space, middle)
            (score,) = self.evaluate([point])
            self._see(point, score)
            self.model.learn_level(middle, score)
            if self.objective.feasible(score) == self.within_cost:
                high = middle
            else:
                low = middle

    def rebase(self) -> None:
        """Probe from a level instead, where one has a better value than the most precise point.

        Sums that overflow can have this effect, and the loss of an option next to a broken sum means little.
        """
        point, score = self.best
        if self.objective.open_ended or not score.compared > self.start.compared:
            return
        self.base, self.start = point, score
        self.model = Additive(self.space, point, score)

    def move(self) -> None:
        """Probe from the best point seen, within a cost limit, once it loses less than the base.

        What counts is the loss of an option with the others settled. That differs where losses do not quite add
        up.
        """
        point, score = self.best
        if self.within_cost and score.compared > self.start.compared and self.objective.feasible(score):
            self.model = self.model.moved(point, score)
            self.base, self.start = point, score

    def probe(self, asked: list[tuple[int, int]]) -> None:
        """Options alone, in one batch."""
        first = self.base
        points = [(*first[:i], option, *first[i + 1 :]) for i, option in asked]
        for (i, option), point, score in zip(asked, points, self.evaluate(points), strict=True):
            self.model.learn(i, option, score)
            if self.within_cost:
                self._see(point, score)

    def probe_in_parts(self, asked: list[tuple[int, int]]) -> None:
        """Probe as `probe` does, with a plan before each part."""
        size = max(1, -(-len(asked) // _CHUNKS))
        for chunk in range(0, len(asked), size):
            if len(asked) > 2 * _CHUNKS and not self.objective.open_ended:
                first = not self.model.measured
                for _ in range(_FIRST_PLANS if first else _ATTEMPTS):
                    if self._plan_once() and not first:
                        break
            self.probe(asked[chunk : chunk + size])

    def nearest_first(self, asked: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Return what is asked, sorted by how near it stands to the best combination, where it matters most."""
        point = self.best[0]
        return sorted(asked, key=lambda found: (abs(found[1] - point[found[0]]), found))

    def plans(self, rounds: int) -> None:
        """Plan, evaluate, correct, until there is nothing to correct."""
        table = useful(self.model.table())
        for point, score in self._planned(table, rounds):
            self._see(point, score)

    def _see(self, point: Point, score: Score) -> None:
        if self.objective.better(score, self.best[1]):
            self.best = (point, score)

    def _plan_once(self) -> bool:
        """One plan from what is known, its limit corrected by how far off the latest one was; whether it holds."""
        table, goal = useful(self.model.table()), self._goal()
        if goal is None:
            return True
        limit = self.start.cost - (self.start.cost - goal) * self.ratio if self.within_cost else goal / self.ratio
        chosen = plan(table, self.start, limit, goal, within_cost=self.within_cost)
        predicted = used(chosen, table, self.start, goal, within_cost=self.within_cost)
        point = tuple(option.index for option in chosen)
        (score,) = self.evaluate([point])
        self._see(point, score)
        if self.within_cost:
            predicted, found = self.start.cost - score.cost, self.start.cost - predicted
        else:
            found = self.start.value - score.value
        if predicted > 0 and math.isfinite(found):
            self.ratio = min(max(found / predicted, 0.25), 8.0)
        return self.objective.feasible(score)

    def _goal(self) -> float | None:
        """What may be used: a loss, or a cost; None where the most precise point already uses more."""
        if self.objective.cost_limit is not None:
            return self.objective.cost_limit
        goal = self.start.value - self.objective.reference_value + self.objective.tolerance
        return max(goal, 1e-9) if goal >= 0 else None

    def _planned(self, table: Table, rounds: int) -> Iterator[tuple[Point, Score]]:
        """Evaluated plans. `limit` bounds what a plan is predicted to use (loss, or cost); what it does use decides."""
        if self.objective.open_ended:
            yield from self._spread(table, rounds)
            return
        start, within_cost, goal = self.start, self.within_cost, self._goal()
        if goal is None:
            # Not even the most precise point is good enough: whatever came out better may help (a layer in float).
            # If it does, that point is what all options are counted against.
            origin, table = rebased(table)
            point = tuple(option.index for option in origin)
            (score,) = self.evaluate([point])
            yield point, score
            if not self.objective.feasible(score):
                return
            start, goal = score, max(score.value - self.objective.reference_value + self.objective.tolerance, 1e-9)
        limit, held, broke = goal, 0.0, math.inf
        for _ in range(rounds):
            chosen = plan(table, start, limit, goal, within_cost=within_cost)
            predicted = used(chosen, table, start, goal, within_cost=within_cost)
            point = tuple(option.index for option in chosen)
            (score,) = self.evaluate([point])
            yield point, score
            spent = score.cost if within_cost else start.value - score.value
            ratio = goal / spent if spent > 0 else math.inf
            if self.objective.feasible(score):
                if within_cost and limit >= goal and math.isclose(predicted, spent, rel_tol=1e-9):
                    return  # costs add up: the plan is as good as the model knows
                if not within_cost and all(
                    o.saved == max(p.saved for p in c) for o, c in zip(chosen, table, strict=True)
                ):
                    return
                held = max(held, limit)
                limit *= min(max(ratio, 1.05), 2.0)
            elif predicted > limit * (1 + 1e-5):
                return  # the least there is
            else:
                broke = min(broke, predicted)
                limit = predicted * ratio if 0 < ratio < 1 else 0.0
            if not held < limit < broke:
                limit = (held + broke) / 2
            if math.isfinite(broke) and broke - held <= 1e-3 * broke:
                return

    def _spread(self, table: Table, rounds: int) -> Iterator[tuple[Point, Score]]:
        """Yield plans where cost and value are weighed.

        They are made by several prices of cost, or, for a front, by costs from the smallest to the largest.
        """
        if self.objective.form is ObjectiveForm.WEIGHTED:
            price = self.objective.trade / self.objective.cost_unit
            plans = [weighed(table, price * factor) for factor in _PRICES[:rounds]]
        else:
            least = self.start.cost - sum(max(o.saved for o in options) for options in table)
            limits = np.linspace(least, self.start.cost, rounds + 1)[:-1]
            plans = [plan(table, self.start, float(limit), float(limit), within_cost=True) for limit in limits]
        points = list(dict.fromkeys(tuple(option.index for option in chosen) for chosen in plans))
        yield from zip(points, self.evaluate(points), strict=True)
