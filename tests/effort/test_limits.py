"""What follows calibration keeps to its limits, lists what it left out, and changes no result."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import quantpipe
from quantpipe.errors import ConfigError
from quantpipe.evaluate import agreement
from quantpipe.evaluate.agreement import Agreement, SessionAgreement, _asked, same_kernels, session_kinds
from quantpipe.evaluate.bounded_agreement import SESSIONS, uncompared
from quantpipe.evaluate.spending import UNLIMITED, Spending
from quantpipe.graph.session_options import EXACT_PAIRS, INT8_KERNELS
from quantpipe.pipeline import effort
from quantpipe.pipeline.effort import BASELINES, EXPLAIN, EffortBudget, estimated, refuse_too_few_seconds
from quantpipe.pipeline.effort_options import EffortOptions
from quantpipe.pipeline.timeline import Timed
from quantpipe.report.text import sessions
from quantpipe.types import Batch
from tests.api.nets import QUICK
from tests.e2e.schemas import faults
from tests.effort.test_account import Silent
from tests.explain.planted import run
from tests.explain.test_diagnosis import SPOILT, samples, two_layers

DEFAULT = EffortOptions()
EXPLAINED = {**QUICK, "explain": "auto"}


@pytest.mark.parametrize(("clock", "cores", "spent"), [(3.0, 9.0, 3.0), (9.0, 3.0, 3.0)])
def test_a_second_is_one_by_the_clock_or_one_of_all_cores(clock: float, cores: float, spent: float) -> None:
    at = [(10.0, 20.0)]
    spending = Spending(4.0, lambda: at[0])
    early = spending.first(0.5)
    at[0] = (10.0 + clock, 20.0 + cores)
    assert spending.spent == spent and not spending.over() and spending.over(ahead=1.0)
    assert early.limit == 2.0 and early.over() and not UNLIMITED.over(1e9)


def budget(options: EffortOptions = DEFAULT, once: float | None = 2.0) -> EffortBudget:
    """The budget of a run over 4 samples, for which one float pass takes `once` seconds."""
    return EffortBudget(options, Timed(Silent()), 4, estimate=None if once is None else once / 4)


@pytest.mark.parametrize(
    ("options", "part", "after", "expected"),
    [
        (DEFAULT, EXPLAIN, 0.0, 6.0),
        (DEFAULT, SESSIONS, 0.0, 6.0),
        (replace(DEFAULT, least_seconds=0.5), BASELINES, 0.0, 3.0),
        (DEFAULT, EXPLAIN, 20.0, 5.0),
        (replace(DEFAULT, least_seconds=0.0), EXPLAIN, 20.0, 4.0),
        (replace(DEFAULT, least_seconds=0.0), EXPLAIN, 30.0, 0.0),
        (replace(DEFAULT, max_seconds=22.0), EXPLAIN, 20.0, 2.0),
        (replace(DEFAULT, max_seconds=22.0), EXPLAIN, 30.0, 0.0),
    ],
)
def test_a_part_gets_its_share_of_what_is_left(
    options: EffortOptions, part: str, after: float, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(effort, "_after", lambda timed: after)
    assert budget(options).seconds(part) == expected


def test_without_a_unit_there_is_no_limit() -> None:
    assert budget(once=None).seconds(EXPLAIN) == math.inf
    known = budget()
    known.per_sample = lambda: 5.0
    assert known.once == 20.0, "what the evaluation measured itself counts before the estimate"


def test_the_unit_is_estimated_from_what_was_timed() -> None:
    profile: Any = SimpleNamespace(float_pass_seconds=3.0, samples=6)
    unmeasured: Any = SimpleNamespace(float_pass_seconds=0.0, samples=6)
    assert estimated(profile, {"float_pass_seconds": 8.0}, 4) == 0.5
    assert estimated(unmeasured, {"float_pass_seconds": 8.0}, 4) == 2.0
    assert estimated(None, {}, 4) is None


def test_at_least_128_samples_are_evaluated() -> None:
    share = replace(DEFAULT, evaluated=0.25)
    counts = [EffortBudget(share, Silent(), n).evaluated for n in (100, 200, 2000)]
    assert counts == [100, 128, 500]
    assert EffortBudget(DEFAULT, Silent(), 2000).evaluated == 2000


def test_sessions_that_inform_stop_first_and_all_take_the_first_batch() -> None:
    def side(decides: bool) -> Any:
        return SimpleNamespace(kind=SimpleNamespace(decides=decides), takes=lambda done: True)

    at = [0.0]
    spending = Spending(4.0, lambda: (at[0], at[0]))
    sides = [side(True), side(False)]
    batches = [Batch({}, None, np.arange(2)) for _ in range(4)]
    number = {id(batch): place for place, batch in enumerate(batches)}
    taken = []
    for one, batch in _asked(sides, batches, spending):
        taken.append((number[id(batch)], one.kind.decides))
        at[0] += 1.0
    assert taken == [(0, True), (0, False), (1, True), (2, True)]
    at[0] = 100.0
    spent = Spending(0.0, lambda: (at[0], at[0]))
    assert len(list(_asked(sides, batches, spent))) == 2


def held(dtype: Any, *, inside: bool = False) -> ir.Model:
    """A model with a constant of a type; `inside`: as the attribute of a node."""
    tensor = ir.tensor(np.ones(4, dtype), name="w")
    value = ir.Value(name="w", const_value=tensor, type=ir.TensorType(tensor.dtype))
    node = ir.node("Constant", [], attributes={"value": tensor}) if inside else ir.node("Identity", [value])
    graph = ir.Graph([], node.outputs, nodes=[node], initializers=[] if inside else [value], opset_imports={"": 21})
    return ir.Model(graph, ir_version=10)


@pytest.mark.parametrize(
    ("saturates", "dtype", "inside", "same"),
    [
        (False, np.int8, False, True),
        (True, np.int8, False, False),
        (True, np.int8, True, False),
        (True, np.uint8, False, True),
    ],
)
def test_an_option_that_touches_no_kernel(
    saturates: bool, dtype: Any, inside: bool, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agreement, "pairs_saturate", lambda: saturates)
    model = held(dtype, inside=inside)
    assert same_kernels(model, {}, EXACT_PAIRS) is same
    assert same_kernels(model, EXACT_PAIRS, {}) is same
    assert not same_kernels(model, INT8_KERNELS, {}), "an option of any other kind"
    assert not same_kernels(model, INT8_KERNELS, EXACT_PAIRS)
    kinds = {kind.name: kind.same_as for kind in session_kinds(model)}
    assert kinds == {
        "default": None,
        "session.x64quantprecision=1": "default" if same else None,
        "optimization off": None,
    }


@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_a_session_with_the_same_kernels_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "pairs_saturate", lambda: False)
    found = run(samples(), tmp_path / "same", model=two_layers(), evaluate={**QUICK, "explain": "none"}).report[
        "agreement"
    ]
    row = next(row for row in found["sessions"] if row["same_as"] is not None)
    assert (row["session"], row["same_as"], row["samples"]) == ("session.x64quantprecision=1", "default", 0)
    assert "session.x64quantprecision=1 runs the kernels of default on this processor" in str(
        sessions(found, decide=False)
    )


@pytest.mark.program
@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_what_is_left_out_is_listed_and_nothing_else_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without time, and in batches of one sample: one sample is compared, few are measured alone, no change is."""
    whole = run(samples(), tmp_path / "whole", model=two_layers(), evaluate=EXPLAINED, **SPOILT).report
    monkeypatch.setattr(agreement, "run_size", lambda graph, tensors, memory_mb: 1)
    nothing = {"session_passes": 0.0, "explain_passes": 1e-9, "least_seconds": 0.0}
    report = run(samples(), tmp_path / "cut", model=two_layers(), evaluate=EXPLAINED, effort=nothing, **SPOILT).report
    assert whole["effort"]["left_out"] == [] and whole["diagnosis"]["advice"]
    asked = whole["agreement"]["samples"]
    assert (report["agreement"]["samples"], report["agreement"]["differing"]) == (1, 0)
    cut = len(report["diagnosis"]["unmeasured"])
    assert cut and report["diagnosis"]["advice"] == [] and report["diagnosis"]["culprits"]
    assert report["effort"]["left_out"][0] == f"1 of {asked} samples were compared element by element"
    assert report["effort"]["left_out"][-1] == f"diagnosis: {cut} changes were not measured"
    assert faults("report", report) == []
    assert report["metrics"] == whole["metrics"] and report["layers"] == whole["layers"]
    assert report["choices"] == whole["choices"] and report["outputs"] == whole["outputs"]


@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_quick_measures_little(tmp_path: Path) -> None:
    found = run(samples(), tmp_path, model=two_layers(), evaluate=EXPLAINED, effort="quick", **SPOILT)
    report = found.report
    assert report["run"]["effort"] == "quick" and "diagnosis" not in report
    assert [row["decides"] for row in report["agreement"]["sessions"]] == [True, True]
    said = " ".join(report["effort"]["left_out"])
    assert "effort.explain_passes=0" in said and "sessions other than the file's own" in said
    assert report["effort"]["limit"] == 4.0
    assert said.split(";")[0][:20] in str(found) and "Left out" not in str(found)
    assert "Left out: " in (found.folder / "evaluate" / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("passes", 0.5, "the float model alone takes one pass"),
        ("explain_passes", -1.0, "effort.explain_passes"),
        ("evaluated", 0.0, "effort.evaluated"),
        ("evaluated", 1.5, "up to 1"),
        ("max_seconds", "soon", "effort.max_seconds"),
        ("max_seconds", 0, "effort.max_seconds"),
        ("other_sessions", 1, "true or false"),
        ("pases", 3.0, "passes"),
    ],
)
def test_bad_options(key: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        quantpipe.Pipeline(quantpipe.example_model(), samples(), "vta", effort={key: value})


def test_seconds_that_one_pass_exceeds_are_rejected_with_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effort, "float_pass_seconds", lambda graph, samples, size, at_most: 12.0)
    some: Any = SimpleNamespace(batch_size=1)
    refuse_too_few_seconds(replace(DEFAULT, max_seconds=12.0), some, [1, 2])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"effort.max_seconds: is 11, .* over the 2 evaluation samples .* 12 seconds"):
        refuse_too_few_seconds(replace(DEFAULT, max_seconds=11.0), some, [1, 2])  # type: ignore[arg-type]
    monkeypatch.delattr(effort, "float_pass_seconds")
    refuse_too_few_seconds(DEFAULT, some, [])  # type: ignore[arg-type]


def test_they_are_rejected_before_calibration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"effort\.max_seconds"):
        run(samples(), tmp_path, model=two_layers(), evaluate=EXPLAINED, effort={"max_seconds": 1e-9})
    assert not (tmp_path / "calibrate").exists()


def test_what_a_kept_comparison_left_out_is_listed() -> None:
    """From the result alone, so that a resumed run lists it, too; a session with the kernels of another is not cut."""
    rows = [
        SessionAgreement("default", True, samples=40),
        SessionAgreement("slow", False, samples=8),
        SessionAgreement("alike", False, same_as="default"),
    ]
    found = Agreement(1, 1, 0, 0, 0.0, None, samples=40, sessions=tuple(rows))
    assert list(uncompared(found, 128)) == [
        "40 of 128 samples were compared element by element",
        "8 of 128 samples were compared in the session slow",
    ]
    assert not list(uncompared(replace(found, sessions=tuple(rows[::2])), 40))


def test_a_run_lists_the_steps_of_recovery_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model is within any limit; without the work that is always allowed, nothing is within none."""
    made = {"model": two_layers(), "evaluate": EXPLAINED | {"explain": "none"}, "recover": "default"}
    limit = {"effort": {"recover_passes": 0}}
    whole, small = (run(samples(), tmp_path / str(n), **made, **more).report for n, more in enumerate(({}, limit)))
    assert [row["kl_after"] for row in whole["recover"]] == [row["kl_after"] for row in small["recover"]]
    monkeypatch.setattr("quantpipe.recover.recovery_cost.ALWAYS", 0.0)
    report = run(samples(), tmp_path / "none", **made, **limit).report
    steps = [row["step"] for row in report["recover"]]
    assert steps and all(row["limited"] is True and not row["kept"] for row in report["recover"])
    said = [text for text in report["effort"]["left_out"] if text.startswith("recovery step ")]
    assert [text.split()[2].rstrip(":") for text in said] == steps
    assert all("effort.recover_passes allows 0" in text for text in said)
    assert faults("report", report) == []
