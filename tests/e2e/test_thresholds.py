"""Thresholds as choices of the search: `threshold=search` end to end."""

from __future__ import annotations

import pytest

from tests.e2e.program import Program, read

LOW = ("hardware.activations.bits=4", "objective.form=best_value_within_cost", "objective.cost_limit=1")


def test_searched_thresholds_beat_the_base_they_start_from(program: Program) -> None:
    searched = program.run("threshold=search", "search=greedy_edge", *LOW)
    assert searched.code == 0, searched.err
    assert searched.report["agreement"]["differing"] == 0
    first = searched.report["search"]["trace"][0][1]
    assert searched.report["search"]["best_value"] > first / 2, "a loss less than half of max_range's"
    keys = {c["key"] for c in read(searched.folder / "annotate" / "choices.json")["choices"]}
    assert {"clip:image", "bits:image"} <= keys


@pytest.mark.parametrize("search", ["greedy", "annealing"])
def test_other_searches_take_them_too(program: Program, search: str) -> None:
    result = program.run("threshold=search", f"search={search}", "search.max_evaluations=60")
    assert result.code == 0, result.err
    assert result.report["search"]["evaluations"] == 60
    assert result.report["agreement"]["differing"] == 0
    assert result.report["warnings"] == []


def test_a_search_of_one_point_says_that_it_searched_no_threshold(program: Program) -> None:
    result = program.run("threshold=search")
    assert result.code == 0, result.err
    (warning,) = result.report["warnings"]
    assert "evaluated a single point" in warning and "search=annealing" in warning
    assert f"warning: {warning}" in result.err


def test_a_grid_that_is_none_is_refused(program: Program) -> None:
    result = program.run("threshold=search", "threshold.activations.percents=[50,100]")
    assert "percents is [50, 100]" in result.paragraph


def test_weights_by_the_estimator_of_the_activations(program: Program) -> None:
    result = program.run("threshold=percentile", "threshold.activations.p=99.9", "threshold.weights.method=estimator")
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0
    assert result.report["metrics"]["realized"]["top1"] > 0.95
    other = program.run("threshold=percentile", "threshold.activations.p=99.9", folder="mse")
    assert result.strategy["thresholds"] != other.strategy["thresholds"]
