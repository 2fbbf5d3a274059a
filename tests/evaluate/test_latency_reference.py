"""Latency pairs and the float reference."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from quantpipe.errors import DataError
from quantpipe.graph.execute import Session
from quantpipe.metrics.latency import interleaved, latency
from quantpipe.metrics.reference import reference_of
from tests.ops.line import ArraySamples, Net, load
from tests.ops.test_every_op import line_of


def test_latency_counts_its_pairs() -> None:
    made = line_of("conv_plain", "ort_cpu", "auto")
    one = next(iter(made.samples.batches(1))).inputs
    found = latency(made.graph.model, made.realize(made.plan(), "qdq").model, one, runs=7, max_seconds=9.0)
    assert found["runs"] == 7 and min(found["float_ms"], found["realized_ms"], found["ratio"]) > 0
    assert latency(made.graph.model, made.graph.model, one, runs=50, max_seconds=0.0)["runs"] == 5


class Timed:
    """A session whose runs take what a clock says that they take; `spread` is the share by which they differ."""

    def __init__(self, clock: list[float], seconds: float, spread: float) -> None:
        self._clock, self._seconds, self._spread = clock, seconds, spread
        self._rng = np.random.default_rng(round(1e6 * seconds))

    def prepared(self, feeds: object) -> object:
        return feeds

    def run(self, feeds: object, *, stored: bool) -> None:
        self._clock[0] += self._seconds * (1 + self._spread * float(self._rng.uniform(-1, 1)))


@pytest.mark.parametrize(
    ("seconds", "spread", "within", "pairs", "times"),
    [
        (0.1, 0.001, 0.01, 10, 1.2),
        (0.001, 0.001, 0.01, 50, 1.2),
        (0.1, 0.5, 0.01, 50, 1.2),
        (0.1, 0.001, 0.0, 50, 1.2),
        (0.1, 0.2, 0.01, 10, 4.0),
        (0.4, 0.2, 0.01, 10, 0.25),
    ],
    ids=["known after ten", "half a second at least", "never known", "not asked", "far slower", "far faster"],
)
def test_pairs_end_once_the_ratio_is_known(
    seconds: float, spread: float, within: float, pairs: int, times: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    sessions: Any = (Timed(clock, seconds, spread), Timed(clock, times * seconds, spread))
    found = interleaved(sessions, {}, 50, 1000.0, within=within)
    assert found["runs"] == pairs and found["ratio"] == pytest.approx(times, rel=0.25)


def test_reference_keeps_labels_and_order() -> None:
    net = Net()
    net.output(net.dense(net.input(None, 4), 4, 3))
    graph = load(net)
    x = np.random.default_rng(0).standard_normal((10, 4)).astype(np.float32)
    found = reference_of(Session(graph.model), ArraySamples({"x": x}, labels=np.arange(10)), 3)
    assert found.labels is not None and found.labels.tolist() == list(range(10))
    np.testing.assert_allclose(found.outputs[:, 0], Session(graph.model).run({"x": x})["gemm1_out"][:, 0], rtol=1e-6)
    assert reference_of(Session(graph.model), ArraySamples({"x": x}), 3).labels is None


def test_a_float_model_that_overflows_is_named_by_sample() -> None:
    net = Net()
    net.output(net.node("Exp", net.dense(net.input(None, 4), 4, 3)))
    graph = load(net)
    x = np.zeros((6, 4), np.float32)
    x[4] = 1e30
    with pytest.raises(DataError, match="not finite for sample 4"):
        reference_of(Session(graph.model), ArraySamples({"x": x}), 2)
