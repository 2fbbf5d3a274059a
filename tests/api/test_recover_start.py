"""After a search, its result and its start are recovered, and the one that loses less is used."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.pipeline import recover as recover_stage
from quantpipe.pipeline import recover_start
from quantpipe.pipeline.context import SearchDecision
from tests.api.nets import QUICK, numbers_of

FEW = {"option": "greedy", "max_evaluations": 40}
SEARCH: dict[str, Any] = {"search": FEW, "recover": "default", "evaluate": QUICK, "executor": "serial"}


def run(folder: Path, **given: Any) -> quantpipe.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return quantpipe.quantize(
            quantpipe.example_model(), DigitsDataset(), "vta", folder=folder, **{**SEARCH, **given}
        )


def given_losses(monkeypatch: pytest.MonkeyPatch, **factors: float) -> list[str]:
    """Let the losses after recovery be multiplied, by the name of the folder; return whose recovery was asked for."""
    real, asked = recover_stage.recover, list[str]()

    def recover(context: Any, decision: SearchDecision, profile: Any, files: Any = None) -> SearchDecision:
        name = "" if files is None else files.recovered.parent.parent.name
        asked.append(name)
        found = real(context, decision, profile, files)
        factor = factors.get(name, 1.0)
        metrics = {key: value * factor for key, value in found.recovery.get("metrics", {}).items()}
        return replace(found, recovery={**found.recovery, "metrics": metrics}) if found.recovery else found

    monkeypatch.setattr(recover_start, "recover", recover)
    return asked


@pytest.mark.parametrize(("factors", "started"), [({"start": 0.01}, True), ({"result": 0.01}, False)])
def test_the_one_that_loses_less_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factors: dict[str, float], started: bool
) -> None:
    asked = given_losses(monkeypatch, **factors)
    result = run(tmp_path / "run")
    assert asked == ["result", "start"]
    search = cast("dict[str, Any]", result.report["search"])
    assert any("the result is the recovered start" in note for note in search["notes"]) == started
    assert bool(search["contributions"]) != started
    assert ("the result is the recovered start" in search["device"]["sentence"]) == started
    assert ("confirmation" in search) != started
    plain = run(tmp_path / "plain", search="uniform", recover="none")
    ranges, known = (numbers_of(tmp_path / name)["strategy"]["thresholds"] for name in ("run", "plain"))
    assert (ranges == known) == started
    chosen = "start" if started else "result"
    with (
        np.load(tmp_path / "run" / "recover" / "weights.npz") as used,
        np.load(tmp_path / "run" / "recover" / "finalists" / chosen / "recover" / "weights.npz") as made,
    ):
        names = [name for name in used.files if name != "origin"]
        assert names and all(np.array_equal(used[name], made[name]) for name in names)
    assert result.report["agreement"]["differing"] == 0 == plain.report["agreement"]["differing"]


def test_a_second_run_in_the_folder_changes_nothing(tmp_path: Path) -> None:
    first = run(tmp_path)
    numbers = numbers_of(tmp_path)
    again = run(tmp_path)
    assert numbers_of(tmp_path) == numbers
    assert again.report["search"] == first.report["search"]


def test_what_has_no_start_to_compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One candidate; and a search by a limit of cost."""
    asked = given_losses(monkeypatch)
    run(tmp_path / "one", search="uniform")
    run(tmp_path / "cost", objective={"form": "best_value_within_cost", "cost": "bops", "cost_limit": 0.8})
    assert asked == ["", ""]
