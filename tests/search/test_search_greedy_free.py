"""Choices that cost nothing (threshold steps) are settled before greedy walks down."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from quantpipe.search import Evaluator, Greedy, Objective, ObjectiveOptions, run_search
from quantpipe.types import Choice, ChoiceSpace, Point, Score

SPACE = ChoiceSpace(
    (
        Choice("bits:a", "bits", (8, 7, 6)),
        Choice("step:a", "threshold_step", (0, -1, 1)),
        Choice("step:b", "threshold_step", (0, -1, 1)),
    )
)
VALUES = {"step:a": {0: 0.0, -1: 0.02, 1: -0.5}, "step:b": {0: 0.0, -1: -0.3, 1: -0.3}}


def measure(points: Sequence[Point]) -> list[Score]:
    found = []
    for point in points:
        chosen = SPACE.decode(point)
        value = -0.05 - 0.01 * (8 - chosen["bits:a"]) + sum(VALUES[s][chosen[s]] for s in VALUES)
        found.append(Score(value, float(chosen["bits:a"])))
    return found


@pytest.mark.parametrize(("tolerance", "bits", "step"), [(0.1, 6, -1), (0.045, 7, -1), (0.01, 8, -1)])
def test_a_better_step_is_taken_whatever_the_tolerance(tolerance: float, bits: int, step: int) -> None:
    objective = Objective.of(
        ObjectiveOptions(
            metric="kl", form="least_cost_within_tolerance", tolerance=tolerance, cost="bits", cost_limit=None
        )
    )
    result = run_search(Greedy(), SPACE, Evaluator(measure, objective), objective, seed=0)
    assert SPACE.decode(result.best) == {"bits:a": bits, "step:a": step, "step:b": 0}
    assert np.isclose(result.score.value, measure([result.best])[0].value)
