"""Spaces in which the start is not good enough, and a dearer option (a layer in float) is the way out."""

from __future__ import annotations

import pytest
from search_toys import ALGORITHMS, WITHIN_TOLERANCE, Toy, search

from quantpipe.search import Knapsack
from quantpipe.types import Choice, ChoiceSpace, Point

LOST = (0.009, 0.02, 0.004)
"""By each layer in integers; 0.003 more with one bit less. Two of them have to go."""


def escape(lost: tuple[float, ...]) -> Toy:
    """Per layer 8 or 7 bits, which matter in integers only, and integer or float, which costs 32."""
    layers = range(len(lost))
    bits = [Choice(f"bits:{i}", "bits", (8, 7)) for i in layers]
    space = ChoiceSpace((*bits, *(Choice(f"float:{i}", "float", (0, 1), graded=False) for i in layers)))

    def loss(p: Point) -> float:
        return sum(lost[i] + 0.003 * p[i] for i in layers if not p[len(lost) + i])

    def cost(p: Point) -> float:
        return float(sum(32 if p[len(lost) + i] else 8 - p[i] for i in layers))

    return Toy(space, lambda p: 0.9 - loss(p), cost, WITHIN_TOLERANCE)


UNABLE = ("uniform", "greedy_topological")
"""They take what saves cost, and nothing else."""


@pytest.mark.sliced(2)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_way_out_is_found(name: str) -> None:
    toy = escape(LOST)
    assert not toy.objective.feasible(toy.score(toy.space.start))
    result = search(toy, ALGORITHMS[name])
    assert result.feasible == (name not in UNABLE)
    if name not in (*UNABLE, "greedy_edge"):  # greedy_edge takes the first float layer that gains anything
        assert toy.objective.key(result.score) == toy.objective.key(toy.optimum)


@pytest.mark.sliced(2)
@pytest.mark.parametrize("count", [6, 8])
def test_knapsack_plans_the_way_out_within_its_evaluations(count: int) -> None:
    """The best of it, within choices x options + 30 evaluations, against trying all points."""
    lost = tuple(0.001 * (1 + (5 * i) % 7) for i in range(count))
    toy = escape(lost)
    result = search(toy, Knapsack(), max_evaluations=4 * count + 30)
    assert result.feasible
    assert result.score.cost <= 1.01 * toy.optimum.cost
