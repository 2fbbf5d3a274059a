"""A tensor whose estimated range is four times too small: every search finds it on every kind of device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import quantpipe
from quantpipe.calibrate.estimators import MSE
from quantpipe.data import DigitsDataset
from quantpipe.types import Range, TensorSchema, TensorStats

TENSOR, EVALUATIONS = "block3.pointwise.out", 64
SEARCHES = ["greedy", "greedy_backward", "greedy_edge", "knapsack", "surrogate", "random"]
estimate = MSE.__call__


def planted(self: MSE, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
    found = estimate(self, stats, bits, schema)
    return Range(found.low / 4, found.high / 4) if stats.name == TENSOR else found


def searched(search: Any, device: str, folder: Path | None = None, **options: Any) -> dict[str, Any]:
    given: dict[str, Any] = {"precision": "none", "recover": "none", "executor": "serial", **options}
    pipeline = quantpipe.Pipeline(
        quantpipe.example_model(), DigitsDataset(), device, search=search, folder=folder, **given
    )
    with pipeline:
        return dict(pipeline.search().report)


@pytest.mark.parametrize("device", ["vta", "ort_cpu"])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_planted_range_is_found_by_every_search(search: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MSE, "__call__", planted)
    report = searched({"option": search, "max_evaluations": EVALUATIONS}, device)
    start, share = -report["trace"][0][1], 0.7 if search == "random" else 0.5  # other ranges are drawn as well
    assert -report["best_value"] < share * start and report["evaluations"] <= EVALUATIONS
    assert report["best_cost"] == report["trace_cost"][0][1]
    rows = {row["choice"]: row for row in report["contributions"]}
    assert rows[f"range:{TENSOR}"]["after"] in ("doubled", "wider", "whole")
    assert rows[f"range:{TENSOR}"]["gain"] == max(row["gain"] for row in rows.values())


def test_the_line_that_the_project_is_about_meets_the_default_objective() -> None:
    report = searched("greedy", "vta")
    assert report["feasible"] and report["shortfall"] is None
    assert report["device"]["sentence"] == f"loss from 0.04673 to {-report['best_value']:.4g} at the same cost"
    assert report["evaluations"] < 400 and report["stopped"] == "done"


def test_an_interrupted_search_ends_alike(tmp_path: Path) -> None:
    whole = searched("greedy", "vta")
    searched({"option": "greedy", "max_evaluations": 17}, "vta", tmp_path)
    found = searched("greedy", "vta", tmp_path)
    assert found["best_value"] == whole["best_value"] and found["trace"] == whole["trace"]
    assert found["contributions"] == whole["contributions"]


def test_bits_alone_can_still_be_asked_for() -> None:
    report = searched("greedy", "vta", annotate={"choices": ["bits"]})
    assert "contributions" not in report or all(r["choice"].startswith("bits:") for r in report["contributions"])
    nothing = searched("greedy", "vta", annotate={"choices": ["granularity"]})
    assert nothing["space_size"] == 1
