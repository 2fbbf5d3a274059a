"""Knapsack, grid and the two other greedy walks: what each of them promises beyond the common suite."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from search_toys import TOYS, WITHIN_TOLERANCE, Counting, Toy, bits, make_space, search

from quantpipe.errors import ConfigError
from quantpipe.search import GreedyBackward, GreedyEdge, Grid, Knapsack, Objective, ObjectiveForm
from quantpipe.types import Point

SIZES = (4, 3, 4, 2)
LOSSES = st.lists(st.lists(st.integers(0, 40), min_size=3, max_size=3), min_size=4, max_size=4)


def additive(losses: list[list[int]], objective: Objective, factor: float = 1.0) -> Toy:
    """Losses in thousandths, rising from option to option; jointly `factor` times their sum."""
    table = [[0.0, *itertools.accumulate(x / 1000 for x in row)] for row in losses]
    space = make_space(*SIZES[: len(losses)])

    def value(p: Point) -> float:
        joint = factor if sum(i > 0 for i in p) > 1 else 1.0
        return 0.9 - joint * sum(row[i] for row, i in zip(table, p, strict=True))

    return Toy(space, value, lambda p: bits(space, p), objective)


@pytest.mark.grid
@given(losses=LOSSES, tolerance=st.sampled_from([0.0, 0.01, 0.03, 0.06]))
@settings(max_examples=30, deadline=None)
def test_exact_within_a_tolerance_where_losses_add_up(losses: list[list[int]], tolerance: float) -> None:
    toy = additive(losses, Objective(reference_value=0.9, tolerance=tolerance))
    assert search(toy, Knapsack()).score.cost == toy.optimum.cost


@given(losses=LOSSES, limit=st.integers(23, 32))
@settings(max_examples=30, deadline=None)
def test_exact_within_a_cost_where_losses_add_up(losses: list[list[int]], limit: int) -> None:
    objective = Objective(form=ObjectiveForm.BEST_VALUE_WITHIN_COST, reference_value=0.9, cost_limit=float(limit))
    toy = additive(losses, objective)
    result = search(toy, Knapsack())
    assert result.feasible
    assert result.score.value == pytest.approx(toy.optimum.value, abs=1e-6)


@pytest.mark.grid
@given(losses=LOSSES, factor=st.sampled_from([0.5, 1.3, 3.0]))
@settings(max_examples=30, deadline=None)
def test_repaired_where_the_joint_loss_is_a_multiple_of_the_sum(losses: list[list[int]], factor: float) -> None:
    toy = additive(losses, Objective(reference_value=0.9, tolerance=0.03), factor)
    result = search(toy, Knapsack())
    assert result.feasible
    assert result.score.cost <= search(toy, Knapsack(rounds=1)).score.cost + 1
    assert result.evaluations <= sum(SIZES) - len(SIZES) + 30


def test_levels_first_then_the_last_options_then_a_plan_then_the_others() -> None:
    measure = Counting(TOYS["additive"])
    search(TOYS["additive"], Knapsack(), measure=measure, batch_size=99)
    assert measure.points[:2] == [(0, 0, 0, 0, 0), (1, 1, 1, 1, 1)], "level 1 does not hold, so neither does level 2"
    probes = [tuple(option * (i == j) for j in range(5)) for option in (2, 1) for i in range(5)]
    alone = [p for p in measure.points if p in probes]
    assert alone[:5] == probes[:5] and sorted(alone) == sorted(probes), "each once"
    assert (2, 0, 2, 2, 2) in measure.points[:10], "the optimum, planned before half of the options were probed"


def test_the_first_plan_is_made_from_the_levels_alone() -> None:
    """In 40 choices of 5 options: within 1 bit of the optimum after four evaluations, with not one option probed."""
    space = make_space(*[5] * 40)
    toy = Toy(space, lambda p: 0.9 - 1e-4 * sum(i * i for i in p), lambda p: bits(space, p), WITHIN_TOLERANCE)
    few = search(toy, Knapsack(), max_evaluations=4)
    # A first step loses 1e-4 and a second one 3e-4: all 40 and 20 of the second ones use up the tolerance.
    assert few.feasible and few.score.cost <= 320 - (40 + 20) + 1


def test_an_option_whose_probe_is_broken_is_never_planned() -> None:
    space = make_space(3, 3)
    toy = Toy(space, lambda p: math.nan if p[0] == 2 else 0.9, lambda p: bits(space, p), WITHIN_TOLERANCE)
    measure = Counting(toy)
    assert search(toy, Knapsack(), measure=measure).best == (1, 2)
    assert [p for p in measure.points if p[0] == 2] == [(2, 2), (2, 0)], "the level and the probe only"


def test_a_gain_is_taken_but_pays_for_nothing() -> None:
    """Choice 0 gains 0.05 alone and for the same cost; the 0.02 of choice 1 still is more than the tolerance."""
    space = make_space(2, 2, 2)
    toy = Toy(space, lambda p: 0.9 + 0.05 * p[0] - 0.02 * p[1], lambda p: 15.0 - p[1] - p[2], WITHIN_TOLERANCE)
    measure = Counting(toy)
    result = search(toy, Knapsack(), measure=measure)
    assert (1, 0, 1) in measure.points, "the plan"
    assert result.best == (1, 1, 1), "what was evaluated decides"


def test_grid_goes_level_by_level() -> None:
    toy = TOYS["flat_value"]
    measure = Counting(toy)
    search(toy, Grid(), measure=measure)
    everything = set(itertools.product(range(3), range(4), range(3)))
    assert set(measure.points) == everything
    assert measure.points == sorted(everything, key=lambda p: (sum(p), p))


def test_grid_in_a_space_too_large_ends_with_the_budget() -> None:
    space = make_space(*[8] * 600)
    toy = Toy(space, lambda p: 0.9, lambda p: float(-sum(p)), WITHIN_TOLERANCE)
    assert search(toy, Grid(), max_evaluations=700).evaluations == 700


def test_greedy_edge_takes_the_best_option_of_each_choice() -> None:
    measure = Counting(TOYS["interaction"])
    search(TOYS["interaction"], GreedyEdge(), measure=measure, batch_size=99)
    options = (1, 2, 3)
    batches = [[(i, 0, 0) for i in options], [(3, i, 0) for i in options], [(3, 0, i) for i in options]]
    assert measure.points[1:] == [point for batch in batches for point in batch]
    assert measure.calls == 4


def test_greedy_backward_raises_what_loses_most() -> None:
    measure = Counting(TOYS["additive"])
    result = search(TOYS["additive"], GreedyBackward(), measure=measure)
    assert measure.points[1:6] == [tuple(2 * (i == j) for j in range(5)) for i in range(5)], "one probe per choice"
    assert measure.points[6:] == [(2, 2, 2, 2, 2), (2, 1, 2, 2, 2), (2, 0, 2, 2, 2)]
    assert result.best == (2, 0, 2, 2, 2)


def test_greedy_backward_leaves_alone_what_saves_nothing() -> None:
    space = make_space(3, 3)
    toy = Toy(space, lambda p: 0.9 - 0.1 * p[0], lambda p: float(space.decode(p)["bits:1"]), WITHIN_TOLERANCE)
    assert search(toy, GreedyBackward()).best == (0, 2)


def test_greedy_backward_refuses_a_decay_below_one() -> None:
    with pytest.raises(ConfigError, match=r"search\.algorithm\.decay"):
        GreedyBackward(decay=0.5)


def test_where_the_most_precise_point_overflows_a_better_level_is_probed_from() -> None:
    """Steps finer than the sum has room for break the result: there is room for two beyond the level in the middle.
    Which choices are worth them only probes from that level can say."""
    worth = (3, 9, 1, 4, 8, 2, 5, 6, 7, 10)
    space = make_space(*[3] * len(worth))

    def value(p: Point) -> float:
        overflow = sum(2 - i for i in p) - (len(p) + 2)
        return -5.0 if overflow > 0 else -sum(w * i * i for w, i in zip(worth, p, strict=True)) / 100

    objective = Objective(form=ObjectiveForm.BEST_VALUE_WITHIN_COST, cost_limit=8.0 * len(worth))
    toy = Toy(space, value, lambda p: bits(space, p), objective)
    result = search(toy, Knapsack(), max_evaluations=1 + 2 * len(worth) + 30)
    assert result.score.value >= -(sum(worth) - sum(sorted(worth)[-2:])) / 100
