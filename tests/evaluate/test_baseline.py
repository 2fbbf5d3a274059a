"""The result beside onnxruntime's own quantization: told where it is behind, silent where it is not."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import pytest
from rich.console import Console

from quantpipe.arrays import Feeds
from quantpipe.errors import ModelError
from quantpipe.evaluate import baseline as module
from quantpipe.evaluate.baseline import BaselineModels, baseline, baseline_warning, worth_comparing
from quantpipe.evaluate.nearness import nearness
from quantpipe.graph.execute import Session
from quantpipe.graph.runtime_quantization import dynamic, static
from quantpipe.report import render_html, summary_table
from quantpipe.report.baseline import baseline_verdict
from quantpipe.types import BaselinePart, Batch, Range, Samples
from tests.ops.line import ArraySamples, Line, Net, line, set_threshold
from tests.recurrent.nets import classifier


def dense() -> Net:
    net = Net(3)
    x = net.node("Relu", net.dense(net.input(None, 12), 12, 16, name="first"))
    net.output(net.dense(x, 16, 6, name="second"))
    return net


@pytest.fixture(scope="module")
def made() -> Line:
    samples = ArraySamples({"x": np.random.default_rng(0).standard_normal((24, 12)).astype(np.float32)})
    return line(dense(), samples=samples)


def compared(made: Line, factor: float = 1.0) -> BaselineModels:
    """The realized model; with a factor beside 1 the range of the hidden tensor is planted wrong."""
    strategy = made.strategy()
    group = next(g for g in made.topology.groups if made.graph.by_name["second"].inputs[0] in g.tensors)
    wrong = strategy.ranges[group.key]
    strategy = set_threshold(strategy, group.key, Range(wrong.low * factor, wrong.high * factor))
    plan = made.problem.plan(strategy)
    realized = Session(made.realize(plan, "qdq").model)
    return BaselineModels(made.graph, realized, made.samples, made.samples, 0.01)


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Times of a form, by how many times as long the result takes; a timer would decide tests by luck."""
    ratios = {"ratio": 1.0}

    def interleaved(*_: Any) -> Any:
        ratio = ratios["ratio"]
        high = ratios.get("high", ratio)
        return {"float_ms": 1.0, "realized_ms": ratio, "ratio": ratio, "ratio_low": ratio, "ratio_high": high}

    monkeypatch.setattr(module, "interleaved", interleaved)
    return ratios


def test_a_result_that_is_as_near_says_nothing(made: Line, timed: dict[str, float]) -> None:
    part = baseline(compared(made))
    assert [row["form"] for row in part["rows"]] == ["static", "dynamic"] and part["samples"] == 24
    assert all(row["failed"] is None and row["sqnr_db"] is not None for row in part["rows"])
    assert baseline_warning(part, made.graph, made.topology, made.spec) is None


def test_a_range_that_is_planted_wrong_is_told_but_not_of_a_form_that_is_slower(
    made: Line, timed: dict[str, float]
) -> None:
    """A hidden tensor with eight times its range has an eighth of its levels."""
    part = baseline(compared(made, 8.0))
    said = baseline_warning(part, made.graph, made.topology, made.spec)
    assert said is not None and f"at the output {made.graph.outputs[0].name}" in said and "is nearer" in said
    assert "annotate.only_ops=[Gemm]" in said or "threshold=max_range" in said
    assert (
        baseline_warning(
            baseline(compared(made, 8.0), made.graph.outputs[0].name), made.graph, made.topology, made.spec
        )
        is None
    )
    timed["ratio"] = 0.8
    part = baseline(compared(made, 8.0))
    assert [row["latency"] for row in part["rows"]] == [1.25, 1.25] and baseline_warning(
        part, made.graph, made.topology, made.spec
    ) is None
    assert all(row["slower"] and row["gap_db"] is not None for row in part["rows"])
    said = baseline_verdict(part)
    assert "static" in said and "dynamic" in said and said.count("in 1.25 of the result's time") == 2
    terminal = Console(width=1000, file=io.StringIO())
    terminal.print(summary_table({"baseline": part}))
    assert f"onnxruntime's own quantization: {said}" in terminal.file.getvalue()
    assert said.replace("'", "&#39;") in render_html({"baseline": part})
    timed["high"] = 1.1  # a quarter of the pairs shows the opposite
    assert baseline_warning(baseline(compared(made, 8.0)), made.graph, made.topology, made.spec) is not None


def test_a_dynamic_form_that_is_nearer_is_offered_by_its_option(made: Line, timed: dict[str, float]) -> None:
    """The dynamic form of dense layers is one that quantpipe writes itself, on devices that declare it."""
    part = baseline(compared(made, 8.0))
    rows = [{**row, "gap_db": 9.0 if row["form"] == "dynamic" else 1.0} for row in part["rows"]]
    planted = cast(BaselinePart, {**part, "rows": rows})
    offer = "annotate.dynamic=['*'] annotate.only_ops=[Gemm]"
    assert offer in (baseline_warning(planted, made.graph, made.topology, made.spec) or "")
    assert "annotate.dynamic" not in (
        baseline_warning(planted, made.graph, made.topology, replace(made.spec, dynamic=())) or offer
    )
    again = line(dense(), samples=made.samples, dynamic=("*",), only_ops=("Gemm",))
    said = baseline_warning(planted, again.graph, again.topology, made.spec)
    assert said is not None and "annotate.dynamic" not in said, "the result has this form already"
    assert "hardware.isa=vnni" in said


def test_the_dynamic_form_of_an_lstm_is_offered_until_the_result_has_it(made: Line, timed: dict[str, float]) -> None:
    part = baseline(compared(made, 8.0))
    rows = [{**row, "gap_db": 9.0 if row["form"] == "dynamic" else 1.0} for row in part["rows"]]
    planted = cast(BaselinePart, {**part, "rows": rows})
    offers = {}
    for patterns in ((), ("fc",), ("*",)):
        layers = line(classifier("LSTM"), dynamic=patterns)
        offers[patterns] = baseline_warning(planted, layers.graph, layers.topology, layers.spec) or "LSTM layers"
    assert "annotate.dynamic=['*'] annotate.only_ops=[Gemm], the same form of the dense and LSTM layers" in offers[()]
    assert "annotate.dynamic=['*'], the same form of the LSTM layers" in offers["fc",]
    assert "LSTM" not in offers["*",]
    kept = line(classifier("LSTM"), dynamic=("fc",), float_nodes=("layer",))
    assert "LSTM" not in (baseline_warning(planted, kept.graph, kept.topology, kept.spec) or "LSTM"), "it was asked for"
    assert "LSTM" not in (baseline_warning(planted, made.graph, made.topology, made.spec) or "LSTM")


def test_a_form_that_is_as_near_and_faster_is_told(
    made: Line, timed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form is planted: on x86 without VNNI, onnxruntime's own int8 weights saturate and are not as near."""
    models = compared(made)
    monkeypatch.setattr(module.runtime_quantization, "static", lambda *_: models.realized)
    timed["ratio"] = 1.5
    said = baseline_warning(baseline(models, made.graph.outputs[0].name), made.graph, made.topology, made.spec)
    assert said is not None and "is as near" in said and "in 0.67 of the result's time" in said


def test_the_forms_are_what_onnxruntime_makes(made: Line, caplog: pytest.LogCaptureFixture) -> None:
    first = next(iter(made.samples.batches(8))).inputs
    with caplog.at_level(logging.WARNING):
        sessions = [static(made.graph.model, made.samples, 8), dynamic(made.graph.model, first)]
    assert not caplog.records, "the tool's advice on its own use is no news of ours"
    for session in sessions:
        (row,) = nearness(made.graph, session, made.samples)
        assert row["sqnr_db"] is not None and 15 < row["sqnr_db"] < 60, "quantized, and not lost"


def test_what_the_tool_refuses_is_a_row_with_its_reason(
    made: Line, timed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> Any:
        raise TypeError("no such op")

    monkeypatch.setattr(module.runtime_quantization, "static", refuse)
    rows = {row["form"]: row for row in baseline(compared(made))["rows"]}
    assert rows["static"]["failed"] == "no such op" and rows["dynamic"]["failed"] is None


@pytest.mark.parametrize(
    ("changes", "db", "accurate", "ratio", "worth"),
    [
        ({}, 30.0, None, 0.5, True),
        ({}, 45.0, None, 0.5, False),
        ({}, 45.0, None, 1.5, True),
        ({}, 30.0, "y", 0.5, False),
        ({"runs_here": False}, 30.0, None, 1.5, False),
    ],
)
def test_when_it_is_compared(
    made: Line, changes: Mapping[str, Any], db: float, accurate: str | None, ratio: float, worth: bool
) -> None:
    rows: Any = [{"output": "y", "sqnr_db": db, "mse": 0.0, "cosine": 1.0}]
    assert worth_comparing(made.graph, replace(made.spec, **changes), rows, accurate, ratio=ratio) == worth


@pytest.mark.parametrize(("fixed", "each"), [(None, 1), (8, 8)])
def test_calibration_of_the_tool_runs_few_samples_at_once(
    fixed: int | None, each: int, timed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It keeps every tensor of a batch."""
    sizes: list[int] = []

    def counted(model: ir.Model, samples: Samples, batch: int) -> Session:
        sizes.append(batch)
        return static(model, samples, batch)

    monkeypatch.setattr(module.runtime_quantization, "static", counted)
    net = dense()
    if fixed is not None:
        net.fix_batch(fixed)
    samples = ArraySamples({"x": np.random.default_rng(0).standard_normal((24, 12)).astype(np.float32)})
    baseline(compared(line(net, samples=samples)))
    assert sizes == [each]


def test_the_float_model_runs_once_and_what_makes_a_form_runs_one_sample(
    made: Line, timed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []

    class Counted(ArraySamples):
        def batches(self, size: int) -> Iterator[Batch]:
            for batch in super().batches(size):
                read.append(len(batch))
                yield batch

    def tried(model: ir.Model, example: Feeds) -> Session:
        assert [len(values) for values in example.values()] == [1]
        return dynamic(model, example)

    monkeypatch.setattr(module.runtime_quantization, "dynamic", tried)
    whole = next(iter(made.samples.batches(24))).inputs
    part = baseline(replace(compared(made), evaluate=Counted(whole)))
    assert part["samples"] == 24 and all(row["failed"] is None for row in part["rows"])
    assert sum(read) == 1 + 24


def test_a_form_that_stops_in_the_middle_leaves_the_other(
    made: Line, timed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        """A session that cannot run."""

        def run(self, feeds: Feeds, *_: Any) -> Any:
            raise ModelError("it stops", stage="run")

    monkeypatch.setattr(module.runtime_quantization, "static", lambda *_: Broken())
    rows = {row["form"]: row for row in baseline(compared(made))["rows"]}
    assert "it stops" in (rows["static"]["failed"] or "") and rows["static"]["latency"] is None
    assert rows["dynamic"]["failed"] is None and rows["dynamic"]["sqnr_db"] is not None


def test_a_form_that_is_slow_is_compared_on_fewer_samples(made: Line, timed: dict[str, float]) -> None:
    """Its time is measured: a millisecond, of a float model of a hundredth."""
    said: list[str] = []
    assert baseline(replace(compared(made), left_out=said.append))["samples"] == 24 and not said
    assert baseline(replace(compared(made), seconds=0.025, left_out=said.append))["samples"] == 12
    assert said == ["samples of the comparison with onnxruntime's own quantization (effort.baseline_passes)"]
