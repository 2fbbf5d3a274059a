"""Measurements that are given up because they cannot win: the result is the same, and so is a resumed one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from search_toys import ALGORITHMS, TOYS, Counting, ListLog, Toy, search

from quantpipe.search import Batching, Budget, Evaluator, JsonlLog
from quantpipe.search.evaluator import ShouldPrune
from quantpipe.types import Point, Score

A, B, C, D = (0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 2, 0, 0, 0)
TOY = TOYS["additive"]


@dataclass
class GivingUp:
    """A measure of `parts` looks: after each, what is still possible comes nearer to the true value from above."""

    toy: Toy
    parts: int = 4
    fail_at: int | None = None
    points: list[tuple[Point, bool]] = field(default_factory=list)
    looks: int = 0

    def __call__(self, points: Sequence[Point], should_prune: Callable[[Score], bool] | None = None) -> Iterator[Score]:
        for point in points:
            if len(self.points) == self.fail_at:
                raise KeyboardInterrupt
            score = self._measure(point, should_prune)
            self.points.append((point, score.pruned))
            yield score

    def _measure(self, point: Point, should_prune: Callable[[Score], bool] | None) -> Score:
        exact = self.toy.score(point)
        for part in range(self.parts):
            bound = Score(0.9 - (0.9 - exact.value) * part / self.parts, exact.cost, pruned=True)
            if should_prune is not None and should_prune(bound):
                return bound
            self.looks += 1
        return exact


@pytest.mark.sliced(12)
@pytest.mark.parametrize("toy", TOYS)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_finds_the_same(name: str, toy: str) -> None:
    t = TOYS[toy]
    plain = search(t, ALGORITHMS[name], max_evaluations=150)
    measure = GivingUp(t)
    found = search(t, ALGORITHMS[name], measure=measure, prunes=True, batch_size=None, max_evaluations=150)
    assert (found.best, found.score, found.feasible) == (plain.best, plain.score, plain.feasible)
    assert [x.point for x in found.trace] == [x.point for x in plain.trace]
    assert found.evaluations == plain.evaluations
    assert found.pruned == sum(pruned for _, pruned in measure.points)


def test_greedy_saves_looks() -> None:
    measure = GivingUp(TOY)
    found = search(TOY, ALGORITHMS["greedy_topological"], measure=measure, prunes=True)
    assert found.pruned > 0
    assert measure.looks < 4 * found.evaluations


def test_without_prunes_the_rival_is_kept_from_the_measure() -> None:
    counting = Counting(TOY)
    evaluate = Evaluator(counting, TOY.objective)
    assert evaluate([A, B], incumbent=TOY.score(A)) == TOY.measure([A, B])


def test_what_was_given_up_is_measured_again_where_it_matters() -> None:
    measure = GivingUp(TOY)
    log = ListLog()
    evaluate = Evaluator(measure, TOY.objective, batching=Batching(prunes=True, size=None), log=log)
    start = evaluate([A])[0]
    (pruned,) = evaluate([D], incumbent=start)  # loses 0.04 of the 0.01 allowed
    assert pruned.pruned and pruned.cost == TOY.score(D).cost and pruned.value >= TOY.score(D).value
    assert not TOY.objective.better(pruned, start)
    assert evaluate([D], incumbent=start) == [pruned], "the same question has an answer"
    assert len(measure.points) == 2
    assert evaluate([D]) == [TOY.score(D)]
    assert evaluate([D], incumbent=start) == [TOY.score(D)], "an exact score answers everything"
    assert [t.point for t in log.trials] == [A, D, D] and [t.score.pruned for t in log.trials] == [False, True, False]
    assert evaluate.evaluations == 2 and evaluate.best is not None and evaluate.best.point == A
    again = Evaluator(GivingUp(TOY, fail_at=0), TOY.objective, batching=Batching(prunes=True, size=None), log=log)
    assert again([A]) == [start]
    assert again([D], incumbent=start) == [pruned], "as in the first run"
    assert again([D]) == [TOY.score(D)]


def test_a_rival_that_is_worse_than_the_bound_asks_for_more() -> None:
    measure = GivingUp(TOY)
    evaluate = Evaluator(measure, TOY.objective, batching=Batching(prunes=True, size=None))
    worst = (2, 2, 2, 2, 2)
    start = evaluate([A])[0]
    assert evaluate([D], incumbent=start)[0].pruned
    assert evaluate([D], incumbent=TOY.score(worst)) == [TOY.score(D)]


@pytest.mark.sliced(16)
@pytest.mark.parametrize("name", ["greedy", "greedy_topological", "greedy_edge", "knapsack"])
@pytest.mark.parametrize("toy", ["additive", "interaction", "within_cost"])
def test_a_resumed_search_is_the_uninterrupted_one(name: str, toy: str, tmp_path: Path) -> None:
    t, origin = TOYS[toy], {"toy": toy}
    whole = JsonlLog(tmp_path / "whole.jsonl", origin)
    expected = search(t, ALGORITHMS[name], measure=GivingUp(t), prunes=True, batch_size=None, log=whole)
    lines = [(x.number, x.point, x.score) for x in whole.read()]
    for stop in range(1, len(lines)):
        log = JsonlLog(tmp_path / f"{stop}.jsonl", origin)
        search(t, ALGORITHMS[name], measure=GivingUp(t, fail_at=stop), prunes=True, batch_size=None, log=log)
        assert [(x.number, x.point, x.score) for x in log.read()] == lines[:stop], "what was measured is not lost"
        found = search(t, ALGORITHMS[name], measure=GivingUp(t), prunes=True, batch_size=None, log=log)
        assert (found.best, found.score, found.pruned) == (expected.best, expected.score, expected.pruned)
        assert [(x.number, x.point, x.score) for x in log.read()] == lines
        assert found.evaluations_new == len(lines) - stop


def test_hopeless_is_exactly_not_better() -> None:
    should_prune = ShouldPrune(TOY.objective, TOY.score(B))
    for point in (A, B, C, D):
        assert should_prune(TOY.score(point)) is not TOY.objective.better(TOY.score(point), TOY.score(B))


def test_a_stream_is_closed_when_the_budget_of_seconds_ends() -> None:
    closed: list[bool] = []
    now = [0.0]

    def stream(points: Sequence[Point]) -> Iterator[Score]:
        try:
            for point in points:
                now[0] += 1.0
                yield TOY.score(point)
        finally:
            closed.append(True)

    from quantpipe.search.evaluator import BudgetExhausted

    evaluate = Evaluator(
        stream, TOY.objective, budget=Budget(max_seconds=2.0), batching=Batching(size=None), clock=lambda: now[0]
    )
    with pytest.raises(BudgetExhausted):
        evaluate([A, B, C, D])
    assert closed and evaluate.evaluations == 2 and evaluate.seconds == 2.0
