"""Toy spaces with known optima, and what the search tests share."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from quantpipe.search import (
    Algorithm,
    Annealing,
    Batching,
    Budget,
    Evaluator,
    Evolutionary,
    Greedy,
    GreedyBackward,
    GreedyEdge,
    Grid,
    Knapsack,
    Objective,
    ObjectiveForm,
    RandomSearch,
    SearchResult,
    Surrogate,
    Tpe,
    Uniform,
    run_search,
)
from quantpipe.types import Choice, ChoiceSpace, Point, Score, Trial

ALGORITHMS: dict[str, Algorithm] = {
    "uniform": Uniform(),
    "random": RandomSearch(batch=4),
    "greedy": Greedy(),
    "greedy_topological": Greedy(order="topological"),  # type: ignore[arg-type]
    "annealing": Annealing(),
    "knapsack": Knapsack(),
    "grid": Grid(batch=4),
    "greedy_edge": GreedyEdge(),
    "greedy_backward": GreedyBackward(),
    "evolutionary": Evolutionary(population=8),
    "tpe": Tpe(),
    "surrogate": Surrogate(batch=4, pool=64, trees=10),
}


def make_space(*options: int) -> ChoiceSpace:
    """A space whose choices have these many options: 8 bits, 7 bits, …"""
    return ChoiceSpace(tuple(Choice(f"bits:{i}", "bits", tuple(range(8, 8 - n, -1))) for i, n in enumerate(options)))


def bits(space: ChoiceSpace, point: Point) -> float:
    return float(sum(space.decode(point).values()))


@dataclass(frozen=True)
class Toy:
    """A function with a known optimum under `objective`, found by trying every point."""

    space: ChoiceSpace
    value: Callable[[Point], float]
    cost: Callable[[Point], float]
    objective: Objective

    def score(self, point: Point) -> Score:
        return Score(self.value(point), self.cost(point), (("bits", bits(self.space, point)),))

    def measure(self, points: Sequence[Point]) -> list[Score]:
        return [self.score(p) for p in points]

    @property
    def optimum(self) -> Score:
        points = itertools.product(*(range(len(c.options)) for c in self.space))
        return max((self.score(p) for p in points), key=self.objective.key)


def _toy(
    options: tuple[int, ...],
    loss: Callable[[Point], float],
    objective: Objective,
    cost: Callable[[Point], float] | None = None,
) -> Toy:
    space = make_space(*options)
    return Toy(space, lambda p: 0.9 - loss(p), cost or (lambda p: bits(space, p)), objective)


WITHIN_TOLERANCE = Objective(reference_value=0.9, tolerance=0.01)
WEIGHTS = (0.0, 0.02, 0.001, 0.0, 0.003)


def _additive(p: Point) -> float:
    return sum(w * i for w, i in zip(WEIGHTS, p, strict=False))


def _interaction(p: Point) -> float:
    """The first two are free alone, and ruinous together."""
    return 0.1 * min(p[0], p[1]) + 0.004 * p[2]


def _within_cost(limit: float) -> Objective:
    return Objective(form=ObjectiveForm.BEST_VALUE_WITHIN_COST, reference_value=0.9, cost_limit=limit)


TOYS = {
    "additive": _toy((3, 3, 3, 3, 3), _additive, WITHIN_TOLERANCE),
    "interaction": _toy((4, 4, 4), _interaction, WITHIN_TOLERANCE),
    "flat_value": _toy((3, 4, 3), lambda p: 0.0, WITHIN_TOLERANCE),
    "flat_cost": _toy((3, 3, 3), lambda p: 0.001 * sum(p), WITHIN_TOLERANCE, cost=lambda p: 1.0),
    "nothing_feasible": _toy((3, 3, 3), lambda p: 0.5 + 0.01 * sum(p), WITHIN_TOLERANCE),
    "within_cost": _toy(
        (3, 3, 3, 3), lambda p: sum(w * i for w, i in zip(WEIGHTS, p, strict=False)), _within_cost(28.0)
    ),
    "cost_out_of_reach": _toy((3, 3), lambda p: 0.01 * sum(p), _within_cost(1.0)),
    "weighted": _toy(
        (3, 3, 3, 3, 3),
        _additive,
        Objective(form=ObjectiveForm.WEIGHTED, reference_value=0.9, weight=0.1, cost_unit=40.0),
    ),
    "pareto": _toy((3, 3, 3, 3), _additive, Objective(form=ObjectiveForm.PARETO, reference_value=0.9, cost_unit=32.0)),
    "no_choices": _toy((), lambda p: 0.0, WITHIN_TOLERANCE),
    "one_option_each": _toy((1, 1), lambda p: 0.0, WITHIN_TOLERANCE),
}


@dataclass
class Counting:
    """A measure that records what it is asked, and raises instead of starting the call number `fail_at`."""

    toy: Toy
    fail_at: int | None = None
    error: BaseException = field(default_factory=KeyboardInterrupt)
    points: list[Point] = field(default_factory=list)
    calls: int = 0

    def __call__(self, points: Sequence[Point]) -> list[Score]:
        if self.calls == self.fail_at:
            raise self.error
        self.calls += 1
        self.points.extend(points)
        return self.toy.measure(points)


@dataclass
class ListLog:
    """A trial log in memory."""

    trials: list[Trial] = field(default_factory=list)

    def read(self) -> list[Trial]:
        return list(self.trials)

    def append(self, trial: Trial) -> None:
        self.trials.append(trial)


class Ticks:
    """A clock that goes on by one second per look, so that each measure call takes one second."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


LIMITS = ("max_evaluations", "max_seconds", "target")


def search(toy: Toy, algorithm: Algorithm, seed: int = 0, **options: object) -> SearchResult:
    """Run the algorithm on the toy; `options` go to the evaluator, those of its budget and of how it calls the measure
    by their own names, and `measure` may replace the toy's own."""
    measure = options.pop("measure", toy.measure)
    budget = Budget(**{name: options.pop(name) for name in list(options) if name in LIMITS})  # type: ignore[arg-type]
    batching = Batching(options.pop("batch_size", 1), bool(options.pop("prunes", False)))  # type: ignore[arg-type]
    evaluator = Evaluator(measure, toy.objective, budget=budget, batching=batching, **options)  # type: ignore[arg-type]
    return run_search(algorithm, toy.space, evaluator, toy.objective, seed=seed)
