"""What a run's record in MLflow holds beside numbers, and how a folder finds back to its run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from quantpipe.errors import ConfigError
from quantpipe.pipeline.log_run import _run_name
from quantpipe.tracking import FOLDER, MlflowTracker, fetch_runs, filed_in, finish_sweep
from tests.tracking.test_mlflow_tracker import client, save_model

DATA = {"evaluate": {"samples": 607, "digest": "sha256:" + "ab" * 32, "source": "the digits data set"}}


def opened(launch: Path, folder: Path, params: dict[str, Any] | None = None, **config: Any) -> MlflowTracker:
    folder.mkdir(exist_ok=True)
    tracker = MlflowTracker(launch_folder=launch, **config)
    tracker.start("vta greedy m", params or {"hardware": "vta"}, {FOLDER: str(folder)})
    return tracker


@pytest.mark.program
def test_samples_metrics_and_model_belong_together(launch: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "model.onnx")
    with opened(launch, tmp_path / "run") as tracker:
        tracker.log_datasets("digits", DATA)
        tracker.log_model(tmp_path / "model.onnx", {"x": np.zeros((1, 12), np.float32)})
        tracker.log_metrics({"realized/top1": 0.5}, on="evaluate")
        tracker.log_metrics({"search/seconds": 2.0})
        tracker.set_tags({"quantpipe.target": "met"})
    run = client(launch).get_run(tracker.run_id)
    (used,) = run.inputs.dataset_inputs
    assert used.dataset.name == "digits evaluate" and used.dataset.digest == ("ab" * 18)
    assert used.dataset.profile == '{"num_rows": 607, "samples": 607}'
    assert [(tag.key, tag.value) for tag in used.tags] == [("mlflow.data.context", "evaluate")]
    logged = client(launch).get_logged_model(run.outputs.model_outputs[0].model_id)
    found = {m.key: (m.value, m.dataset_digest) for m in logged.metrics}
    assert found == {"realized/top1": (0.5, "ab" * 18), "search/seconds": (2.0, None)}
    assert logged.name == "vta greedy m" and run.data.tags["quantpipe.target"] == "met"
    assert (
        client(launch).get_experiment_by_name("quantpipe").tags["mlflow.experimentKind"] == "custom_model_development"
    )


def test_a_model_is_registered_with_its_aliases(launch: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "model.onnx")
    for number in ("1", "2"):
        with opened(launch, tmp_path / f"run{number}", register="net", aliases=["newest", "vta"]) as tracker:
            tracker.log_model(tmp_path / "model.onnx")
        assert client(launch).get_run(tracker.run_id).data.tags["quantpipe.registered"] == f"net version {number}"
    version = client(launch).get_model_version_by_alias("net", "newest")
    assert (str(version.version), version.run_id) == ("2", tracker.run_id)
    assert str(client(launch).get_model_version_by_alias("net", "vta").version) == "2"


def test_requirements_are_not_compared_with_every_installed_package(
    launch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the installed versions; MLflow would read the files of all packages to find that out."""
    from mlflow.utils import requirements_utils

    read: list[bool] = []
    monkeypatch.setattr(requirements_utils, "_init_modules_to_packages_map", lambda: read.append(True))
    check = requirements_utils._check_requirement_satisfied
    save_model(tmp_path / "model.onnx")
    with opened(launch, tmp_path / "run") as tracker:
        tracker.log_model(tmp_path / "model.onnx", {"x": np.zeros((1, 12), np.float32)})
    run = client(launch).get_run(tracker.run_id)
    assert run.outputs.model_outputs and read == []
    assert requirements_utils._check_requirement_satisfied is check


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"register": "a/b"}, "no name of a registered model"),
        ({"register": "a", "aliases": ["latest"]}, "no alias"),
        ({"register": "a", "aliases": ["v3"]}, "no alias"),
        ({"register": "a", "log_model": False}, "log_model=true"),
        ({"registre": "a"}, "register"),
    ],
)
def test_what_mlflow_would_refuse_in_the_end_is_refused_first(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MlflowTracker(**config)


def test_a_resumed_folder_goes_on_in_its_run(launch: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "model.onnx")
    folder = tmp_path / "run"
    with pytest.raises(RuntimeError), opened(launch, folder) as first:
        first.log_trials((step, {"search/tried_value": 1.0 * step}) for step in range(3))
        raise RuntimeError("the disk is full")
    run = client(launch).get_run(first.run_id)
    assert run.info.status == "FAILED" and run.data.tags["quantpipe.failure"] == "RuntimeError: the disk is full"
    for _ in range(2):  # the second time nothing is new
        with opened(launch, folder) as again:
            again.log_trials((step, {"search/tried_value": 1.0 * step}) for step in range(5))
            again.log_model(tmp_path / "model.onnx")
        run = client(launch).get_run(first.run_id)
        assert again.run_id == first.run_id and run.info.status == "FINISHED"
        assert "quantpipe.failure" not in run.data.tags and len(run.outputs.model_outputs) == 1
        steps = [m.step for m in client(launch).get_metric_history(first.run_id, "search/tried_value")]
        assert sorted(steps) == [0, 1, 2, 3, 4]
    with opened(launch, folder, {"hardware": "vta", "seed": 2, "threshold": "kl"}) as same:
        pass
    assert same.run_id == first.run_id  # parameters may be added
    with opened(launch, folder, {"hardware": "ort_cpu"}) as other:
        pass
    assert other.run_id != first.run_id  # they cannot change
    client(launch).delete_run(other.run_id)
    with opened(launch, folder, {"hardware": "ort_cpu"}) as third:
        pass
    assert third.run_id not in (first.run_id, other.run_id)


def test_what_could_not_be_sent_is_known(launch: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with opened(launch, folder) as tracker:
        assert not tracker.incomplete
        tracker.log_model(tmp_path / "absent.onnx")
        assert tracker.incomplete
    record = filed_in(folder)
    assert record is not None and record.run_id == tracker.run_id and not record.complete
    with opened(launch, folder):
        pass
    record = filed_in(folder)
    assert record is not None and record.complete


def test_runs_are_fetched_by_their_ids(launch: Path, tmp_path: Path) -> None:
    for number in range(2):
        folder = tmp_path / f"{number}"
        (folder / "evaluate").mkdir(parents=True)
        (folder / "evaluate" / "report.json").write_text(f"{number}")
        (folder / "large.bin").write_text("x")
        with MlflowTracker(launch_folder=launch, parent_key=str(tmp_path)) as tracker:
            tracker.start("job", {}, {FOLDER: str(folder)})
            tracker.log_artifacts(folder)
    finish_sweep(tmp_path, None, launch, tags={"quantpipe.best": "one"}, files=[tmp_path / "0" / "large.bin"])
    parent = client(launch).get_run(tracker.run_id).data.tags["mlflow.parentRunId"]
    assert client(launch).get_run(parent).data.tags["quantpipe.best"] == "one"
    assert [f.path for f in client(launch).list_artifacts(parent)] == ["large.bin"]
    found = fetch_runs(None, launch, parent, tmp_path / "into")
    assert [(place / "evaluate" / "report.json").read_text() for _, place in found] == ["0", "1"]
    assert not [place for _, place in found if (place / "large.bin").exists()]
    assert [run_id for run_id, _ in fetch_runs(None, launch, str(tracker.run_id), tmp_path / "one")] == [tracker.run_id]
    with pytest.raises(ConfigError, match=r"has no run 0000"):
        fetch_runs(None, launch, "0" * 32, tmp_path / "none")


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({}, "vta greedy m"),
        ({"threshold": "kl", "recover": "none", "hardware": "vta"}, "vta greedy kl recover=none m"),
        ({"seed": "3", "pick.x": "9", "evaluate.latency_runs": "5"}, "vta greedy seed=3 x=9 m"),
        ({"experiments": "vta_digits", "annotate.float_nodes": "[a,b,c,d,e,f,g,h]"}, "vta greedy m"),
    ],
)  # fmt: skip
def test_names_tell_the_jobs_of_a_sweep_apart(changed: dict[str, str], name: str) -> None:
    settings: Any = SimpleNamespace(
        command="run", changed=changed, spec=SimpleNamespace(name="vta"), model=Path("some/m.onnx")
    )
    assert _run_name(settings, {"search": "greedy"}) == name


@pytest.mark.program
def test_an_empty_cache_is_no_example(launch: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """JSON keeps no shape of an array without elements: MLflow would reject the example with a long warning."""
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 2, "t", 4]) for n in ("past.key", "x", "y")]
    nodes = [helper.make_node("Concat", ["past.key", "x"], ["y"], name="joined", axis=2)]
    graph = helper.make_graph(nodes, "g", ports[:2], ports[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), tmp_path / "m.onnx")
    with opened(launch, tmp_path / "run") as tracker:
        sample = {"past.key": np.zeros((1, 2, 0, 4), np.float32), "x": np.ones((1, 2, 1, 4), np.float32)}
        tracker.log_model(tmp_path / "m.onnx", sample)
    assert client(launch).get_run(tracker.run_id).outputs.model_outputs
    assert "WARNING" not in capfd.readouterr().err
