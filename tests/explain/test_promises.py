"""What explain promises is what a run with its override gives, and a planted fault is what it names first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import quantpipe
from quantpipe.data import DigitsDataset, SampleSets
from tests.explain.planted import loss_of, options_of, run


def promised(result: quantpipe.Result, samples: Any, folder: Path, **options: Any) -> dict[str, Any]:
    """The answer, after a run with the first override has given the loss that it promised."""
    answer = quantpipe.explain(result.folder, samples, culprits=3)
    assert answer["loss"] == pytest.approx(loss_of(result), rel=1e-6)
    first = answer["advice"][0]
    again = run(samples, folder, **options_of(first["overrides"], options))
    gained = answer["loss"] - loss_of(again)
    assert gained == pytest.approx(first["loss_before"] - first["loss_after"], rel=0.2)
    return {**answer, "first": first}


@pytest.mark.program
def test_a_range_ten_times_too_small(tmp_path: Path) -> None:
    samples, tensor = DigitsDataset(), "block2.pointwise.out"
    sound = run(samples, tmp_path / "sound")
    limits = sound.strategy.ranges[tensor]
    small = {"kind": "calibrated", "min": limits.low / 10, "max": limits.high / 10}
    options = {"annotate": {"constraints": {tensor: small}}}
    result = run(samples, tmp_path / "run", **options)
    assert loss_of(result) > 10 * loss_of(sound)
    answer = promised(result, samples, tmp_path / "again", **options)
    assert answer["first"]["members"] == [tensor]
    worst = answer["causes"][0]
    assert worst["tensor"] == tensor
    assert worst["clipping"] > 10 * worst["rounding"]
    assert worst["saturated"] > 0.1


@pytest.mark.program
def test_outliers_in_calibration(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).random((48, 1, 8, 8), dtype=np.float32)
    far = pixels.copy()
    far[0, 0, 0, 0] = 2000.0
    samples = SampleSets(calibrate=far, search=pixels[:24] * 0.99, evaluate=pixels[24:] * 0.98)
    options = {"threshold": "max_range"}
    result = run(samples, tmp_path / "run", **options)
    answer = promised(result, samples, tmp_path / "again", **options)
    assert answer["causes"][0]["tensor"] == "image"
    assert answer["causes"][0]["rounding"] > answer["causes"][0]["clipping"]
    assert answer["first"]["gain"] > 0.5
    assert answer["first"]["members"] == ["image"]


@pytest.mark.program
def test_recovery(tmp_path: Path) -> None:
    samples = DigitsDataset()
    result = run(samples, tmp_path / "run", hardware="vta")
    answer = promised(result, samples, tmp_path / "again", hardware="vta")
    assert answer["first"]["overrides"] == ["recover=default"]


@pytest.mark.program
def test_what_recovery_did_is_told(tmp_path: Path) -> None:
    samples = DigitsDataset()
    result = run(samples, tmp_path / "run", hardware="vta", recover="default")
    answer = quantpipe.explain(result.folder, samples, culprits=1)
    assert answer["loss"] == pytest.approx(loss_of(result))
    before = result.report["search"]["metrics"]["kl"]
    assert answer["loss_before_recovery"] == pytest.approx(before)
    assert answer["loss"] < 0.5 * answer["loss_before_recovery"]
    assert "Recovery brought" in str(answer)


@pytest.mark.program
def test_wrong_preprocessing_is_said_first(tmp_path: Path) -> None:
    wrong = DigitsDataset(preprocess={"scale": "1/16", "mean": 40}, doubts="go_on")
    result = run(wrong, tmp_path / "run")
    answer = quantpipe.explain(result.folder, wrong, culprits=1)
    assert answer["doubts"]
    assert str(answer).lstrip().startswith("warning:")


@pytest.mark.program
def test_training_is_proposed_where_recovery_misses_the_objective(tmp_path: Path) -> None:
    """The gain of the trial is measured on the samples of the search, from the recovered result on."""
    pytest.importorskip("torch")
    samples = DigitsDataset(samples={"train": 256})
    narrow = {
        "name": "narrow",
        "like": "tensorrt",
        "source": "a test",
        "description": "few bits",
        "weights": {"bits": 3},
        "activations": {"bits": 4},
    }
    options = {"hardware": narrow, "recover": {"steps": ["rounding"]}}
    missed = run(samples, tmp_path / "missed", **options)
    answer = quantpipe.explain(missed.folder, samples, culprits=1)
    trials = [row for row in answer["advice"] if row["overrides"] == ["train=lsq"]]
    assert [row["loss_before"] for row in trials] == pytest.approx([answer["loss"]])
    assert trials[0]["loss_after"] < trials[0]["loss_before"]
    met = run(samples, tmp_path / "met", **options, objective={"tolerance": 100.0})
    answer = quantpipe.explain(met.folder, samples, culprits=1)
    assert not [row for row in answer["advice"] if row["overrides"] == ["train=lsq"]]
