"""Every algorithm on every toy: what it must find, and what holds for all of them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_toys import ALGORITHMS, TOYS, WITHIN_TOLERANCE, Counting, Toy, bits, make_space, search

from quantpipe.errors import ConfigError
from quantpipe.search import (
    Algorithm,
    Annealing,
    Greedy,
    GreedyBackward,
    Grid,
    Knapsack,
    Objective,
    ObjectiveForm,
    RandomSearch,
    Stopped,
    Surrogate,
)
from quantpipe.types import Point, Score

PAIRS = list(itertools.product(ALGORITHMS, TOYS))

MISSED = {
    ("greedy_topological", "within_cost"),  # both lower in the order of the space, whatever that loses
    ("greedy_edge", "within_cost"),
    ("greedy_topological", "weighted"),
    ("greedy_topological", "pareto"),
    ("greedy_backward", "weighted"),  # the other end of the walk: it raises one at a time and looks no further
    ("greedy_backward", "interaction"),  # the first raise that makes it feasible ends it
}


@pytest.mark.sliced(12)
@pytest.mark.parametrize(("name", "toy"), PAIRS)
def test_starts_at_the_most_precise_point_and_stays_in_the_space(name: str, toy: str) -> None:
    measure = Counting(TOYS[toy])
    search(TOYS[toy], ALGORITHMS[name], measure=measure, max_evaluations=300)
    space = TOYS[toy].space
    assert measure.points[0] == space.start
    for point in measure.points:
        assert len(point) == len(space)
        assert all(0 <= i < len(c.options) for i, c in zip(point, space, strict=True))
    assert len(set(measure.points)) == len(measure.points), "a point was measured twice"


@pytest.mark.sliced(12)
@pytest.mark.parametrize(("name", "toy"), PAIRS)
def test_result_is_the_best_of_what_was_measured(name: str, toy: str) -> None:
    t = TOYS[toy]
    measure = Counting(t)
    result = search(t, ALGORITHMS[name], measure=measure, max_evaluations=30)
    best = max(map(t.score, measure.points), key=t.objective.key)
    assert t.objective.key(result.score) == t.objective.key(best)
    assert result.score == t.score(result.best)
    assert result.feasible == t.objective.feasible(result.score)
    assert result.trace[-1].point == result.best
    keys = [t.objective.key(trial.score) for trial in result.trace]
    assert keys == sorted(set(keys)), "the trace goes up only"


@pytest.mark.sliced(12)
@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name != "uniform"])
def test_finds_the_optimum_of_a_small_space(name: str, toy: str) -> None:
    t = TOYS[toy]
    result = search(t, ALGORITHMS[name])
    if (name, toy) in MISSED:
        assert result.feasible
        return
    assert t.objective.key(result.score) == t.objective.key(t.optimum)
    assert result.stopped is Stopped.DONE


@pytest.mark.parametrize("name", ALGORITHMS)
def test_same_seed_same_walk(name: str) -> None:
    t = TOYS["additive"]
    walks = []
    for seed in (3, 3, 4):
        measure = Counting(t)
        search(t, ALGORITHMS[name], seed=seed, measure=measure, max_evaluations=40)
        walks.append(measure.points)
    assert walks[0] == walks[1]
    seeded = ("random", "annealing", "evolutionary", "tpe", "surrogate")
    assert (walks[1] != walks[2]) == (name in seeded), "only these use the seed"


@st.composite
def toys(draw: st.DrawFn) -> Toy:
    """Any losses (gains, interactions and NaN included), any costs that fall, either form."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    space = make_space(*sizes)
    loss = st.floats(-0.02, 0.05)
    single = [[0.0, *draw(st.lists(loss, min_size=n - 1, max_size=n - 1))] for n in sizes]
    joint = draw(loss)
    broken = draw(st.none() | st.tuples(*(st.integers(0, n - 1) for n in sizes)))
    weight = draw(st.lists(st.sampled_from([0.0, 1.0, 10.0]), min_size=len(sizes), max_size=len(sizes)))

    def value(p: Point) -> float:
        if p == broken:
            return float("nan")
        return 0.9 - sum(table[i] for table, i in zip(single, p, strict=True)) - joint * (sum(p) > 3)

    def cost(p: Point) -> float:
        return sum(w * b for w, b in zip(weight, space.decode(p).values(), strict=True))

    limit = draw(st.none() | st.floats(0.3, 1.2))
    if limit is None:
        return Toy(
            space, value, cost, Objective(reference_value=0.9, tolerance=draw(st.sampled_from([0.0, 0.01, 0.1])))
        )
    form = ObjectiveForm.BEST_VALUE_WITHIN_COST
    return Toy(space, value, cost, Objective(form=form, reference_value=0.9, cost_limit=limit * cost(space.start) + 1))


@pytest.mark.sliced(12)
@pytest.mark.parametrize("name", ALGORITHMS)
@given(toy=toys(), budget=st.integers(1, 25), seed=st.integers(0, 5))
@settings(max_examples=40, deadline=None)
def test_anytime(name: str, toy: Toy, budget: int, seed: int) -> None:
    """A larger budget only continues the walk, so its result is as good or better; a feasible point is never lost."""
    short, long = Counting(toy), Counting(toy)
    few = search(toy, ALGORITHMS[name], seed, measure=short, max_evaluations=budget)
    more = search(toy, ALGORITHMS[name], seed, measure=long, max_evaluations=budget + 7)
    assert long.points[: len(short.points)] == short.points
    assert len(short.points) == few.evaluations <= budget
    assert few.stopped is Stopped.DONE or few.evaluations == budget
    assert not toy.objective.better(few.score, more.score)
    start = toy.score(toy.space.start)
    assert not toy.objective.better(start, few.score)
    assert few.feasible or not any(toy.objective.feasible(toy.score(p)) for p in short.points)


@given(toy=toys())
@settings(max_examples=60, deadline=None)
def test_greedy_ends_by_itself(toy: Toy) -> None:
    assert search(toy, Greedy()).stopped is Stopped.DONE


def test_greedy_lowers_one_choice_to_its_end_in_order_of_sensitivity() -> None:
    t = TOYS["additive"]
    measure = Counting(t)
    result = search(t, Greedy(), measure=measure)
    assert measure.points[1:6] == [tuple(int(i == j) for j in range(5)) for i in range(5)], "one probe per choice"
    # Choices 0 and 3 lose nothing, then 2 (0.001 per bit), then 4 (0.003), and 1 (0.02) breaks the tolerance at once.
    walk = [(2, 0, 0, 0, 0), (2, 0, 0, 1, 0), (2, 0, 0, 2, 0), (2, 0, 1, 2, 0), (2, 0, 2, 2, 0)]
    assert measure.points[6:] == [*walk, (2, 0, 2, 2, 1), (2, 0, 2, 2, 2), (2, 1, 2, 2, 2)]
    assert result.best == (2, 0, 2, 2, 2)


def test_greedy_lowers_what_saves_only_behind_another() -> None:
    """A kernel runs at the rate of its widest operand: the first one lowered saves its bytes, the second one time."""
    space = make_space(3, 3)

    def cost(point: Point) -> float:
        wide = max(space.decode(point).values())
        return 10.0 * float(wide) + float(space.decode(point)["bits:1"])

    toy = Toy(space, lambda p: 0.9, cost, WITHIN_TOLERANCE)
    assert search(toy, Greedy()).best == (2, 2)
    assert search(toy, GreedyBackward()).best == (2, 2)


@pytest.mark.parametrize("form", ["within_tolerance", "within_cost"])
def test_greedy_lowers_together_what_saves_nothing_alone(form: str) -> None:
    """All tensors of a chain of kernels have one type: only the last of them makes it narrower."""
    space = make_space(2, 2, 2, 2)

    def cost(point: Point) -> float:
        chain = [point[0], point[1], point[2]]
        return 10.0 if 0 in chain else 4.0

    objective = {
        "within_tolerance": WITHIN_TOLERANCE,
        "within_cost": Objective(form=ObjectiveForm.BEST_VALUE_WITHIN_COST, reference_value=0.9, cost_limit=5.0),
    }[form]
    toy = Toy(space, lambda p: 0.9 - 0.001 * sum(p), cost, objective)
    assert search(toy, Greedy()).best == (1, 1, 1, 0), "the fourth saves nothing with the others either"
    assert search(toy, GreedyBackward()).best == (1, 1, 1, 0)
    if form == "within_tolerance":
        dear = Toy(space, lambda p: 0.9 - 0.02 * (sum(p[:3]) == 3), cost, objective)
        assert search(dear, Greedy()).best == (0, 0, 0, 0), "what they lose together is not allowed"


def test_greedy_backward_counts_what_weights_save_with_their_inputs() -> None:
    """A weight alone saves its byte, and next to a narrow input the time of its kernel: it is worth keeping narrow."""
    space = make_space(2, 2, 2, 2, 2, 2)
    pairs = ((0, 1), (2, 3), (4, 5))

    def cost(point: Point) -> float:
        return sum(10.0 * (point[x] == 0 or point[w] == 0) + (point[w] == 0) for x, w in pairs)

    losses = (0.02, 0.001, 0.02, 0.001, 0.001, 0.003)
    toy = Toy(space, lambda p: 0.9 - sum(a * b for a, b in zip(losses, p, strict=True)), cost, WITHIN_TOLERANCE)
    best = search(toy, GreedyBackward()).best
    assert best == (0, 1, 0, 1, 1, 1) and toy.cost(best) == toy.optimum.cost == 20.0


def test_greedy_skips_what_saves_nothing() -> None:
    space = make_space(3, 3)
    toy = Toy(space, lambda p: 0.9, lambda p: float(space.decode(p)["bits:1"]), WITHIN_TOLERANCE)
    measure = Counting(toy)
    result = search(toy, Greedy(), measure=measure)
    assert result.best == (0, 2)
    assert measure.points == [(0, 0), (1, 0), (0, 1), (0, 2), (1, 2)], "at last, whether it does behind the other"
    measure = Counting(toy)
    assert search(toy, Greedy("topological"), measure=measure).best == (0, 2)  # type: ignore[arg-type]
    assert measure.points == [(0, 0), (1, 0), (0, 1), (0, 2)], "tried once, then never again"


def test_greedy_within_a_cost_stops_as_soon_as_it_fits() -> None:
    space = make_space(4, 4)
    fits = Toy(
        space, lambda p: 0.9 - 0.01 * p[0] - 0.02 * p[1], lambda p: bits(space, p), TOYS["within_cost"].objective
    )
    measure = Counting(fits)
    assert search(fits, Greedy(), measure=measure).best == (0, 0)
    assert measure.points == [(0, 0)], "16 bits are within 28: nothing to do"


@pytest.mark.parametrize(("order", "best"), [("sensitivity", (3, 1)), ("topological", (2, 2))])
def test_greedy_within_a_cost_lowers_what_loses_least_next(order: str, best: Point) -> None:
    space = make_space(4, 4)
    objective = Objective(form=ObjectiveForm.BEST_VALUE_WITHIN_COST, cost_limit=12.0)
    toy = Toy(space, lambda p: 0.9 - 0.01 * p[0] ** 2 - 0.04 * p[1] ** 2, lambda p: bits(space, p), objective)
    measure = Counting(toy)
    assert search(toy, Greedy(order), measure=measure).best == best  # type: ignore[arg-type]
    probes = [(1, 0), (0, 1)] if order == "sensitivity" else []
    walk = {
        # Steps of choice 0 lose 0.01, 0.03, 0.05, those of choice 1 lose 0.04, 0.12.
        "sensitivity": [(2, 0), (3, 0), (3, 1)],
        "topological": [(1, 0), (1, 1), (2, 1), (2, 2)],
    }
    assert measure.points == [(0, 0), *probes, *walk[order]]


def test_greedy_comes_back_to_refused_choices() -> None:
    """Lowering 0 is only possible after 1 was lowered: the second round finds it."""
    space = make_space(2, 2)
    toy = Toy(space, lambda p: 0.8 if p == (1, 0) else 0.9, lambda p: bits(space, p), WITHIN_TOLERANCE)
    assert search(toy, Greedy("topological")).best == (1, 1)  # type: ignore[arg-type]


@pytest.mark.parametrize("algorithm", [Greedy(), GreedyBackward()], ids=lambda a: type(a).__name__)
def test_where_sums_overflow_each_choice_gets_the_bits_with_the_smallest_loss(algorithm: Algorithm) -> None:
    """All at their most bits overflow. Of the levels none is near enough: some choices need fewer bits, others more."""
    space, best = make_space(*[4] * 6), (3, 2, 0, 0, 1, 2)

    def loss(point: Point) -> float:
        apart = sum((o - b) ** 2 for o, b in zip(point, best, strict=True))
        return 0.02 * apart + (10.0 if sum(point) < 6 else 0.0)

    t = Toy(space, lambda p: 0.9 - loss(p), lambda p: 1.0, WITHIN_TOLERANCE)
    result = search(t, algorithm)
    assert result.best == best and result.feasible
    assert result.evaluations < 60


def test_annealing_needs_no_more_than_the_schedule() -> None:
    """459 steps from 0.05 down to 5e-4, and the start."""
    t = Toy(make_space(*[8] * 30), lambda p: 0.9, lambda p: bits(make_space(*[8] * 30), p), WITHIN_TOLERANCE)
    result = search(t, Annealing())
    assert 400 < result.evaluations <= 460
    assert result.stopped is Stopped.DONE


@pytest.mark.parametrize(
    ("make", "key"),
    [
        (lambda: Greedy(order="post"), "search.algorithm.order"),  # type: ignore[arg-type]
        (lambda: RandomSearch(batch=0), "search.algorithm.batch"),
        (lambda: Grid(batch=0), "search.algorithm.batch"),
        (lambda: Knapsack(rounds=0), "search.algorithm.rounds"),
        (lambda: Annealing(cooling=1.0), "search.algorithm.cooling"),
        (lambda: Annealing(start_temperature=-1), "search.algorithm.start_temperature"),
        (lambda: Annealing(end_temperature=0), "search.algorithm.end_temperature"),
        (lambda: Annealing(share=1.5), "search.algorithm.share"),
        (lambda: Annealing(reach=0), "search.algorithm.reach"),
    ],
)
def test_options_without_meaning_are_refused_by_key(make: type, key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        make()


def test_the_surrogate_asks_for_whole_batches() -> None:
    """Before its trees have seen enough, too: neighbours come `batch` at a time, and several run beside one another."""
    t, sizes = TOYS["additive"], list[int]()

    def evaluate(points: Sequence[Point]) -> list[Score]:
        sizes.append(len(points))
        return t.measure(points)

    Surrogate(batch=4, pool=64, trees=10)(t.space, evaluate, t.objective, np.random.default_rng(0))
    assert sizes[1:5] == [4, 4, 4, 4], sizes
