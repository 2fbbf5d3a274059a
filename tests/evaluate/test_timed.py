"""Latency as a cost: what is timed, against what, and what becomes of the score."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from quantpipe.graph.execute import Session
from quantpipe.lowering import Rendered
from quantpipe.scoring.timed import TimedMeasure
from quantpipe.types import Score
from tests.ops.line import Net, line


def small(layers: int) -> object:
    net = Net()
    x = net.input(None, 8, 40, 40)
    for i in range(layers):
        x = net.conv(x, 8, 8, 3, 3, name=f"conv{i}")
    net.output(x)
    return line(net).graph.model


def test_the_cost_is_the_ratio_to_the_float_model() -> None:
    models = {(0,): small(1), (1,): small(12)}
    asked: list[list[tuple[int, ...]]] = []

    def measure(points: object) -> list[Score]:
        asked.append(list(points))  # type: ignore[call-overload]
        return [Score(-0.5, 99.0, (("kl", 0.5),)) for _ in asked[-1]]

    session = Session(small(12), where="float model")  # type: ignore[arg-type]
    feeds = {session.inputs[0]: np.zeros((1, 8, 40, 40), np.float32)}
    timed = TimedMeasure(
        measure,
        lambda p: Rendered(models[p], {}),
        session,
        feeds,
        runs=20,
        max_seconds=5.0,  # type: ignore[arg-type]
    )
    small_one, same = timed([(0,), (1,)])
    assert asked == [[(0,), (1,)]], "measured together, timed one by one"
    assert small_one.value == same.value == -0.5
    metrics = dict(small_one.metrics)
    assert metrics["kl"] == 0.5 and metrics["realized_ms"] > 0 and metrics["float_ms"] > 0
    assert small_one.cost < 0.6, "one layer of twelve"
    assert 0.4 < same.cost < 2.5, "the float model itself"


def test_every_candidate_is_measured_before_one_is_timed() -> None:
    """Scores may come from an iterator with workers behind it, which must not compute beside what is timed."""
    events: list[str] = []

    def measure(points: object) -> Iterator[Score]:
        for _ in points:  # type: ignore[attr-defined]
            events.append("measured")
            yield Score(0.0, 1.0)

    def realized(_: object) -> Rendered:
        events.append("timed")
        return Rendered(model, {})  # type: ignore[arg-type]

    model = small(1)
    session = Session(model, where="float model")  # type: ignore[arg-type]
    feeds = {session.inputs[0]: np.zeros((1, 8, 40, 40), np.float32)}
    TimedMeasure(measure, realized, session, feeds, runs=5, max_seconds=0.1)([(0,), (1,)])
    assert events == ["measured", "measured", "timed", "timed"]


def test_what_the_device_cannot_express_is_not_timed() -> None:
    def realize(point: object) -> Rendered:
        raise AssertionError("there are no integers to write")

    session = Session(small(1), where="float model")  # type: ignore[arg-type]
    feeds = {session.inputs[0]: np.zeros((1, 8, 40, 40), np.float32)}
    timed = TimedMeasure(
        lambda points: [Score(math.nan, 3.0)], realize, session, feeds, runs=20, max_seconds=5.0
    )  # fmt: skip
    (found,) = timed([(0,)])
    assert math.isnan(found.value) and found.cost == math.inf
