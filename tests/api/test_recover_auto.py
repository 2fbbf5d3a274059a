"""`recover=auto`: recovery runs where the search missed its objective by the loss, or measured several candidates."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantpipe
from quantpipe.errors import ConfigError
from tests.api.nets import CLASSES, QUICK, images, numbers_of, small_net

BOTH = (images(96), np.arange(96) % CLASSES)


def run(folder: Path | None = None, **given: Any) -> quantpipe.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantpipe.quantize(small_net(), BOTH, "vta", folder=folder, evaluate=QUICK, executor="serial", **given)


@cache
def plain() -> quantpipe.Result:
    return run(recover="none")


@cache
def losses() -> tuple[float, float]:
    """KL on the search samples without recovery, and with it."""
    before, after = (run(recover=name).report["generalization"]["search"] for name in ("none", "default"))
    return float(before), float(after)


def between() -> dict[str, float]:
    """An objective that only recovery meets."""
    before, after = losses()
    assert after < before
    return {"tolerance": (before + after) / 2}


@pytest.mark.grid
def test_nothing_changes_where_the_objective_is_met() -> None:
    result = run(objective={"tolerance": losses()[0] * 1.01})
    assert numbers_of(result.folder) == numbers_of(plain().folder)
    assert not (result.folder / "recover").exists()
    assert result.report["recover"] == [] and result.report["recovery"] is None


@pytest.mark.program
def test_recovery_follows_a_search_that_met_its_objective() -> None:
    """A search takes longer than recovery does, and recovery gains more."""
    met: dict[str, Any] = {"objective": {"tolerance": losses()[0] * 1.01}, "search": "greedy"}
    result = run(**met)
    gain = result.report["recovery"]
    assert gain["met"] and gain["kept"] and gain["after"] > gain["before"] >= gain["least_value"]
    assert result.report["generalization"]["search"] < -gain["before"]
    # One candidate is no search, and `missed` asks for recovery only where the objective is missed.
    for given in ({"search": {"option": "greedy", "max_evaluations": 1}}, {"recover": {"when": "missed"}}):
        assert run(**{**met, **given}).report["recovery"] is None, given


@pytest.mark.grid
def test_a_missed_objective_is_met_by_recovery(tmp_path: Path) -> None:
    result = run(tmp_path, objective=between())
    gain = result.report["recovery"]
    assert (-gain["before"], -gain["after"]) == pytest.approx(losses(), rel=1e-6)
    # The realized model on the same samples, which knows nothing of recovery.
    assert -gain["after"] == pytest.approx(result.report["generalization"]["search"], rel=1e-6)
    assert gain["met"] and gain["kept"] and result.report["search"]["feasible"]
    assert not any("no candidate met" in text for text in result.warnings)
    assert gain["seconds"] > 0
    measured = sum(step["kl_after"] is not None for step in result.report["recover"])
    assert gain["evaluations"] > measured > 0  # and what it begins with
    assert 0 <= gain["accuracy_before"] <= 1 and 0 <= gain["accuracy_after"] <= 1
    said = f"kl from {losses()[0]:.4g} to"
    page = (tmp_path / "evaluate" / "report.html").read_text()
    assert said in str(result) and said in page and "objective met" in page

    files = [p for p in sorted(tmp_path.rglob("*")) if p.is_file() and p.parent.name in ("recover", "realize")]
    before = [(p, p.stat().st_mtime_ns) for p in files]
    assert [p.name for p in files if p.parent.name == "recover"] == ["steps.json", "weights.npz"]
    again = run(tmp_path, objective=between())
    assert [(p, p.stat().st_mtime_ns) for p in files] == before
    assert again.report["recovery"] == gain


@pytest.mark.grid
def test_the_stages_one_by_one_give_the_same(tmp_path: Path) -> None:
    given: dict[str, Any] = {"objective": between(), "evaluate": QUICK, "executor": "serial"}
    whole = run(objective=between())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with quantpipe.Pipeline(small_net(), BOTH, "vta", folder=tmp_path, **given) as pipeline:
            pipeline.search()
        assert not (tmp_path / "recover").exists()
        with quantpipe.Pipeline(small_net(), BOTH, "vta", folder=tmp_path, **given) as pipeline:
            assert pipeline.recover().recovery["gain"]["met"]
            pipeline.realize()
    assert numbers_of(tmp_path) == numbers_of(whole.folder)


@pytest.mark.program
def test_what_recovery_cannot_reach_is_said_and_the_better_is_kept() -> None:
    result = run(objective={"tolerance": 1e-9})
    gain = result.report["recovery"]
    assert gain["kept"] and not gain["met"] and not result.report["search"]["feasible"]
    assert result.report["generalization"]["search"] < losses()[0]
    (said,) = (text for text in result.warnings if "no candidate met the objective" in text)
    assert "Recovery did not reach it" in said and f"{-gain['after']:.4g}" in said


def different(reference: Any, outputs: Any, labels: Any) -> float:
    """What no recovery makes better: whether anything differs at all."""
    return -float(np.any(reference != outputs))


@pytest.mark.grid
def test_what_gains_only_in_kl_is_not_kept() -> None:
    result = run(objective=different)
    gain = result.report["recovery"]
    assert not gain["kept"] and not gain["met"] and gain["before"] == gain["after"] == -1
    assert all(not step["kept"] for step in result.report["recover"])
    assert any("objective's own metric gained nothing" in step.get("reason", "") for step in result.report["recover"])
    assert numbers_of(result.folder) == numbers_of(plain().folder)


@pytest.mark.grid
def test_it_goes_on_as_long_as_the_objective_is_missed() -> None:
    """KL 0.02 is enough for a walk not to be repeated, not for an objective that asks for less."""
    steps = ["gptq_compensated", "equalize"]
    rows = {}
    for name, objective in (("far", {"tolerance": 1e-9}), ("accuracy", {"option": "accuracy", "tolerance": 0.0})):
        report = run(recover={"steps": steps}, objective=objective).report
        rows[name] = [step.get("reason", "") for step in report["recover"]]
    assert rows["far"] and not any("recover.kl_target" in reason for reason in rows["far"])
    assert not any("recover.kl_target" in reason for reason in rows["accuracy"])


@pytest.mark.grid
def test_every_form_of_objective_and_search() -> None:
    search = {"option": "random", "max_evaluations": 3}
    never: list[dict[str, Any]] = [
        {"objective": {"form": "pareto"}, "search": search},
        {"objective": {"form": "weighted", "weight": 0.1}, "search": search},
        {"objective": {"form": "best_value_within_cost", "cost_limit": 0.01}},  # missed by the cost alone
        {"objective": {"option": "mse", "tolerance": 1e3}},
    ]
    for given in never:
        assert run(**given).report["recovery"] is None, given
    always: list[dict[str, Any]] = [
        {"objective": {"option": "mse", "tolerance": 1e-9}},
        {"objective": {"tolerance": 1e-9}, "search": {**search, "weights": "recovered"}},
    ]
    for given in always:
        gain = run(**given).report["recovery"]
        assert not gain["met"] and gain["after"] >= gain["before"], given
    # Who asks for finalists asks for their recovery, whatever the search found.
    refined = run(objective={"tolerance": 1e3}, search={**search, "refine": True, "finalists": 2}).report
    assert refined["recover"] and refined["recovery"] is None and refined["search"]["finalists"]


def test_when_is_one_of_two_words() -> None:
    with pytest.raises(ConfigError, match=r"recover\.when.*'mised'.*legal are always, missed"):
        run(recover={"when": "mised"})
    assert run(recover={"option": "default", "when": "missed"}, objective=between()).report["recovery"]["met"]
