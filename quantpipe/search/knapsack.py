"""Sensitivities and a knapsack: measure every option alone, solve for the best combination, check and correct.

The losses of single options add up well (recovery trials: Spearman 0.75 to 0.98 between their sum and the joint loss,
median ratio 1.0 to 1.3): good enough to plan with, not to finish with. So an integer program plans, and every plan is
evaluated: one that does not hold is made again with a tighter budget, one that holds with a looser one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from quantpipe.search.algorithm import Evaluate
from quantpipe.search.objective import Form, Objective
from quantpipe.search.options import whole
from quantpipe.types import ChoiceSpace, Point, Score

_FLOOR = 0.01
"""Share of the tolerance that a plan which saves all there is to save uses at least. Options without a loss of their
own may lose together; with nothing to add up, a tighter budget would not plan less of them."""

_NODES = 2000
"""Limit of the integer program: a limit in seconds would plan otherwise on a slower machine."""

_HOPELESS = 4.0
"""The descent leaves out single steps that are predicted to lose this many times what is left."""


@dataclass(frozen=True)
class _Option:
    """An option of a choice: what it loses and saves alone, against the most precise point."""

    index: int
    loss: float
    saved: float


@dataclass(frozen=True)
class Knapsack:
    """One probe per choice and option, at most `rounds` plans, then single steps while they are better.

    Within a tolerance the plan costs least with a sum of losses that fits; within a cost it loses least. Losses below
    0 do not pay for others, but the option is preferred; an option whose probe is NaN is never taken. Saved costs add
    up exactly for bits and weight bytes, nearly for others; what decides is the cost of the evaluated point.
    """

    rounds: int = 20

    def __post_init__(self) -> None:
        whole("search.algorithm.rounds", self.rounds, least=1)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        (start,) = evaluate([space.start])
        table = _probed(space, evaluate, start)
        best = max(
            ((space.start, start), *self._plans(space.start, start, _useful(table), evaluate, objective)),
            key=lambda found: objective.key(found[1]),
        )
        _descend(*best, table, evaluate, objective)

    def _plans(
        self, first: Point, start: Score, table: list[list[_Option]], evaluate: Evaluate, objective: Objective
    ) -> Iterator[tuple[Point, Score]]:
        """Evaluated plans. `limit` bounds what a plan is predicted to use (loss, or cost); what it does use decides."""
        within_cost = objective.form is Form.BEST_VALUE_WITHIN_COST
        goal = objective.cost_limit if objective.cost_limit is not None else 0.0
        if not within_cost:
            goal = start.value - objective.reference_value + objective.tolerance
            if not goal >= 0:
                # Not even the most precise point is good enough: whatever came out better may help.
                point = tuple(min(options, key=lambda o: o.loss).index for options in table)
                (score,) = evaluate([point])
                yield point, score
                if not objective.feasible(score):
                    return
                goal = score.value - objective.reference_value + objective.tolerance
            goal = max(goal, 1e-9)
        limit, held, broke = goal, 0.0, math.inf
        for _ in range(self.rounds):
            plan = _plan(table, start, limit, goal, within_cost)
            point, predicted = tuple(option.index for option in plan), _used(plan, table, start, goal, within_cost)
            (score,) = evaluate([point])
            yield point, score
            used = score.cost if within_cost else start.value - score.value
            ratio = goal / used if used > 0 else math.inf
            if objective.feasible(score):
                if within_cost and limit >= goal and math.isclose(predicted, used, rel_tol=1e-9):
                    return  # costs add up: the plan is as good as the model knows
                if not within_cost and all(
                    o.saved == max(p.saved for p in c) for o, c in zip(plan, table, strict=True)
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


def _probed(space: ChoiceSpace, evaluate: Evaluate, start: Score) -> list[list[_Option]]:
    """The options of each choice that can be planned with; the first option is always one."""
    first = space.start
    asked = [(i, option) for i, choice in enumerate(space) for option in range(1, len(choice.options))]
    scores = evaluate([(*first[:i], option, *first[i + 1 :]) for i, option in asked])
    table = [[_Option(0, 0.0, 0.0)] for _ in space]
    for (i, option), score in zip(asked, scores, strict=True):
        loss, saved = start.value - score.value, start.cost - score.cost
        if math.isfinite(loss) and math.isfinite(saved):
            table[i].append(_Option(option, loss, saved))
    return table


def _useful(table: list[list[_Option]]) -> list[list[_Option]]:
    """Without options that lose as much as another one, or more, and save no more."""
    kept = []
    for options in table:
        front: list[_Option] = []
        for option in sorted(options, key=lambda o: (o.loss, -o.saved, o.index)):
            if not front or option.saved > front[-1].saved:
                front.append(option)
        kept.append(front)
    return kept


def _uses(table: list[list[_Option]], goal: float, within_cost: bool) -> list[list[float]]:
    """What each option uses of the limit: its loss, or minus what it saves."""
    if within_cost:
        return [[-o.saved for o in options] for options in table]
    total = sum(max(o.saved for o in options) for options in table) or 1.0
    return [[max(o.loss, 0.0) + _FLOOR * goal * max(o.saved, 0.0) / total for o in options] for options in table]


def _used(plan: list[_Option], table: list[list[_Option]], start: Score, goal: float, within_cost: bool) -> float:
    uses = _uses(table, goal, within_cost)
    spent = sum(use[options.index(o)] for o, options, use in zip(plan, table, uses, strict=True))
    return spent + (start.cost if within_cost else 0.0)


def _plan(table: list[list[_Option]], start: Score, limit: float, goal: float, within_cost: bool) -> list[_Option]:
    """The best combination that is predicted to stay within the limit; if there is none, what uses least."""
    uses = _uses(table, goal, within_cost)
    least = [min(use) for use in uses]
    room = limit - (start.cost if within_cost else 0.0) - sum(least)
    cheapest = [options[use.index(low)] for options, use, low in zip(table, uses, least, strict=True)]
    if room <= 0:
        return cheapest
    # In units of the room, as the solver's tolerances are absolute; what does not fit alone is left out.
    columns = [
        (i, o, (use - least[i]) / room)
        for i, options in enumerate(table)
        for o, use in zip(options, uses[i], strict=True)
        if use - least[i] <= room * (1 + 1e-9)
    ]
    prices = np.array([o.loss if within_cost else -o.saved for _, o, _ in columns])
    taken = _solve(prices, np.array([use for *_, use in columns]), np.array([i for i, *_ in columns]))
    return cheapest if taken is None else [columns[j][1] for j in taken]


def _solve(prices: np.ndarray, uses: np.ndarray, choices: np.ndarray) -> list[int] | None:
    """Exactly one column per choice, least price, uses of at most 1 in sum: the columns, in the order of choices."""
    from scipy import optimize, sparse  # here, as no other search needs it

    if not len(prices):
        return []
    columns = np.arange(len(prices))
    one_each = sparse.csr_array((np.ones(len(prices)), (choices, columns)))
    found = optimize.milp(
        prices / (np.abs(prices).max() or 1.0),
        integrality=np.ones(len(prices)),
        bounds=optimize.Bounds(0, 1),
        constraints=[
            optimize.LinearConstraint(one_each, 1, 1),
            optimize.LinearConstraint(uses[None, :], -np.inf, 1),
        ],
        options={"node_limit": _NODES, "mip_rel_gap": 1e-6},
    )
    if found.x is None:
        return None
    return [int(columns[choices == i][np.argmax(found.x[choices == i])]) for i in range(int(choices[-1]) + 1)]


def _descend(point: Point, score: Score, table: list[list[_Option]], evaluate: Evaluate, objective: Objective) -> None:
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
        (attempt,) = evaluate([step], rival=score)
        if objective.better(attempt, score):
            point, score, went = step, attempt, True
        else:
            refused.add((choice, option))


def _steps(point: Point, score: Score, table: list[list[_Option]], objective: Objective) -> list[tuple[int, int]]:
    """Steps that may be better, the most promising first: (choice, option)."""
    within_tolerance = objective.form is Form.LEAST_COST_WITHIN_TOLERANCE
    cost_first = objective.feasible(score) == within_tolerance
    left = score.value - objective.reference_value + objective.tolerance
    ranked = []
    for choice, options in enumerate(table):
        now = next(o for o in options if o.index == point[choice])
        for o in options:
            loss, saved = o.loss - now.loss, o.saved - now.saved
            if o is now:
                continue
            if within_tolerance and cost_first:
                if saved >= 0 and loss <= _HOPELESS * left:
                    rank = max(loss, 0.0) / saved if saved > 0 else math.inf
                    ranked.append((rank, loss, choice, o.index))
            elif cost_first:
                if saved > 0:
                    ranked.append((-saved, loss, choice, o.index))
            elif (loss < 0 or (loss == 0 and saved > 0)) and score.cost - saved <= (objective.cost_limit or math.inf):
                ranked.append((loss, -saved, choice, o.index))
    return [(choice, option) for *_, choice, option in sorted(ranked)]
