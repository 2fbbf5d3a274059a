"""Which candidates are recovered."""

from __future__ import annotations

import math

import pytest

from quantpipe.search import Objective, ObjectiveForm, finalists
from quantpipe.types import Score, Trial


def trials(*scores: tuple[float, float]) -> list[Trial]:
    return [Trial(n, (n,), Score(value, cost), 0.0) for n, (value, cost) in enumerate(scores)]


WITHIN = Objective(tolerance=0.01, metric="kl")
LIMITED = Objective(form=ObjectiveForm.BEST_VALUE_WITHIN_COST, metric="kl", cost_limit=50.0)
FRONT = Objective(form=ObjectiveForm.PARETO, metric="kl", cost_unit=100.0)


def numbers(found: tuple[Trial, ...]) -> list[int]:
    return [t.number for t in found]


def test_the_best_and_cheaper_ones_that_lose_too_much_so_far() -> None:
    found = trials((0.0, 100), (-0.009, 80), (-0.02, 70), (-0.05, 60), (-0.04, 90), (-0.15, 50), (-0.5, 40))
    assert numbers(finalists(found, WITHIN, 9)) == [1, 2, 3, 5]  # 4 is beaten by 2, 6 lost beyond reach
    assert numbers(finalists(found, WITHIN, 3)) == [1, 2, 5]
    assert numbers(finalists(found, WITHIN, 2)) == [1, 2]
    assert numbers(finalists(found, WITHIN, 1)) == [1]


def test_within_a_cost_those_of_the_greatest_value_that_fit() -> None:
    found = trials((0.0, 100), (-0.3, 40), (-0.1, 50), (-0.2, 45), (-0.01, 51))
    assert numbers(finalists(found, LIMITED, 3)) == [2, 3, 1]


def test_of_a_front_both_ends_and_what_is_between() -> None:
    found = trials((0.0, 100), (-0.1, 80), (-0.2, 60), (-0.3, 40), (-0.4, 20), (-0.5, 90))
    assert numbers(finalists(found, FRONT, 3)) == [4, 2, 0]


@pytest.mark.parametrize("objective", [WITHIN, LIMITED, FRONT])
def test_never_one_that_was_given_up_or_has_no_value(objective: Objective) -> None:
    found = trials((-0.02, 40), (math.nan, 10), (-0.001, 30))
    found.append(Trial(3, (3,), Score(0.0, 5.0, pruned=True), 0.0))
    assert set(numbers(finalists(found, objective, 9))) <= {0, 2}
    assert finalists(found[1:2], objective, 3) == ()
