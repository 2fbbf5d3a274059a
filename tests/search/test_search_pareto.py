"""The front against its definition, and the rules that pick from it against hand-made ones."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_toys import ALGORITHMS, TOYS, Counting, ListLog, Toy, search

from quantpipe.errors import ConfigError
from quantpipe.search import Metric, Objective, ObjectiveForm, Pick, front
from quantpipe.types import Score, Trial

KL = Objective(metric=Metric.KL, form=ObjectiveForm.PARETO)
ACCURACY = Objective(metric=Metric.ACCURACY, form=ObjectiveForm.PARETO, reference_value=0.9)


def trials(*scores: tuple[float, float]) -> list[Trial]:
    """(cost, value) in the order of evaluation."""
    return [Trial(i, (i,), Score(value, cost), 0.0) for i, (cost, value) in enumerate(scores)]


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6) | st.just(math.nan)), max_size=30))
def test_front_is_what_nothing_dominates(scores: list[tuple[float, float]]) -> None:
    all_of_them = trials(*scores)
    usable = [t.score for t in all_of_them if not math.isnan(t.score.value)]

    def dominated(s: Score) -> bool:
        return any(o.cost <= s.cost and o.value >= s.value and (o.cost, o.value) != (s.cost, s.value) for o in usable)

    expected = sorted({(s.cost, s.value) for s in usable if not dominated(s)})
    found = front(all_of_them)
    assert [(t.score.cost, t.score.value) for t in found] == expected
    for trial in found:
        twins = [t.number for t in all_of_them if t.score == trial.score]
        assert trial.number == min(twins), "of equals the first"


def test_within_takes_the_cheapest_that_is_near_enough() -> None:
    points = trials((1, 0.5), (2, 0.89), (3, 0.896), (4, 0.9))
    assert Pick.parse("within:1")(points, ACCURACY).number == 1, "one point of percent below 0.9"
    assert Pick.parse("within:0.5")(points, ACCURACY).number == 2
    assert Pick.parse("within:0")(points, ACCURACY).number == 3
    losses = trials((1, -0.5), (2, -0.02), (3, -0.01))
    assert Pick.parse("within:0.02")(losses, KL).number == 1, "KL in nats"
    missed = Pick.parse("within:0.001")
    assert missed(losses, KL).number == 2 and not missed.holds(losses[2], KL)
    assert Pick.parse("best")(losses, KL).number == 2


def test_knee() -> None:
    assert Pick.parse("knee")(trials((0, 0.0), (1, 0.8), (5, 0.9), (10, 1.0)), ACCURACY).number == 1
    assert Pick.parse("knee")(trials((0, 0.0), (5, 0.4), (6, 0.9), (10, 1.0)), ACCURACY).number == 2
    assert Pick.parse("knee")(trials((0, 0.0), (1, 0.8)), ACCURACY).number == 1, "no knee: the greatest value"
    assert Pick.parse("knee")(trials((3, 0.3)), ACCURACY).number == 0


@pytest.mark.parametrize("rule", ["nee", "within", "within:", "within:-1", "within:nan", "knee:2", "", "best:1"])
def test_rules_without_meaning_are_refused(rule: str) -> None:
    with pytest.raises(ConfigError, match=r"pick.*knee, within:X"):
        Pick.parse(rule)


@pytest.mark.parametrize("name", [n for n in ALGORITHMS if n not in ("uniform",)])
def test_a_run_holds_the_front_of_all_it_measured(name: str) -> None:
    toy = TOYS["pareto"]
    measure = Counting(toy)
    result = search(toy, ALGORITHMS[name], measure=measure, max_evaluations=40)
    expected = front(Trial(i, p, toy.score(p), 0.0) for i, p in enumerate(measure.points))
    assert [t.point for t in result.front] == [t.point for t in expected]


@pytest.mark.parametrize("name", ["knapsack", "evolutionary", "greedy", "greedy_backward", "tpe", "surrogate"])
def test_the_searches_for_fronts_find_most_of_it(name: str) -> None:
    """Share of the true front's hypervolume after half of the space; the reference point is the worst of all."""
    toy = TOYS["pareto"]
    every = [Trial(i, p, toy.score(p), 0.0) for i, p in enumerate(sorted(all_points(toy)))]
    best = front(every)
    worst = (max(t.score.cost for t in every), min(t.score.value for t in every))
    found = search(toy, ALGORITHMS[name], max_evaluations=40).front
    assert volume(found, worst) >= 0.95 * volume(best, worst)


def all_points(toy: Toy) -> list[tuple[int, ...]]:
    return list(itertools.product(*(range(len(c.options)) for c in toy.space)))


def volume(points: tuple[Trial, ...], worst: tuple[float, float]) -> float:
    """Area between a front and the worst corner."""
    total = 0.0
    for trial, following in zip(points, (*points[1:], None), strict=True):
        end = worst[0] if following is None else following.score.cost
        total += (end - trial.score.cost) * (trial.score.value - worst[1])
    return total


def test_a_target_ends_a_search_and_a_resumed_one_alike() -> None:
    toy = TOYS["additive"]
    whole = Counting(toy)
    result = search(toy, ALGORITHMS["greedy"], measure=whole, target=36.0)
    assert result.stopped == "target"
    assert result.score.cost <= 36.0 and result.feasible
    assert all(toy.score(p).cost > 36.0 or not toy.objective.feasible(toy.score(p)) for p in whole.points[:-1])
    log = ListLog()
    search(toy, ALGORITHMS["greedy"], log=log, max_evaluations=5)
    again = Counting(toy)
    resumed = search(toy, ALGORITHMS["greedy"], log=log, measure=again, target=36.0)
    assert (resumed.best, resumed.stopped, len(again.points)) == (result.best, "target", len(whole.points) - 5)
    once_more = search(toy, ALGORITHMS["greedy"], log=log, target=36.0)
    assert (once_more.evaluations_new, once_more.best) == (0, result.best)


def test_what_was_given_up_is_not_on_the_front() -> None:
    exact = trials((2.0, -1.0), (4.0, -0.5))
    bound = Trial(2, (2,), Score(-0.1, 1.0, pruned=True), 0.0)
    assert front([*exact, bound]) == tuple(exact)
