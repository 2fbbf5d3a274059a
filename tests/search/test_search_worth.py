"""What a search returns where its result is worse than its start and the device pays no less for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from quantpipe.pipeline import search_benefit as worth
from quantpipe.search import CostKind, Greedy, Objective, SearchResult, Stopped
from quantpipe.types import SOFT_KL, Point, Score, Trial
from tests.ops.line import hardware

START, END = (0, 0), (1, 2)
SCORES = {START: Score(-0.001, 10.0), END: Score(-0.015, 7.0)}


def weighed(monkeypatch: pytest.MonkeyPatch, costs: dict[Point, float], cost: CostKind) -> worth.Worth:
    """The start is the better one, by less than the tolerance; `costs` are what the device pays."""
    monkeypatch.setattr(worth, "device_cost", lambda job, point: costs[point])
    settings = SimpleNamespace(spec=hardware("vta"), config={}, search=SimpleNamespace(algorithm=Greedy()))
    job: Any = SimpleNamespace(space=SimpleNamespace(start=START, size=6), settings=settings, left_out={})
    trials = tuple(Trial(number, point, score, 0.1) for number, (point, score) in enumerate(SCORES.items()))
    result = SearchResult(END, SCORES[END], True, 2, 2, 0.2, Stopped.DONE, trials)
    return worth.weighed(job, result, Objective(tolerance=0.02, cost=cost), point=END, score=SCORES[END])


def test_what_costs_the_device_no_less_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = weighed(monkeypatch, {START: 5.0, END: 5.0}, CostKind.CYCLES)
    assert (found.point, found.score) == (START, SCORES[START])
    assert found.report["result"] == 5.0 and "better than the start" in str(found.report["sentence"])


def test_what_costs_it_less_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = weighed(monkeypatch, {START: 5.0, END: 4.0}, CostKind.CYCLES)
    assert found.point == END and "cost from 10 to 7 within the tolerance" in str(found.report["sentence"])


def test_who_asks_for_a_cost_that_counts_bits_gets_them_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = weighed(monkeypatch, {START: 5.0, END: 5.0}, CostKind.BITS)
    assert found.point == END and "is no lower" in str(found.report["sentence"])


@pytest.mark.parametrize("cost", [CostKind.CYCLES, CostKind.BITS])
@pytest.mark.parametrize("start", [-0.001, -0.1])
def test_a_greater_loss_at_the_same_cost_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, start: float, cost: CostKind
) -> None:
    """Searches order losses by KL at a temperature; the start may miss the tolerance as well."""
    scores = {START: Score(start, 10.0, ((SOFT_KL, 0.3),)), END: Score(start * 1.5, 10.0, ((SOFT_KL, 0.1),))}
    monkeypatch.setitem(SCORES, START, scores[START])
    monkeypatch.setitem(SCORES, END, scores[END])
    found = weighed(monkeypatch, {START: 5.0, END: 5.0}, cost)
    assert (found.point, found.score) == (START, scores[START])
    assert "the result is the start" in str(found.report["sentence"])
