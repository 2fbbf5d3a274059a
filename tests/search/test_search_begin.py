"""Where sums overflow, no choice alone helps: searches begin with fewer bits of all tensors together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from quantpipe.search import Evaluator, Objective, ObjectiveOptions, run_search
from quantpipe.types import Choice, ChoiceSpace, Point, Score
from tests.search.search_toys import ALGORITHMS

KEYS = [f"bits:{i}" for i in range(4)]
SPACE = ChoiceSpace(tuple(Choice(key, "bits", (8, 7, 6, 5)) for key in KEYS))


def measure(points: Sequence[Point]) -> list[Score]:
    """Sums overflow unless all have 6 bits or fewer; below that each bit costs precision."""
    found = []
    for point in points:
        bits = list(SPACE.decode(point).values())
        precision = sum(0.01 * (8 - int(b)) for b in bits)
        found.append(Score(-3.0 if any(int(b) > 6 for b in bits) else -precision, 1.0))
    return found


def objective(tolerance: float) -> Objective:
    options = ObjectiveOptions(
        metric="kl", form="least_cost_within_tolerance", tolerance=tolerance, cost="bits", cost_limit=None
    )
    return Objective.of(options)


@pytest.mark.parametrize("name", ["greedy", "greedy_backward", "greedy_edge", "knapsack"])
def test_fewer_bits_of_all_are_found(name: str) -> None:
    aim = objective(0.02)
    result = run_search(ALGORITHMS[name], SPACE, Evaluator(measure, aim), aim, seed=0)
    assert result.score.value == pytest.approx(-0.08) and SPACE.decode(result.best) == dict.fromkeys(KEYS, 6)


def test_uniform_asks_for_the_most_precise_point_alone() -> None:
    aim = objective(0.02)
    result = run_search(ALGORITHMS["uniform"], SPACE, Evaluator(measure, aim), aim, seed=0)
    assert result.evaluations == 1 and result.best == SPACE.start


def test_a_start_that_is_good_enough_asks_for_nothing_more() -> None:
    asked = {}
    for tolerance in (0.02, 5.0):
        aim = objective(tolerance)
        evaluator = Evaluator(measure, aim)
        run_search(ALGORITHMS["greedy_edge"], SPACE, evaluator, aim, seed=0)
        asked[tolerance] = {trial.point for trial in evaluator.trials}
    assert (2, 2, 2, 2) in asked[0.02] and (2, 2, 2, 2) not in asked[5.0]
