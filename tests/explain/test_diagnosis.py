"""A result that misses says in its own report what costs most, and what would mend it."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import quantpipe
from quantpipe.data import SampleSets
from quantpipe.errors import ArtifactError, ConfigError, ModelError
from quantpipe.explain import diagnosis
from quantpipe.report import diagnosed, render_html
from tests.api.nets import QUICK, images, small_net
from tests.e2e.schemas import faults
from tests.explain.planted import QUIET, run
from tests.ops.line import Net

HIDDEN = "r"
SPOILT = {"annotate": {"constraints": {HIDDEN: {"kind": "calibrated", "min": 0.0, "max": 0.05}}}}


def two_layers() -> onnx.ModelProto:
    net = Net(seed=4)
    net.output(net.dense(net.node("Relu", net.dense(net.input(None, 6), 6, 8), output=HIDDEN), 8, 5))
    return net.proto()


def samples() -> SampleSets:
    drawn = np.random.default_rng(0).standard_normal((64, 6)).astype(np.float32)
    return SampleSets(calibrate=drawn[:32], search=drawn[32:48], evaluate=drawn[48:])


def result(folder: Path, explain: str = "auto", **options: Any) -> quantpipe.Result:
    return run(samples(), folder, model=two_layers(), evaluate={**QUICK, "explain": explain}, **options)


@pytest.mark.program
@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_a_result_that_misses_says_why_and_what_would_mend_it(tmp_path: Path) -> None:
    found = result(tmp_path / "run", **SPOILT)
    part = found.report["diagnosis"]
    assert faults("report", json.loads((found.folder / "evaluate" / "report.json").read_text())) == []
    assert part["why"][0] == found.report["search"]["shortfall"]
    worst = part["culprits"][0]
    assert worst["tensor"] == HIDDEN and worst["clipping"] > worst["rounding"] and worst["split"] is not None
    first = part["advice"][0]
    assert HIDDEN in first["members"] and first["gain"] > 0.5
    lines = [str(line) for line in diagnosed(part)]
    assert f"{HIDDEN} (clipping)" in lines[0] and first["change"] in lines[2]
    assert (
        lines[1].startswith(f"why     {HIDDEN}: its range ends at 0 and 0.05")
        and lines[1] == f"why     {HIDDEN}: {first['reason']}"
    )
    assert first["reason"] in html.unescape(render_html(found.report))
    page = render_html(found.report)
    assert 'id="diagnosis"' in page and first["overrides"][0].partition("=")[0] in page
    quiet = result(tmp_path / "none", "none", **SPOILT)
    assert "diagnosis" not in quiet.report and 'id="diagnosis"' not in render_html(quiet.report)


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_little_is_measured_of_a_great_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "WORK", 1)
    monkeypatch.setattr(diagnosis, "RECOVERY", 1)
    monkeypatch.setattr(diagnosis, "CAUSES", 2)
    part = result(tmp_path / "run", **SPOILT).report["diagnosis"]
    assert part["samples"] == diagnosis.LEAST_SAMPLES
    assert len([row for row in part["culprits"] if row["kind"] in ("weight", "bias")]) <= 2
    assert all(row["members"] for row in part["advice"])
    assert [row["overrides"] for row in part["unmeasured"]] == [["recover=default"]]
    assert any("not measured" in str(line) for line in diagnosed(part))


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_a_run_does_not_fail_for_what_is_said_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object, **__: object) -> None:
        raise ModelError("cannot be cut", stage="explain", where="somewhere")

    monkeypatch.setattr(diagnosis, "inspect", wrong)
    found = result(tmp_path / "run", **SPOILT)
    assert "diagnosis" not in found.report
    assert any("cannot be cut" in said for said in found.warnings)


@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_a_result_that_meets_its_objective_has_none(tmp_path: Path) -> None:
    assert "diagnosis" not in result(tmp_path / "run", objective={"tolerance": 1.0}).report


def test_another_word_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.explain.*auto, none"):
        result(tmp_path / "run", "always")


@pytest.mark.grid
@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_a_strategy_without_its_folder_is_explained_as_its_run_is(tmp_path: Path) -> None:
    found = result(tmp_path / "run", "none", **SPOILT)
    of_run = quantpipe.explain(found.folder, samples(), culprits=1)
    strategy = tmp_path / "strategy.json"
    strategy.write_bytes((found.folder / "search" / "strategy.json").read_bytes())
    given = {**QUIET, **SPOILT, "folder": tmp_path / "answer", "culprits": 1}
    alone = quantpipe.explain_strategy(strategy, two_layers(), samples(), **given)
    for key in ("loss", "causes", "accumulators", "advice", "shortfall"):
        assert alone[key] == of_run[key], key
    assert (tmp_path / "answer" / "explain.json").is_file()
    with pytest.raises(ArtifactError, match="another model"):
        quantpipe.explain_strategy(strategy, small_net(), images(16), culprits=1)
