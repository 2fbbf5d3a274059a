"""A strategy of an earlier run is realized from Python: the same integers, without a search."""

from __future__ import annotations

from pathlib import Path

import pytest

import quantpipe
from quantpipe.data import DigitsDataset
from quantpipe.errors import ConfigError
from tests.api.nets import QUICK


@pytest.mark.program
def test_a_stored_strategy_gives_the_same_model(tmp_path: Path) -> None:
    given = {"evaluate": QUICK, "recover": "none", "precision": "none", "executor": "serial"}
    model, samples = quantpipe.example_model(), DigitsDataset()
    first = quantpipe.quantize(model, samples, "vta", folder=tmp_path / "a", search="greedy", **given)
    stored = tmp_path / "a" / "search" / "strategy.json"
    again = quantpipe.quantize(model, samples, "vta", folder=tmp_path / "b", strategy=stored, **given)
    assert again.strategy.ranges == first.strategy.ranges and again.strategy.bits == first.strategy.bits
    assert again.report["metrics"] == first.report["metrics"]
    assert not (tmp_path / "b" / "search" / "trials.jsonl").exists()
    log = tmp_path / "a" / "search" / "trials.jsonl"
    start = quantpipe.quantize(model, samples, "vta", folder=tmp_path / "c", strategy=log, trial=0, **given)
    assert start.strategy.ranges != first.strategy.ranges


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trial": 3}, "trial.*without strategy"),
        ({"strategy": 3}, "strategy.*is a int; legal is the path of a strategy.json"),
    ],
)
def test_what_means_nothing_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        quantpipe.Pipeline(quantpipe.example_model(), DigitsDataset(), "vta", **given)  # type: ignore[misc]
