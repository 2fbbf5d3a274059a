"""Spaces of hundreds of choices: a search beats doing nothing."""

from __future__ import annotations

import pytest
from search_toys import ALGORITHMS, Toy, make_space, search

from quantpipe.search import Algorithm, Evolutionary, Objective, Surrogate, Tpe
from quantpipe.types import Point

CHOICES = 500
SPACE = make_space(*[5] * CHOICES)
LOSS = [1e-5 * (1 + i % 7) for i in range(CHOICES)]
LARGE = Toy(
    SPACE,
    lambda p: 0.9 - sum(w * (4.0**i - 1) for w, i in zip(LOSS, p, strict=True)),
    lambda p: float(sum((8 - i) * (1 + j % 3) for j, i in enumerate(p))),
    Objective(reference_value=0.9, tolerance=0.1, cost_unit=1.0),
)
SHIPPED: dict[str, Algorithm] = {
    **ALGORITHMS, "evolutionary": Evolutionary(), "tpe": Tpe(), "surrogate": Surrogate()
}  # fmt: skip


@pytest.mark.sliced(12)
@pytest.mark.parametrize("name", [n for n in SHIPPED if n != "uniform"])
def test_result_in_500_choices(name: str) -> None:
    result = search(LARGE, SHIPPED[name], max_evaluations=100)
    assert result.evaluations == 100
    start = LARGE.score(SPACE.start)
    assert not LARGE.objective.better(start, result.score), "no worse than everything at its first option"


def cost(name: str, budget: int) -> float:
    result = search(LARGE, SHIPPED[name], max_evaluations=budget)
    assert result.feasible
    return result.score.cost


@pytest.mark.parametrize("budget", [5, 10, 30, 60, 120])
def test_knapsack_beats_annealing_and_random_at_every_budget(budget: int) -> None:
    knapsack = cost("knapsack", budget)
    assert knapsack < cost("annealing", budget)
    assert knapsack < cost("random", budget)


@pytest.mark.slow
def test_a_walk_through_the_whole_of_it() -> None:
    def loss(point: Point) -> float:
        return LARGE.value(point)

    toy = Toy(SPACE, loss, LARGE.cost, Objective(reference_value=0.9, tolerance=0.1))
    result = search(toy, SHIPPED["knapsack"], max_evaluations=2600)
    assert result.feasible
