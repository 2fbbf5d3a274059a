"""Memo, budgets, callbacks and exceptions of the evaluator, and how a search ends."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from search_toys import ALGORITHMS, TOYS, WITHIN_TOLERANCE, Counting, ListLog, Ticks, search

from quantpipe.errors import ConfigError
from quantpipe.search import Batching, Budget, Evaluator, Objective, Stopped, run_search
from quantpipe.search.evaluator import BudgetExhausted
from quantpipe.types import Point, Score, Trial

TOY = TOYS["additive"]
A, B, C, D = (0, 0, 0, 0, 0), (1, 0, 0, 0, 0), (0, 1, 0, 0, 0), (0, 0, 1, 0, 0)


def test_answers_in_the_order_asked_and_measures_once() -> None:
    measure = Counting(TOY)
    evaluate = Evaluator(measure, TOY.objective, batching=Batching(size=8))
    assert evaluate([B, A, B, C]) == TOY.measure([B, A, B, C])
    assert evaluate([C, D, A]) == TOY.measure([C, D, A])
    assert measure.points == [B, A, C, D]
    assert (evaluate.evaluations, evaluate.evaluations_new) == (4, 4)
    assert evaluate([]) == []


@pytest.mark.parametrize("batch_size", [1, 2, 3, 10])
def test_batches_change_nothing_but_the_calls(batch_size: int) -> None:
    calls: list[int] = []

    def measure(points: Sequence[Point]) -> list[Score]:
        calls.append(len(points))
        return TOY.measure(points)

    log = ListLog()
    Evaluator(measure, TOY.objective, batching=Batching(size=batch_size), log=log)([A, B, C, D])
    assert [t.point for t in log.trials] == [A, B, C, D]
    assert [t.number for t in log.trials] == [0, 1, 2, 3]
    assert max(calls) <= batch_size
    assert len(calls) == math.ceil(4 / batch_size)


def test_a_log_with_gaps_is_answered_in_the_order_asked() -> None:
    """The twins are equally good: the one asked first is the best, also when only the other is in the log."""
    twin = (1, 0, 0, 0, 0), (0, 0, 0, 1, 0)
    log = ListLog()
    Evaluator(TOY.measure, TOY.objective, log=log)([twin[1]])
    evaluate = Evaluator(TOY.measure, TOY.objective, batching=Batching(size=8), log=log)
    evaluate([A, twin[0], twin[1], C])
    assert [t.point for t in evaluate.trace] == [A, twin[0]]
    assert [t.number for t in log.trials] == [0, 1, 2, 3]
    assert evaluate.evaluations_new == 3


def test_the_budget_of_evaluations_answers_what_it_allows() -> None:
    measure = Counting(TOY)
    evaluate = Evaluator(measure, TOY.objective, budget=Budget(max_evaluations=3), batching=Batching(size=8))
    evaluate([A, B])
    with pytest.raises(BudgetExhausted):
        evaluate([B, C, D])
    assert measure.points == [A, B, C]
    assert evaluate([C, A]) == TOY.measure([C, A]), "known points stay free"
    with pytest.raises(BudgetExhausted):
        evaluate([D])


def test_the_budget_of_seconds_stops_before_a_measurement() -> None:
    measure = Counting(TOY)
    evaluate = Evaluator(measure, TOY.objective, budget=Budget(max_seconds=2.5), clock=Ticks())
    with pytest.raises(BudgetExhausted):
        evaluate([A, B, C, D])
    assert measure.points == [A, B, C]
    assert evaluate.seconds == 3.0


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("batch_size", [1, 5])
def test_resumed_seconds_stop_at_the_same_place(name: str, batch_size: int) -> None:
    options = {"max_seconds": 7.5, "batch_size": batch_size}
    log = ListLog()
    first = search(TOY, ALGORITHMS[name], log=log, clock=Ticks(), **options)
    measure = Counting(TOY)
    again = search(TOY, ALGORITHMS[name], log=log, clock=Ticks(), measure=measure, **options)
    assert measure.points == []
    assert (again.best, again.trace, again.seconds, again.stopped) == (
        first.best,
        first.trace,
        first.seconds,
        first.stopped,
    )
    assert again.evaluations == first.evaluations


def test_progress_tells_new_trials_and_the_best() -> None:
    told: list[tuple[Trial, Trial]] = []
    log = ListLog()
    Evaluator(TOY.measure, TOY.objective, log=log)([A])
    Evaluator(TOY.measure, TOY.objective, log=log, on_trial=lambda t, best: told.append((t, best)))([A, C, B])
    assert [t.point for t, _ in told] == [C, B], "A came from the log"
    assert [best.point for _, best in told] == [A, B], "C is infeasible"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(143), RuntimeError("session died")])
def test_exceptions_pass_and_the_log_stays(error: BaseException) -> None:
    log = ListLog()
    evaluate = Evaluator(Counting(TOY, fail_at=2, error=error), TOY.objective, log=log)
    with pytest.raises(type(error)):
        evaluate([A, B, C, D])
    assert [t.point for t in log.trials] == [A, B]
    assert evaluate.best is not None and evaluate.best.point == B


def test_numpy_scores_become_plain() -> None:
    """float32 compares with floats in single precision, so the log would give back another number."""
    edge = np.float32(0.89)
    evaluate = Evaluator(lambda points: [Score(edge, np.int64(3), (("top1", edge),))], TOY.objective)  # type: ignore[arg-type]
    (score,) = evaluate([tuple(np.zeros(5, dtype=np.int64))])
    assert type(score.value) is float and type(score.cost) is float and type(score.metrics[0][1]) is float
    assert not TOY.objective.feasible(score)


def test_a_measure_that_breaks_its_contract_is_told() -> None:
    with pytest.raises(ValueError, match="1 scores for 2 points"):
        Evaluator(lambda points: TOY.measure(points[:1]), TOY.objective, batching=Batching(size=2))([A, B])
    with pytest.raises(ValueError, match="no number"):
        Evaluator(lambda points: [Score(0.9, math.nan)], TOY.objective)([A])


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"max_evaluations": 0}, "search.max_evaluations"),
        ({"max_evaluations": 2.5}, "search.max_evaluations"),
        ({"max_evaluations": True}, "search.max_evaluations"),
        ({"max_seconds": 0}, "search.max_seconds"),
        ({"max_seconds": "1h"}, "search.max_seconds"),
    ],
)
def test_budgets_without_meaning_are_refused_by_key(options: dict[str, object], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"{key}.*or null for no limit"):
        search(TOY, ALGORITHMS["uniform"], **options)


def test_how_a_search_ends() -> None:
    assert search(TOY, ALGORITHMS["greedy"]).stopped is Stopped.DONE
    assert search(TOY, ALGORITHMS["greedy"], max_evaluations=4).stopped is Stopped.BUDGET
    assert search(TOY, ALGORITHMS["uniform"], max_evaluations=1).stopped is Stopped.DONE
    interrupted = search(TOY, ALGORITHMS["greedy"], measure=Counting(TOY, fail_at=4))
    assert interrupted.stopped is Stopped.INTERRUPTED
    assert interrupted.evaluations == 4
    with pytest.raises(KeyboardInterrupt):
        search(TOY, ALGORITHMS["greedy"], measure=Counting(TOY, fail_at=0))
    with pytest.raises(RuntimeError):
        search(TOY, ALGORITHMS["greedy"], measure=Counting(TOY, fail_at=4, error=RuntimeError()))


def test_what_run_search_refuses() -> None:
    with pytest.raises(ConfigError, match="seed"):
        search(TOY, ALGORITHMS["uniform"], seed=-1)
    with pytest.raises(ConfigError, match=r"search\.algorithm.*no point"):
        search(TOY, lambda space, evaluate, objective, rng: None)
    evaluator = Evaluator(TOY.measure, WITHIN_TOLERANCE)
    with pytest.raises(ValueError, match="another objective"):
        run_search(ALGORITHMS["uniform"], TOY.space, evaluator, Objective(tolerance=0.5), seed=0)
