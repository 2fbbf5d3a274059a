"""An additive model of a search: what each option of each choice loses and saves alone, and the best combination.

What was not measured yet is estimated, so that there is something to plan with after a handful of evaluations: between
measured options of a graded choice the loss is interpolated geometrically, below one it falls by a factor per option,
and a choice that nothing is known of gets its even share of what a whole level lost.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from quantpipe.search.algorithms.raised import DECAY
from quantpipe.search.algorithms.silence import silence_stdout
from quantpipe.types import ChoiceSpace, Point, Score

FLOOR = 0.01
"""Share of the tolerance that a plan which saves all there is to save uses at least. Options without a loss of their
own may lose together; with nothing to add up, a tighter budget would not plan less of them."""

_NODES = 2000
"""Limit of the integer program: a limit in seconds would plan otherwise on a slower machine."""

_TINY = 1e-12


@dataclass(frozen=True)
class Option:
    """An option of a choice: what it loses and saves alone, against the base."""

    index: int
    loss: float
    saved: float


Table = list[list[Option]]
"""Per choice, the options that can be planned with; never empty, as the base's own is always known."""


class Additive:
    """What is known so far. `measured` has (choice, option) -> (loss, saved), broken ones (NaN) included.

    All of it is against one point, the base: the most precise one, or a level that is better than it.
    """

    def __init__(self, space: ChoiceSpace, base: Point, score: Score) -> None:
        self._space, self._base, self._score = space, base, score
        self.measured: dict[tuple[int, int], tuple[float, float]] = {}
        self._levels: dict[int, tuple[float, float]] = {}
        self.movable = [i for i, c in enumerate(space) if len(c.options) > 1]
        self.graded = [i for i in self.movable if space.choices[i].graded]

    def learn(self, choice: int, option: int, score: Score) -> None:
        """Include the score of a point that differs from the base in this choice only."""
        self.measured[choice, option] = (self._score.compared - score.compared, self._score.cost - score.cost)

    def learn_level(self, index: int, score: Score) -> None:
        """Include the score of a point with every graded choice at this option.

        It is a first guess for what was not probed.
        """
        loss, saved = self._score.compared - score.compared, self._score.cost - score.cost
        if self.graded and index > 0 and math.isfinite(loss):
            self._levels[index] = (max(loss, 0.0) / len(self.graded), max(saved, 0.0) / len(self.graded))

    def moved(self, base: Point, score: Score) -> Additive:
        """Return the same knowledge against another point, as far as it adds up."""
        found = Additive(self._space, base, score)
        found._levels = dict(self._levels)
        for i in self.movable:
            known = {**self._known(i), self._base[i]: (0.0, 0.0)}
            here = known.get(base[i]) or self._estimated(i, base[i])
            if here is None or not math.isfinite(here[0]):
                continue  # what was measured of this choice says nothing about this option
            for o, (loss, saved) in known.items():
                if o != base[i]:
                    found.measured[i, o] = (loss - here[0], saved - here[1])
        return found

    def _known(self, choice: int) -> dict[int, tuple[float, float]]:
        """Option -> (loss, saved) of what was measured of a choice."""
        return {option: found for (i, option), found in self.measured.items() if i == choice}

    def unmeasured(self) -> list[tuple[int, int]]:
        """Return (choice, option) in the order of the space."""
        return [
            (i, o)
            for i in self.movable
            for o in range(len(self._space.choices[i].options))
            if o != self._base[i] and (i, o) not in self.measured
        ]

    def table(self) -> Table:
        """Return all options, measured or estimated, but those that are broken or that nothing is known of."""
        found: Table = []
        for i, choice in enumerate(self._space):
            options = [Option(self._base[i], 0.0, 0.0)]
            for o in range(len(choice.options)):
                if o == self._base[i]:
                    continue
                loss, saved = self.measured.get((i, o)) or self._estimated(i, o) or (math.nan, 0.0)
                if math.isfinite(loss) and math.isfinite(saved):
                    options.append(Option(o, loss, saved))
            found.append(options)
        return found

    def _estimated(self, choice: int, option: int) -> tuple[float, float] | None:
        base = self._base[choice]
        if not self._space.choices[choice].graded or option < base:
            return None
        known = {o: found for o, found in self._known(choice).items() if o > base and math.isfinite(found[0])}
        if not known and not base:
            known = self._levels
        if not known:
            return None
        if option in known:
            return known[option]
        above = min((o for o in known if o > option), default=None)
        below = max((o for o in known if o < option), default=base)
        low_loss, low_saved = known.get(below, (0.0, 0.0))
        if above is None:
            return max(low_loss, 0.0) * DECAY ** (option - below), low_saved * (option - base) / max(below - base, 1)
        high_loss, high_saved = known[above]
        share = (option - below) / (above - below)
        saved = low_saved + share * (high_saved - low_saved)
        if low_loss > _TINY and high_loss > _TINY:
            return low_loss ** (1 - share) * high_loss**share, saved
        return max(high_loss, 0.0) * DECAY ** (option - above), saved


def useful(table: Table) -> Table:
    """Return the options without those that lose as much as another one, or more, and save no more."""
    kept = []
    for options in table:
        front: list[Option] = []
        for option in sorted(options, key=lambda o: (o.loss, -o.saved, o.index)):
            if not front or option.saved > front[-1].saved:
                front.append(option)
        kept.append(front)
    return kept


def rebased(table: Table) -> tuple[list[Option], Table]:
    """Return per choice the option of the smallest loss, and all options with losses and savings against that one."""
    origin = [min(options, key=lambda o: (o.loss, -o.saved, o.index)) for options in table]
    pairs = zip(table, origin, strict=True)
    return origin, [[Option(o.index, o.loss - b.loss, o.saved - b.saved) for o in options] for options, b in pairs]


def _uses(table: Table, goal: float, within_cost: bool) -> list[list[float]]:
    """What each option uses of the limit: its loss, or minus what it saves."""
    if within_cost:
        return [[-o.saved for o in options] for options in table]
    total = sum(max(o.saved for o in options) for options in table) or 1.0
    return [[max(o.loss, 0.0) + FLOOR * goal * max(o.saved, 0.0) / total for o in options] for options in table]


def used(chosen: list[Option], table: Table, start: Score, goal: float, *, within_cost: bool) -> float:
    """Return what a plan is predicted to use: a loss, or a cost.

    `goal`: the tolerance, by which saved costs are weighted where losses are limited. `within_cost`: whether the cost
    is limited, in place of the loss.
    """
    uses = _uses(table, goal, within_cost)
    spent = sum(use[options.index(o)] for o, options, use in zip(chosen, table, uses, strict=True))
    return spent + (start.cost if within_cost else 0.0)


def plan(table: Table, start: Score, limit: float, goal: float, *, within_cost: bool) -> list[Option]:
    """Return the best combination that is predicted to stay within the limit; otherwise the one that uses the minimum.

    Within a tolerance: most saved cost with a sum of losses of at most `limit`. Within a cost: minimum sum of losses
    with a predicted cost of at most `limit`.

    `goal`: the tolerance, by which saved costs are weighted where losses are limited. `within_cost`: whether the cost
    is limited, in place of the loss.
    """
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


def weighed(table: Table, price: float) -> list[Option]:
    """Return per choice the option with the lowest loss - price · saved: the best combination without limits."""
    return [min(options, key=lambda o: (o.loss - price * o.saved, o.index)) for options in table]


def _solve(prices: np.ndarray, uses: np.ndarray, choices: np.ndarray) -> list[int] | None:
    """Exactly one column per choice, minimum price, uses of at most 1 in sum: the columns, in the order of choices."""
    from scipy import optimize, sparse  # here, as no other search needs it

    if not len(prices):
        return []
    columns = np.arange(len(prices))
    one_each = sparse.csr_array((np.ones(len(prices)), (choices, columns)))
    with silence_stdout():  # HiGHS prints a line where it has to repair a solution, though it is told not to print
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
