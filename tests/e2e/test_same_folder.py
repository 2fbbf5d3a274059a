"""One run folder used twice: what is done is not done again, and another run's work is refused, not overwritten."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.e2e.program import Program, contents, read


def test_a_second_run_skips_and_gives_the_same_report(program: Program) -> None:
    first = program.run()
    before = contents(first.folder)
    second = program.run()
    assert second.code == 0
    assert second.err.count("from an earlier run in this folder") == 2  # calibrate, evaluate
    assert contents(second.folder) == before


def test_part_of_the_stages_then_the_rest(program: Program) -> None:
    first = program.run("hardware=vta", "stages=[calibrate,search]")
    assert first.code == 0, first.err
    assert not (first.folder / "realize").exists()
    second = program.run("hardware=vta", "stages=[realize,evaluate]")
    assert second.code == 0, second.err
    whole = program.run("hardware=vta", folder="whole").report
    assert second.report["metrics"] == whole["metrics"]
    assert second.report["calibrate"]["samples"] == whole["calibrate"]["samples"]
    assert second.report["rectified"] == whole["rectified"]
    assert second.report["search"]["best_value"] == whole["search"]["best_value"]
    assert whole["recovery"]["met"], "the search alone misses the objective here"
    assert second.report["warnings"] == whole["warnings"] == []
    assert second.report["search"]["feasible"] and second.report["search"]["shortfall"] is None


@pytest.mark.parametrize(
    ("change", "metric"), [("objective=accuracy", "accuracy"), ("dataset.samples.search=64", "kl")]
)
def test_losses_are_compared_anew_for_another_metric_or_search_split(
    program: Program, change: str, metric: str
) -> None:
    """The report says by what metric, and on which samples, a loss carries over: an earlier one says it of others."""
    first = program.run()
    assert (first.report["generalization"]["metric"], first.report["generalization"]["search_samples"]) == ("kl", 128)
    second = program.run("stages=[realize,evaluate]", change)
    assert second.code == 0, second.err
    assert second.report["generalization"]["metric"] == metric
    assert second.report["generalization"]["search_samples"] == (64 if "samples" in change else 128)
    fresh = program.run("command=replay", f"strategy={first.folder}/search/strategy.json", change, folder="fresh")
    assert second.report["generalization"] == fresh.report["generalization"]
    again = program.run("stages=[realize,evaluate]", change)
    assert "evaluate   from an earlier run in this folder" in again.err


def test_a_larger_budget_goes_on_where_the_smaller_one_ended(program: Program) -> None:
    small = program.run("search=random", "objective.cost=bits", "search.max_evaluations=4")
    assert small.code == 0, small.err
    large = program.run("search=random", "objective.cost=bits", "search.max_evaluations=8")
    assert large.code == 0, large.err
    trials = (large.folder / "search" / "trials.jsonl").read_text().splitlines()[1:]
    assert [json.loads(t)["number"] for t in trials] == list(range(8))
    fresh = program.run("search=random", "objective.cost=bits", "search.max_evaluations=8", folder="fresh")
    assert large.strategy == fresh.strategy
    assert large.report["metrics"] == fresh.report["metrics"]


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ("hardware=vta", "config hardware.name is 'ort_cpu' in the file, 'vta' here"),
        ("schema=symmetric", "config schema.name is 'asymmetric' in the file, 'symmetric' here"),
        ("annotate.min_bits=5", "config annotate.min_bits is 4 in the file, 5 here"),
        ("threshold=kl", "config threshold.activations"),
        ("search=greedy", "algorithm: 'Uniform()' there"),
        ("objective.tolerance=0.5", "config objective.tolerance is 0.02 in the file, 0.5 here"),
        ("seed=1", "config seed is 0 in the file, 1 here"),
        ("dataset.samples.calibrate=64", "calibrate_data is sha256:"),
        ("dataset.samples.search=64", "search_data is sha256:"),
        ("dataset.samples.evaluate=64", "evaluate_data is sha256:"),
        ("realize=qoperator", "config realize.backend is 'qdq' in the file, 'qoperator' here"),
    ],
)
def test_another_configuration_is_refused_by_name(program: Program, finished: Path, other: str, named: str) -> None:
    before = contents(finished)
    result = program.run(other, folder=finished)
    assert named in result.paragraph
    assert "hydra.run.dir" in result.paragraph or "another folder" in result.paragraph
    assert contents(finished) == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, zygote: object) -> Path:
    """A finished run, to be left as it is."""
    from tests.e2e.program import Zygote

    assert isinstance(zygote, Zygote)
    return Program(tmp_path_factory.mktemp("finished"), zygote).run().folder


def test_a_foreign_log_of_trials_is_refused(program: Program, finished: Path) -> None:
    other = program.run("hardware=vta", folder="other")
    place = program.cwd / "run" / "search"
    place.mkdir(parents=True)
    (place / "trials.jsonl").write_bytes((other.folder / "search" / "trials.jsonl").read_bytes())
    result = program.run()
    assert "belongs to another search" in result.paragraph
    assert "hardware: " in result.paragraph
    (place / "trials.jsonl").write_text("my notes\n")
    assert "no trial log of this program" in program.run().paragraph
    assert (place / "trials.jsonl").read_text() == "my notes\n"


def test_damaged_statistics_are_said_and_measured_again(program: Program) -> None:
    folder = program.run("stages=[calibrate]").folder
    stats = folder / "calibrate" / "stats.npz"
    stats.write_bytes(stats.read_bytes()[:-100])
    again = program.run()
    assert again.code == 0 and f"{stats} is damaged" in again.err


@pytest.mark.smoke
def test_replay_gives_the_same_numbers(program: Program, finished: Path) -> None:
    strategy = finished / "search" / "strategy.json"
    result = program.run("command=replay", f"strategy={strategy}")
    assert result.code == 0, result.err
    assert "other settings" not in result.err
    there = read(finished / "evaluate" / "report.json")
    assert result.report["metrics"] == there["metrics"]
    assert result.report["cost"] == there["cost"]
    assert result.report["rectified"] == there["rectified"]
    assert result.strategy == read(strategy)["strategy"]
    assert (result.folder / "realize" / "model.onnx").read_bytes() == (finished / "realize" / "model.onnx").read_bytes()


def test_replay_into_the_folder_of_another_strategy_is_refused(program: Program, finished: Path) -> None:
    strategy = read(finished / "search" / "strategy.json")
    del strategy["origin"]
    strategy["strategy"]["bits"] = dict.fromkeys(strategy["strategy"]["bits"], 5)
    (program.cwd / "edited.json").write_text(json.dumps(strategy))
    before = contents(finished)
    result = program.run("command=replay", "strategy=edited.json", folder=finished)
    assert "another strategy" in result.paragraph
    assert contents(finished) == before
    result = program.run("command=replay", "strategy=edited.json")
    assert result.code == 0, result.err
    assert result.report["model"]["mean_weight_bits"] == 5


def test_a_strategy_of_another_model_is_refused_and_of_another_device_is_carried_over(
    program: Program, finished: Path
) -> None:
    strategy = finished / "search" / "strategy.json"
    elsewhere = program.run("command=replay", f"strategy={strategy}", "hardware=vta", folder=program.cwd / "elsewhere")
    assert elsewhere.code == 0 and "was made for another device or schema" in elsewhere.err
    assert elsewhere.report["agreement"]["differing"] == 0
    payload = read(strategy)
    del payload["origin"]
    payload["strategy"]["model_hash"] = "sha256:" + "0" * 64
    (program.cwd / "s.json").write_text(json.dumps(payload))
    assert "another model" in program.run("command=replay", "strategy=s.json").paragraph
    (program.cwd / "s.json").write_text("{}")
    assert "no strategy file" in program.run("command=replay", "strategy=s.json").paragraph


def test_a_strategy_of_another_isa_replays_with_a_note_of_what_differs(program: Program, finished: Path) -> None:
    strategy = finished / "search" / "strategy.json"
    result = program.run("command=replay", f"strategy={strategy}", "hardware.isa=vnni")
    assert result.code == 0, result.err
    assert "made for ort_cpu with other settings: config hardware.isa is 'any' in the file, 'vnni' here" in result.err
    assert any("hardware.isa" in note for note in result.report["search"]["notes"])
    assert result.report["agreement"]["differing"] == 0


def test_realize_without_a_strategy_says_what_to_do(program: Program) -> None:
    assert "command=replay strategy=FILE" in program.run("stages=[realize]").paragraph


def test_a_changed_model_file_is_found_although_its_digest_was_changed_too(program: Program) -> None:
    """What is compared is the file: the rows of the last layer's weights are rolled, and the origin file agrees."""
    path = program.run().folder / "realize" / "model.onnx"
    model = onnx.load(path)
    weight = next(t for t in model.graph.initializer if t.name == "classifier.weight_q")
    weight.CopyFrom(numpy_helper.from_array(np.roll(numpy_helper.to_array(weight), 1, axis=0), weight.name))
    known, data = hashlib.sha256(path.read_bytes()).hexdigest(), model.SerializeToString()
    path.write_bytes(data)
    beside = path.with_name(f"{path.name}.origin.json")
    text = beside.read_text()
    assert known in text
    beside.write_text(text.replace(known, hashlib.sha256(data).hexdigest()))
    second = program.run()
    assert second.code == 3, second.err
    assert "first in the tensor logits" in second.err
    assert second.report["metrics"]["realized"]["top1"] < 0.5 < second.report["metrics"]["simulated"]["top1"]
