"""The linear model of the loss, by which surrogate settles choices that cost nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from quantpipe.search import Algorithm, Budget, Evaluator, Greedy, GreedyBackward, Objective, Surrogate, run_search
from quantpipe.search.algorithms.linear_model import drawn
from quantpipe.types import Choice, ChoiceSpace, Point, Score
from tests.search.search_toys import ListLog

COUNT = 24
OPTIONS = ("estimated", "halved", "doubled")
SPACE = ChoiceSpace(tuple(Choice(f"range:t{i}", "range", OPTIONS, graded=False) for i in range(COUNT)))
OBJECTIVE = Objective(tolerance=0.001)
EFFECTS = np.random.default_rng(3).uniform(0.2, 1.2, (COUNT, 2))
EFFECTS[::3, 0] = -0.6
"""What halved and doubled add to the logarithm of the loss: every third range is better halved."""
BEST = tuple(int(i % 3 == 0) for i in range(COUNT))


def measured(points: Sequence[Point]) -> list[Score]:
    sums = [sum(EFFECTS[i, o - 1] for i, o in enumerate(point) if o) for point in points]
    return [Score(-0.1 * math.exp(total), 1.0) for total in sums]


def test_surrogate_needs_less_than_half_of_greedys_evaluations() -> None:
    """For the loss that greedy ends with: effects that add up are learnt from few points."""
    greedy = run_search(Greedy(), SPACE, Evaluator(measured, OBJECTIVE), OBJECTIVE, seed=0)
    half = Evaluator(measured, OBJECTIVE, budget=Budget(greedy.evaluations // 2))
    found = run_search(Surrogate(), SPACE, half, OBJECTIVE, seed=0)
    assert found.score.value >= greedy.score.value * 1.02
    assert found.evaluations <= greedy.evaluations // 2


def test_the_model_of_enough_points_draws_the_best_one() -> None:
    rng = np.random.default_rng(0)
    few = rng.integers(0, 3, (400, COUNT)) * (rng.random((400, COUNT)) < 0.2)
    points: list[Point] = [SPACE.start, *map(tuple, few.tolist())]
    known = dict(zip(points, measured(points), strict=True))
    assert drawn(SPACE, range(COUNT), known, OBJECTIVE, base=SPACE.start, rng=rng) == BEST


@pytest.mark.parametrize("broken", [math.nan, -math.inf])
def test_broken_points_hide_nothing(broken: float) -> None:
    """A point without a value says that its options are bad, and no more."""
    rng = np.random.default_rng(0)
    alone = [tuple(o if i == at else 0 for i in range(COUNT)) for at in range(COUNT) for o in (1, 2)]
    known: dict[Point, Score] = dict(zip(alone, measured(alone), strict=True))
    known[SPACE.start] = measured([SPACE.start])[0]
    known[(2,) * COUNT] = Score(broken, 1.0)
    found = [drawn(SPACE, range(COUNT), known, OBJECTIVE, base=SPACE.start, rng=rng) for _ in range(8)]
    gained = [sum(p[i] == 1 for i in range(0, COUNT, 3)) for p in found if p is not None]
    assert len(gained) == 8 and np.mean(gained) > 6


def test_nothing_is_drawn_where_all_is_known() -> None:
    small = ChoiceSpace(SPACE.choices[:1])
    known: Mapping[Point, Score] = {(o,): Score(-0.1, 1.0) for o in range(3)}
    assert drawn(small, [0], known, OBJECTIVE, base=(0,), rng=np.random.default_rng(0)) is None


@pytest.mark.sliced(3)
@pytest.mark.parametrize("algorithm", [GreedyBackward(), Surrogate()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("stopped", [1, 2, 13, 40])
def test_a_search_of_ranges_ends_alike_wherever_it_was_stopped(algorithm: Algorithm, stopped: int) -> None:
    most = Budget(70)
    whole = run_search(algorithm, SPACE, Evaluator(measured, OBJECTIVE, budget=most), OBJECTIVE, seed=5)
    log = ListLog()
    run_search(algorithm, SPACE, Evaluator(measured, OBJECTIVE, budget=Budget(stopped), log=log), OBJECTIVE, seed=5)
    again = run_search(algorithm, SPACE, Evaluator(measured, OBJECTIVE, budget=most, log=log), OBJECTIVE, seed=5)
    assert (again.best, again.score, again.evaluations) == (whole.best, whole.score, whole.evaluations)
    assert [t.point for t in again.trace] == [t.point for t in whole.trace]
    assert again.evaluations_new == whole.evaluations - stopped


def test_greedy_backward_comes_near_greedy_with_half_of_its_evaluations() -> None:
    greedy = run_search(Greedy(), SPACE, Evaluator(measured, OBJECTIVE), OBJECTIVE, seed=0)
    half = Evaluator(measured, OBJECTIVE, budget=Budget(greedy.evaluations // 2))
    found = run_search(GreedyBackward(), SPACE, half, OBJECTIVE, seed=0)
    assert found.score.value >= greedy.score.value * 1.02
