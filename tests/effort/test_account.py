"""A run accounts for its time and its memory, by stage and part, and in float passes over the evaluation samples."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.evaluate.progress import EvaluationProgress
from quantpipe.pipeline import precision, timeline
from quantpipe.pipeline.context import RunContext
from quantpipe.pipeline.effort import EffortBudget, effort_part, seconds_by_stage
from quantpipe.pipeline.effort_options import EffortOptions
from quantpipe.pipeline.timeline import Timed, enter_stage, part_of
from quantpipe.report.effort_text import effort_rows, effort_sentence
from tests.evaluate.test_course import Numbers
from tests.precision.test_raised import run as raised_run


class Silent:
    """A console that shows nothing."""

    def __init__(self) -> None:
        self.stages: list[str] = []

    def stage(self, name: str, note: str = "") -> None:
        self.stages.append(name)

    def progress(self, name: str) -> Callable[[int, int, str], None]:
        return lambda done, total, note: None

    def warn(self, text: str) -> None:
        pass


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """A clock that goes on by what it is called with; all cores work half of that."""
    at = [0.0]
    monkeypatch.setattr(timeline, "worked", lambda: (at[0], at[0] / 2))

    def wait(seconds: float) -> None:
        at[0] += seconds

    return wait


def test_seconds_of_stages_and_parts(clock: Callable[[float], None]) -> None:
    console = Timed(Silent())
    console.stage("model")
    clock(1.0)
    console.stage("evaluate")
    clock(2.0)
    with part_of(console, "agreement"):
        clock(4.0)
        with part_of(console, "sessions"):
            clock(8.0)
        clock(16.0)
    console.stage("samples", "128 samples are enough")
    with part_of(console, "sessions"):
        clock(32.0)
    found = {(stage, part): spent.seconds for stage, part, spent in console.account()}
    assert found == {
        ("model", None): 1.0,
        ("evaluate", None): 62.0,
        ("evaluate", "agreement"): 20.0,
        ("evaluate", "sessions"): 40.0,
    }
    assert [spent.processor_seconds for _, _, spent in console.account()] == [0.5, 31.0, 10.0, 20.0]
    assert [row["stage"] for row in console.rows()] == ["model", "evaluate"]
    assert console.rows()[1] == console.rows()[1] | {"start": 1.0, "seconds": 62.0}


def test_a_stage_that_states_a_result_is_shown_and_takes_no_time(clock: Callable[[float], None]) -> None:
    shown = Silent()
    console = Timed(shown)
    for name in ("evaluate", "samples", "imported", "alone"):
        console.stage(name)
        clock(1.0)
    assert shown.stages == ["evaluate", "samples", "imported", "alone"]
    assert [(row["stage"], row["seconds"]) for row in console.rows()] == [("evaluate", 3.0), ("alone", 1.0)]


def test_a_stage_without_a_line_takes_time(clock: Callable[[float], None]) -> None:
    shown = Silent()
    console = Timed(shown)
    console.stage("calibrate")
    clock(1.0)
    enter_stage(console, "precision")
    clock(2.0)
    console.stage("precision", "2 nodes stay in float")
    clock(4.0)
    enter_stage(shown, "search")
    assert shown.stages == ["calibrate", "precision"]
    assert [(row["stage"], row["seconds"]) for row in console.rows()] == [("calibrate", 1.0), ("precision", 6.0)]


def test_trials_of_float_nodes_count_for_precision(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Statistics of more tensors are measured between the first trial and the others."""
    stages, findings = [], precision._said

    def spy(context: RunContext, *given: Any) -> Any:
        stages.append([row["stage"] for row in cast(Timed, context.console).rows()])
        return findings(context, *given)

    monkeypatch.setattr(precision, "_said", spy)
    found = raised_run(tmp_path, "ort_cpu", precision={"loss_above": 0.0}).report
    assert found["precision"]["evaluations"] > 1
    begun = ["model", "annotate", "calibrate", "precision"]
    assert stages == [begun, [*begun, "calibrate", "precision"]]


def test_an_error_inside_a_part_closes_it(clock: Callable[[float], None]) -> None:
    console = Timed(Silent())
    console.stage("evaluate")
    with pytest.raises(KeyError), part_of(console, "agreement"):
        clock(1.0)
        raise KeyError
    clock(1.0)
    with part_of(console, "latency"):
        clock(1.0)
    assert console.seconds_of("agreement", "latency", "page") == {"agreement": 1.0, "latency": 1.0, "page": 0.0}


def test_the_unit_is_a_pass_over_all_samples(clock: Callable[[float], None]) -> None:
    console = Timed(Silent())
    for name, seconds in (("model", 1.0), ("calibrate", 3.0), ("search", 5.0), ("recover", 7.0), ("evaluate", 9.0)):
        console.stage(name)
        clock(seconds)
    steps: Any = {"steps": [{"step": "gptq", "kl_before": 1.0, "kl_after": 0.5, "kept": True, "seconds": 6.0}]}
    found = effort_part(console, EffortBudget(EffortOptions(), console, 4, lambda: 0.5), steps)
    assert (found["samples"], found["float_pass_seconds"], found["seconds"]) == (4, 2.0, 25.0)
    assert found["passes"] == (5.0 + 7.0 + 9.0) / 2.0, "only what follows calibration"
    rows = [(row["stage"], row["part"], row["seconds"], row["passes"]) for row in found["rows"]]
    assert rows[3:5] == [("recover", None, 7.0, 3.5), ("recover", "gptq", 6.0, 3.0)]
    assert all(row["peak_mb"] > 0 and row["memory_mb"] > 0 for row in found["rows"] if row["part"] is None)  # type: ignore[operator]
    assert seconds_by_stage([*found["rows"], found["rows"][0]])["model"] == 2.0
    resumed = effort_part(console, EffortBudget(EffortOptions(), console, 4), {})
    assert resumed["passes"] is None and all(row["passes"] is None for row in resumed["rows"])


def test_a_phase_knows_what_a_sample_took() -> None:
    course = EvaluationProgress()

    def slow(batch: Any) -> Any:
        time.sleep(0.01)
        return batch.inputs["x"]

    course.outputs("float model", slow, Numbers(count=10), 1)
    assert 0.01 <= (course.seconds_per_sample("float model") or 0.0) < 1.0
    assert course.seconds_per_sample("simulated model") is None


@pytest.mark.program
def test_the_report_of_a_run_accounts_for_it() -> None:
    few = {"samples": {"calibrate": 16, "search": 16, "evaluate": 32}}
    result = quantpipe.quantize(
        quantpipe.example_model(), DigitsDataset(**few), "vta", recover="none", precision="none", executor="serial",
        evaluate={"latency_runs": 1, "warn_sqnr_db": 200.0},
    )  # fmt: skip
    found = result.report["effort"]
    stages = {row["stage"]: row for row in found["rows"] if row["part"] is None}
    assert [*stages] == ["model", "annotate", "calibrate", "search", "realize", "evaluate", "alone", "advice"]
    parts = {row["part"]: row for row in found["rows"] if row["stage"] == "evaluate" and row["part"] is not None}
    assert {"sessions", "float model", "simulated model", "realized model", "agreement", "latency", "figures"} <= {
        *parts
    }
    assert sum(row["seconds"] for row in parts.values()) <= stages["evaluate"]["seconds"]
    assert parts["float model"]["seconds"] == pytest.approx(found["float_pass_seconds"], rel=0.5)
    assert found["peak_mb"] >= stages["evaluate"]["memory_mb"]
    page = (result.folder / "evaluate" / "report.html").read_text("utf-8")
    assert "float passes over 32 samples" in page and "<td>agreement</td>" in page


def test_what_people_read() -> None:
    row = {"stage": "evaluate", "part": None, "seconds": 9.0}
    small, large = ({**row, "part": name, "seconds": took} for name, took in (("small", 0.001), ("large", 3.0)))
    found = {"seconds": 12.0, "processor_seconds": 20.0, "passes": 4.5, "samples": 32, "float_pass_seconds": 2.0}
    assert effort_sentence(found) == (
        "12 s up to the report, 20 s of all cores; after calibration 4.5 float passes over 32 samples of 2.00 s each"
    )
    assert effort_rows({**found, "rows": [row, small, large]}) == [row, large]
    assert effort_sentence(None) is None and effort_rows(None) == []
