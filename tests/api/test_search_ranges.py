"""A tensor whose estimated range is four times too small: every search finds it on every kind of device."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import quantpipe
from quantpipe.calibrate.estimators import MSE
from quantpipe.data import DigitsDataset
from quantpipe.errors import ConfigError
from quantpipe.pipeline import confirm
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


@pytest.mark.program
@pytest.mark.parametrize("device", ["vta", "ort_cpu"])
@pytest.mark.parametrize("search", SEARCHES)
def test_a_planted_range_is_found_by_every_search(search: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MSE, "__call__", planted)
    report = searched({"option": search, "max_evaluations": EVALUATIONS}, device)
    start, share = -report["trace"][0][1], 0.7 if search == "random" else 0.55  # other ranges are drawn as well
    assert -report["best_value"] < share * start and report["evaluations"] <= EVALUATIONS
    assert report["best_cost"] == report["trace_cost"][0][1]
    rows = {row["choice"]: row for row in report["contributions"]}
    assert rows[f"range:{TENSOR}"]["after"] in ("doubled", "wider", "whole")
    gains = sorted(row["gain"] for row in rows.values())
    assert rows[f"range:{TENSOR}"]["gain"] >= gains[-2 if search == "random" else -1]


def test_the_line_that_the_project_is_about_meets_the_default_objective() -> None:
    report = searched("greedy", "vta")
    assert report["feasible"] and report["shortfall"] is None
    assert report["device"]["sentence"] == f"loss from 0.04673 to {-report['best_value']:.4g} at the same cost"
    assert report["evaluations"] < 400 and report["stopped"] == "done"


@pytest.mark.program
def test_an_interrupted_search_ends_alike(tmp_path: Path) -> None:
    whole = searched("greedy", "vta")
    searched({"option": "greedy", "max_evaluations": 17}, "vta", tmp_path)
    found = searched("greedy", "vta", tmp_path)
    assert found["best_value"] == whole["best_value"] and found["trace"] == whole["trace"]
    assert found["contributions"] == whole["contributions"]


@pytest.mark.program
def test_bits_alone_can_still_be_asked_for() -> None:
    report = searched("greedy", "vta", annotate={"choices": ["bits"]})
    assert "contributions" not in report or all(r["choice"].startswith("bits:") for r in report["contributions"])
    nothing = searched("greedy", "vta", annotate={"choices": ["granularity"]})
    assert nothing["space_size"] == 1


@pytest.mark.program
def test_ranges_that_gain_by_chance_alone_are_undone(monkeypatch: pytest.MonkeyPatch) -> None:
    """What greedy finds on this device does not reach the limit on calibration samples."""
    monkeypatch.setattr(confirm, "LEAST", 20.0)
    report = searched("greedy", "ort_cpu")
    check, start = report["confirmation"], report["trace"][0][1]
    assert check["changed"] > 0 and not check["kept"] and check["deviations"] < confirm.LEAST
    assert report["best_value"] == start < report["trace"][-1][1] and "contributions" not in report
    assert report["device"]["sentence"] == (
        f"{check['changed']} changed ranges gain nothing beyond chance on {check['samples']} calibration samples, so "
        "the result is the start"
    )
    monkeypatch.setattr(confirm, "LEAST", -float("inf"))
    unchecked = searched("greedy", "ort_cpu")
    assert unchecked["best_value"] == report["trace"][-1][1] and unchecked["confirmation"]["kept"]


@pytest.mark.program
def test_ranges_that_gain_are_kept() -> None:
    check = searched("greedy", "vta")["confirmation"]
    assert check["kept"] and check["deviations"] > confirm.LEAST and check["samples"] == 128


@pytest.mark.program
def test_a_met_objective_keeps_the_ranges_that_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chance may explain them, but without them the objective is missed."""
    monkeypatch.setattr(confirm, "LEAST", float("inf"))
    report = searched("greedy", "vta")
    assert report["feasible"] and report["confirmation"]["kept"] and report["contributions"]
    report = searched("greedy", "vta", objective={"tolerance": 1e-9})
    assert not report["confirmation"]["kept"] and report["best_value"] == report["trace"][0][1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"choices": {"freeze": ["*"]}}, r"choices\.freeze leave 21 choices one option each; remove patterns"),
        (
            {"annotate": {"choices": ["granularity"]}},
            r"offers no second option on vta; annotate\.choices=\[auto\] adds",
        ),
    ],
)
def test_a_space_of_one_point_says_what_would_widen_it(options: dict[str, Any], said: str) -> None:
    report = searched("greedy", "vta", **options)
    assert report["space_size"] == report["evaluations"] == 1 and re.search(said, report["device"]["sentence"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"choices": {"fix": {"float:stem.conv": "float"}}}, "matches no choice .did you mean 'bits:stem.out'"),
        ({"choices": {"fix": {"range:stem.out": "tripled"}}}, "it has estimated, halved, doubled, whole"),
        ({"annotate": {"choices": ["unify"]}}, "'unify' is no kind of choice; legal are auto, bits, range"),
    ],
)
def test_a_choice_that_the_device_has_not_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        searched("greedy", "vta", **options)


@pytest.mark.program
@pytest.mark.parametrize("most", [1, 2, 30, 92])
def test_a_search_stopped_anywhere_ends_alike(most: int, tmp_path: Path) -> None:
    whole = searched("greedy", "vta")
    searched({"option": "greedy", "max_evaluations": most}, "vta", tmp_path)
    found = searched("greedy", "vta", tmp_path)
    alike = ("best_value", "trace", "contributions", "confirmation", "evaluations")
    assert {key: found[key] for key in alike} == {key: whole[key] for key in alike}


@pytest.mark.program
def test_a_log_without_choices_of_ranges_is_replayed(tmp_path: Path) -> None:
    """As versions wrote it that searched bits alone: ranges begin at the estimated ones."""
    given: dict[str, Any] = {"precision": "none", "recover": "none", "executor": "serial"}
    model, samples = quantpipe.example_model(), DigitsDataset()
    old = searched("greedy", "vta", tmp_path, annotate={"choices": ["bits"]})
    assert old["evaluations"] > 1
    log = tmp_path / "search" / "trials.jsonl"
    points = [json.loads(line)["point"] for line in log.read_text().splitlines()[1:]]
    number = next(place for place, point in enumerate(points) if sum(point) == 1)
    with quantpipe.Pipeline(model, samples, "vta", strategy=log, trial=number, **given) as pipeline:
        replayed = pipeline.search().strategy
    with quantpipe.Pipeline(model, samples, "vta", search="uniform", **given) as pipeline:
        start = pipeline.search().strategy
    assert replayed.bits != start.bits
    same = [key for key in start.ranges if replayed.bits[key] == start.bits[key]]
    assert same and all(replayed.ranges[key] == start.ranges[key] for key in same)


def test_a_target_that_was_reached_stays_reached() -> None:
    """Without the target, chance explains what the search gains here, and the result is the start."""
    report = searched(
        {"option": "greedy", "target": 0.003},
        "ort_cpu",
        objective={"form": "best_value_within_cost", "cost_limit": 1.0},
    )
    assert report["stopped"] == "target" and -report["best_value"] <= 0.003 and "confirmation" not in report
