"""The run folder refuses another run's work before anything is overwritten; a missed objective is told in numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from quantpipe.artifacts import Origin, write_bytes, write_json
from quantpipe.errors import ArtifactError
from quantpipe.pipeline.build_report import shortfall
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.search import Objective
from quantpipe.types import Score


def origin(strategy: str = "sha256:a", **config: object) -> Origin:
    return Origin("realize", {"model": "sha256:m", "strategy": strategy}, {"hardware": {"name": "vta"}, **config})


def test_work_of_the_same_run_is_accepted(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    files.refuse_other(files.model, origin())
    write_bytes(files.model, b"model", origin())
    files.refuse_other(files.model, origin())
    files.refuse_other(files.model, origin(strategy="sha256:b"))


def test_work_of_another_run_is_refused_and_its_name_comes_first(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    write_json(files.report, {}, origin(a=1, b=2))
    other = Origin("realize", {"model": "sha256:n", "strategy": "x"}, {"hardware": {"name": "npu"}, "a": 2, "b": 3})
    with pytest.raises(ArtifactError) as error:
        files.refuse_other(files.report, other)
    assert "another run: config hardware.name is 'vta' in the file, 'npu' here; model is sha256:m" in str(error.value)


def test_a_file_without_origin_is_refused(tmp_path: Path) -> None:
    files = RunFolder(tmp_path)
    files.model.parent.mkdir()
    files.model.write_bytes(b"mine")
    with pytest.raises(ArtifactError, match=r"no origin|damaged"):
        files.refuse_other(files.model, origin())
    assert files.model.read_bytes() == b"mine"


def test_a_model_that_a_killed_earlier_version_left_is_made_again(tmp_path: Path) -> None:
    """Without its side file, but beside its plan: once this ended every later run."""
    said: list[str] = []
    files = RunFolder(tmp_path, said.append)
    write_json(files.plan, {}, origin())
    files.model.write_bytes(b"\x08\x08\xff\xfe")
    files.refuse_other(files.model, origin())
    assert not files.realized_current(origin()) and "model.onnx.origin.json" in said[0]
    with pytest.raises(ArtifactError, match="another run"):
        files.refuse_other(files.model, Origin("realize", {"model": "sha256:n", "strategy": "x"}))


def test_a_front_is_replaced_as_one_and_checked_file_by_file(tmp_path: Path) -> None:
    said: list[str] = []
    files = RunFolder(tmp_path, said.append)
    files.write_front({"s": 1}, {"trial_0.json": {"a": 1}, "trial_3.json": {"a": 2}}, {"front": []}, origin())
    files.write_front({"s": 2}, {"trial_3.json": {"a": 2}, "trial_4.json": {"a": 3}}, {"front": []}, origin())
    assert sorted(p.name for p in files.front.iterdir()) == ["trial_3.json", "trial_4.json"]
    names = ["trial_3.json", "trial_4.json"]
    assert files.front_current(names, origin()) and not files.front_current([*names, "trial_0.json"], origin())
    for path in (files.pareto, files.front / "trial_4.json"):
        path.write_bytes(path.read_bytes().replace(b"1", b"7", 1))
    assert not files.front_current(names, origin()) and len(said) == 2


def test_each_damage_is_said_once_and_refuses_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    files = RunFolder(tmp_path, said.append)
    write_json(files.report, {"a": 1}, origin())
    files.report.write_bytes(files.report.read_bytes().replace(b'"origin"', b'"orisin"'))
    for _ in range(2):
        files.refuse_other(files.report, origin())
        assert files.read_report(origin()) is None
    assert len(said) == 1 and f"{files.report} is damaged" in said[0]


@pytest.mark.parametrize(
    ("objective", "score", "said"),
    [
        (
            Objective(metric="kl", tolerance=0.02),
            Score(-0.05, 100.0),
            "KL divergence from the float model on the search ",
        ),  # type: ignore[arg-type]
        (
            Objective(metric="mse", tolerance=0.02),
            Score(-0.05, 100.0),
            "is 0.05, allowed is 0.02 (objective.tolerance)",
        ),  # type: ignore[arg-type]
        (
            Objective(metric="accuracy", tolerance=0.01, reference_value=0.99),  # type: ignore[arg-type]
            Score(0.9, 100.0),
            "is 0.9, allowed is 0.98 (the float model's 0.99 less objective.tolerance=0.01)",
        ),
        (
            Objective(metric="kl", form="best_value_within_cost", cost_limit=80.0),  # type: ignore[arg-type]
            Score(-0.01, 100.0),
            "the lowest cost found is 100 (bits), allowed are 80 (objective.cost_limit)",
        ),
    ],
)
def test_a_missed_objective_is_told_in_numbers(objective: Objective, score: Score, said: str) -> None:
    found = shortfall(objective, score)
    assert found is not None
    assert said in found


def test_a_met_objective_is_not_told() -> None:
    assert shortfall(Objective(metric="kl", tolerance=0.02), Score(-0.01, 100.0)) is None  # type: ignore[arg-type]
