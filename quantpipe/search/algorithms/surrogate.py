"""A model of the model: gradient-boosted trees over the choices predict the loss, and what they like best is evaluated.

Choices that cost nothing begin with a linear model, which learns from fewer points. The trees are scikit-learn's
HistGradientBoostingRegressor; costs, which nearly add up, are predicted linearly. After each batch both are fitted
again to everything that was evaluated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantpipe.option_checks import integer, number
from quantpipe.search.algorithm import Evaluate
from quantpipe.search.algorithms.free_choices import free
from quantpipe.search.algorithms.levels import levels, mutated, unseen
from quantpipe.search.algorithms.linear_model import drawn
from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.types import ChoiceSpace, Point, Score

_SHARES = (0.0, 0.02, 0.05, 0.1, 0.3)
"""Shares of the choices by which candidates differ from a good point."""

_PARENTS = 8

_PER_OPTION = 2
"""Points of the linear model, at most, per option of the choices that cost nothing."""


@dataclass(frozen=True)
class Surrogate:
    """Levels of equal precision, random neighbours of the best of them, then `batch` points at a time by the trees.

    Where less loss is what counts, choices that cost nothing (ranges) come first, one point at a time by a linear
    model, up to two points per option. Of `pool` candidates (changed and crossed good points) the best predicted ones
    are evaluated. One of each batch is only random, so that the trees see more than what they like.
    """

    batch: int = 8
    pool: int = 512
    trees: int = 60
    learning_rate: float = 0.15

    def __post_init__(self) -> None:
        for name in ("batch", "pool", "trees"):
            integer(f"search.algorithm.{name}", getattr(self, name), least=1)
        number("search.algorithm.learning_rate", self.learning_rate, above=0.0, most=1.0)

    def __call__(self, space: ChoiceSpace, evaluate: Evaluate, objective: Objective, rng: np.random.Generator) -> None:
        """Evaluate the levels, then neighbours of the best points, then points that a fitted model predicts as good."""
        first = list(dict.fromkeys((*levels(space), *space.begin)))
        known = dict(zip(first, evaluate(first), strict=True))
        start = known[space.start]
        self._settle(space, evaluate, objective, known, rng=rng)
        while len(known) < space.size:
            view = _view(objective, rng)
            energies = {p: view.energy(score, start) for p, score in known.items()}
            ranked = sorted(known, key=energies.__getitem__)[:_PARENTS]
            if len(known) < len(first) + 2 * self.batch:
                batch = self._neighbours(space, ranked, known, rng)
            else:
                batch = self._promising(space, view, ranked, known, start=start, rng=rng)
            known |= dict(zip(batch, evaluate(batch), strict=True))

    def _settle(
        self,
        space: ChoiceSpace,
        evaluate: Evaluate,
        objective: Objective,
        known: dict[Point, Score],
        *,
        rng: np.random.Generator,
    ) -> None:
        """Measure points that a linear model draws for the choices that cost nothing, while less loss is what counts.

        That is until the objective is met, or to the end where nothing else can be chosen.
        """
        choices = free(space)
        if objective.form is ObjectiveForm.PARETO or not choices:
            return
        priced = any(len(c.options) > 1 and not c.free for c in space)
        bounded = objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE
        base = max(known, key=lambda point: objective.key(known[point]))
        score = known[base]
        for _ in range(_PER_OPTION * sum(len(space.choices[i].options) - 1 for i in choices)):
            if priced and (not bounded or objective.feasible(score)):
                return
            point = drawn(space, choices, known, objective, base=base, rng=rng)
            if point is None:
                return
            (score,) = evaluate([point])
            known[point] = score

    def _neighbours(
        self, space: ChoiceSpace, parents: list[Point], known: dict[Point, Score], rng: np.random.Generator
    ) -> list[Point]:
        """Up to `batch` points near the two best ones that are not known."""
        found: dict[Point, None] = {}
        for i in range(4 * self.batch):
            share = _SHARES[1 + int(rng.integers(len(_SHARES) - 1))]
            point = mutated(space, parents[i % min(2, len(parents))], rng, share)
            if point not in known:
                found[point] = None
            if len(found) == self.batch:
                break
        other = None if found else unseen(space, parents[0], known, rng)
        return [*found] if other is None else [other]

    def _promising(
        self,
        space: ChoiceSpace,
        objective: Objective,
        parents: list[Point],
        known: dict[Point, Score],
        *,
        start: Score,
        rng: np.random.Generator,
    ) -> list[Point]:
        pool: dict[Point, None] = {}
        for i in range(self.pool):
            parent = parents[int(rng.integers(len(parents)))]
            if i % 4 == 0:
                other = parents[int(rng.integers(len(parents)))]
                take = rng.random(len(space)) < 0.5
                parent = tuple(a if t else b for a, b, t in zip(parent, other, take.tolist(), strict=True))
            point = mutated(space, parent, rng, _SHARES[int(rng.integers(len(_SHARES)))])
            if point not in known:
                pool[point] = None
        if not pool:
            return self._neighbours(space, parents, known, rng)
        points = list(pool)
        predicted = self._predicted(points, known, start, objective)
        order = sorted(range(len(points)), key=lambda j: (objective.energy(predicted[j], start), j))
        chosen = dict.fromkeys(points[j] for j in order[: max(1, self.batch - 1)])
        chosen[points[int(rng.integers(len(points)))]] = None
        return list(chosen)

    def _predicted(
        self, points: list[Point], known: dict[Point, Score], start: Score, objective: Objective
    ) -> list[Score]:
        """Trees for the loss, in a scale where its order of magnitude counts; a linear fit for the cost."""
        from sklearn.ensemble import HistGradientBoostingRegressor  # here, as no other search needs it
        from threadpoolctl import threadpool_limits

        x, asked = np.array(list(known), np.float64), np.array(points, np.float64)
        unit = (objective.trade if objective.open_ended else objective.tolerance) or 1.0
        loss = np.array([_scaled((start.compared - s.compared) / unit) for s in known.values()])
        trees = HistGradientBoostingRegressor(
            max_iter=self.trees,
            learning_rate=self.learning_rate,
            max_leaf_nodes=8,
            max_bins=min(max(int(x.max(initial=0.0)) + 1, 2), 255),  # a bin per option: the same trees, made faster
            min_samples_leaf=2,
            early_stopping=False,
            random_state=0,
        )
        with threadpool_limits(limits=1):  # the data are tiny: threads would only wait for one another
            losses = trees.fit(x, loss).predict(asked)
        costs = _linear(x, np.array([s.cost for s in known.values()]), asked)
        return [
            Score(start.compared - unit * _unscaled(float(e)), float(c)) for e, c in zip(losses, costs, strict=True)
        ]


def _view(objective: Objective, rng: np.random.Generator) -> Objective:
    """The order of one batch: of a front another part each time, by another price of cost (Knowles, "ParEGO", 2006)."""
    if objective.form is not ObjectiveForm.PARETO:
        return objective
    return replace(
        objective, form=ObjectiveForm.WEIGHTED, weight=objective.trade * 10.0 ** float(rng.uniform(-1.5, 1.5))
    )


def _scaled(loss: float) -> float:
    """Return sign · log(1 + |loss|): a broken model is bad, not a million times as bad."""
    return math.log(1e9) if not math.isfinite(loss) else math.copysign(math.log1p(abs(loss)), loss)


def _unscaled(scaled: float) -> float:
    return math.copysign(math.expm1(abs(scaled)), scaled)


def _linear(x: NDArray[np.float64], costs: NDArray[np.float64], asked: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares with a slight pull towards no slope, so that unseen directions cost what the mean does."""
    mean_x, mean_c = x.mean(axis=0), float(costs.mean())
    centred = x - mean_x
    gram = centred @ centred.T  # [trials, trials]: fewer trials than choices, often
    dual = np.linalg.solve(gram + 1e-3 * np.eye(len(x)), costs - mean_c)
    return np.asarray((asked - mean_x) @ (centred.T @ dual) + mean_c)
