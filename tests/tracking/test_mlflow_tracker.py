"""Runs are filed in MLflow beside the launch folder, whole, and read back through MLflow's own clients."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.errors import ConfigError, Interrupted
from quantpipe.tracking import MlflowTracker
from quantpipe.tracking.logged_model import _one_sample
from quantpipe.tracking.setup import make_client


def client(launch: Path) -> Any:
    return make_client(f"sqlite:///{launch}/mlflow.db")


def started(launch: Path, **config: Any) -> MlflowTracker:
    tracker = MlflowTracker(launch_folder=launch, **config)
    tracker.start("job", {"hardware": "vta"}, {"stage": "test"})
    return tracker


def save_model(path: Path, size: int = 12) -> np.ndarray[Any, Any]:
    weight = np.random.default_rng(0).normal(size=(size, 3)).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", size]),
            helper.make_tensor_value_info("w", TensorProto.FLOAT, weight.shape),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return weight


def test_importing_the_package_does_not_import_mlflow() -> None:
    code = "import sys, quantpipe.tracking as t; t.MlflowTracker(); sys.exit('mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.program
def test_a_whole_run(launch: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "search").mkdir(parents=True)
    (folder / "search" / "trials.jsonl").write_text("{}\n")
    (folder / "config.yaml").write_text("a: 1\n")
    (folder / ".lock").write_text("")
    with started(launch, run_name="mine") as tracker:
        tracker.log_params({"schema": {"name": "symmetric"}, "strategy": "x" * 7000, "edge|a->b[0]": None})
        tracker.log_metrics({"simulated.top1": 0.5, "realized.top1": None, "sqnr": float("inf"), "a|b": 1})
        tracker.log_trials((step, {"value": step * 0.5, "cost": 1.0}) for step in range(1200))
        tracker.log_artifacts(folder)
    run = client(launch).get_run(tracker.run_id)
    assert run.info.status == "FINISHED" and run.info.run_name == "mine"
    assert run.data.tags["stage"] == "test" and run.data.tags["mlflow.source.type"] == "LOCAL"
    strategy = run.data.params.pop("strategy")
    assert run.data.params == {"hardware": "vta", "schema": '{"name": "symmetric"}', "edge_a-_b_0_": "null"}
    assert len(strategy) == 6000 and strategy.endswith("x… (7000 characters)")
    assert run.data.metrics == {"simulated.top1": 0.5, "a_b": 1.0, "value": 599.5, "cost": 1.0}
    history = client(launch).get_metric_history(tracker.run_id, "value")
    assert sorted((m.step, m.value) for m in history) == [(step, step * 0.5) for step in range(1200)]
    files = {Path(f.path).name for d in ("", "search") for f in client(launch).list_artifacts(tracker.run_id, d)}
    assert files == {"search", "trials.jsonl", "config.yaml"}
    assert (launch / "mlruns" / "quantpipe" / str(tracker.run_id) / "artifacts" / "config.yaml").is_file()
    assert tracker.experiment == "quantpipe"
    assert tracker.ui_command == f"mlflow ui --backend-store-uri sqlite:///{launch}/mlflow.db"


@pytest.mark.grid
def test_a_fresh_store_is_made_quietly(tmp_path: Path) -> None:
    code = (
        "import sys, os; from quantpipe.tracking import MlflowTracker\n"
        "tracker = MlflowTracker(launch_folder=sys.argv[1]); os.chdir('/')\n"
        "with tracker: tracker.start('a', {}, {}); sys.stdout.write(tracker.run_id)"
    )
    folder = tmp_path / "a b#é"
    folder.mkdir()
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=True, capture_output=True, text=True)
    assert client(folder).get_run(done.stdout).info.status == "FINISHED" and done.stderr == ""


@pytest.mark.slow
def test_jobs_that_start_together_share_one_fresh_store(tmp_path: Path) -> None:
    code = (
        "import sys; from quantpipe.tracking import MlflowTracker\n"
        "tracker = MlflowTracker(launch_folder=sys.argv[1], parent_key=sys.argv[1] + '/sweep')\n"
        "with tracker: tracker.start('a', {'job': sys.argv[2]}, {}); tracker.log_metrics({'m': 1}); "
        "sys.stdout.write(tracker.run_id)"
    )
    jobs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), str(i)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(4)
    ]
    ends = [job.communicate() for job in jobs]
    assert [error for _, error in ends] == [""] * 4
    runs = [client(tmp_path).get_run(out) for out, _ in ends]
    assert len({run.data.tags["mlflow.parentRunId"] for run in runs}) == 1
    assert len({run.info.experiment_id for run in runs}) == 1


@pytest.mark.program
def test_the_model_comes_back_with_its_signature(launch: Path, tmp_path: Path) -> None:
    import mlflow
    import onnxruntime

    weight = save_model(tmp_path / "model.onnx")
    sample = np.random.default_rng(1).normal(size=(5, 12)).astype(np.float32)
    before = dict(os.environ)
    with started(launch) as tracker:
        tracker.log_metrics({"top1": 0.75})
        tracker.log_model(tmp_path / "model.onnx", {"x": sample})
    assert os.environ.get("MLFLOW_TRACKING_URI") == before.get("MLFLOW_TRACKING_URI") is None
    outputs = client(launch).get_run(tracker.run_id).outputs.model_outputs
    assert len(outputs) == 1
    logged = client(launch).get_logged_model(outputs[0].model_id)
    assert logged.status == "READY" and logged.source_run_id == tracker.run_id and logged.name == "job"
    assert logged.params == {"hardware": "vta"} and [(m.key, m.value) for m in logged.metrics] == [("top1", 0.75)]
    assert str(launch) in logged.artifact_location
    model = mlflow.pyfunc.load_model(logged.artifact_location)
    inputs, outs = model.metadata.signature.inputs, model.metadata.signature.outputs
    assert [(s.name, s.type, s.shape) for s in inputs] == [("x", np.dtype("float32"), (-1, 12))]
    assert [(s.name, s.type, s.shape) for s in outs] == [("y", np.dtype("float32"), (-1, 3))]
    np.testing.assert_allclose(model.predict({"x": sample})["y"], sample @ weight, rtol=1e-4)
    session = onnxruntime.InferenceSession(mlflow.onnx.load_model(logged.artifact_location).SerializeToString())
    np.testing.assert_allclose(session.run(None, {"x": sample})[0], sample @ weight, rtol=1e-4)
    assert "onnxruntime==" in (Path(logged.artifact_location.removeprefix("file://")) / "requirements.txt").read_text()


def test_an_example_has_all_layers_of_a_state(tmp_path: Path) -> None:
    """A state `[2, n, 3]` has samples along its second axis; MLflow rejects an example with one layer."""
    save_model(tmp_path / "model.onnx")
    proto = onnx.load(tmp_path / "model.onnx")
    proto.graph.input.append(helper.make_tensor_value_info("state", TensorProto.FLOAT, [2, "n", 3]))
    example = {"x": np.zeros((5, 12), np.float32), "state": np.zeros((2, 1, 3), np.float32)}
    kept = _one_sample(example, proto)
    assert kept is not None and {name: array.shape for name, array in kept.items()} == {
        "x": (1, 12),
        "state": (2, 1, 3),
    }


def test_log_model_can_be_switched_off(launch: Path, tmp_path: Path) -> None:
    save_model(tmp_path / "model.onnx")
    with started(launch, log_model=False) as tracker:
        tracker.log_model(tmp_path / "model.onnx")
    assert not client(launch).get_run(tracker.run_id).outputs.model_outputs


def test_a_model_with_a_data_file_is_left_to_the_artifacts(
    launch: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model(tmp_path / "small.onnx")
    path = tmp_path / "run" / "realize" / "model.onnx"
    path.parent.mkdir(parents=True)
    onnx.save(onnx.load(tmp_path / "small.onnx"), path, save_as_external_data=True, location="m.data", size_threshold=0)
    with started(launch) as tracker, caplog.at_level(logging.WARNING):
        tracker.log_artifacts(tmp_path / "run")
        tracker.log_model(path)
    (record,) = [r.getMessage() for r in caplog.records if "data file" in r.getMessage()]
    assert str(path) in record and "under realize" in record
    assert not client(launch).get_run(tracker.run_id).outputs.model_outputs
    kept = client(launch).list_artifacts(tracker.run_id, "realize")
    assert {Path(entry.path).name for entry in kept} == {"model.onnx", "m.data"}


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError(), "FAILED"), (KeyboardInterrupt(), "KILLED"), (Interrupted("x"), "KILLED")]
)
def test_the_status_says_how_it_ended(launch: Path, error: BaseException, status: str) -> None:
    tracker = MlflowTracker(launch_folder=launch)
    with pytest.raises(type(error)), tracker:
        tracker.start(None, {}, {})
        raise error
    assert client(launch).get_run(tracker.run_id).info.status == status
    tracker.end("FINISHED")  # too late: the first end counts
    assert client(launch).get_run(tracker.run_id).info.status == status


def test_an_unknown_status_is_refused(launch: Path) -> None:
    with pytest.raises(ValueError, match="FINISHED, FAILED, KILLED"):
        started(launch).end("DONE")


def test_parameters_do_not_change(launch: Path, caplog: pytest.LogCaptureFixture) -> None:
    with started(launch) as tracker:
        tracker.log_params({"hardware": "vta", "a": 1})
        assert not caplog.records
        tracker.log_params({"hardware": "ort_cpu", "b": 2})
    assert "'hardware' stays 'vta'" in caplog.text
    assert client(launch).get_run(tracker.run_id).data.params == {"hardware": "vta", "a": "1", "b": "2"}


def test_the_environment_names_the_store(launch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{launch}/mlflow.db")
    tracker = MlflowTracker(launch_folder=tmp_path)
    tracker.start(None, {}, {})
    assert client(launch).get_run(tracker.run_id).info.artifact_uri.startswith(f"file://{launch}/mlruns/")
    tracker.end()


# ---------------------------------------------------------------- an outer run


def test_an_outer_run_is_used_and_left_open(launch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = client(launch)
    outer = outside.create_run(outside.create_experiment("theirs"), run_name="outer").info.run_id
    outside.log_param(outer, "hardware", "vta")
    monkeypatch.setenv("MLFLOW_RUN_ID", outer)
    with started(launch) as tracker:
        tracker.log_params({"seed": 0})
        assert tracker.run_id == outer and tracker.experiment == "theirs"
    run = outside.get_run(outer)
    assert run.info.status == "RUNNING" and run.info.run_name == "outer"
    assert run.data.params == {"hardware": "vta", "seed": "0"} and run.data.tags["stage"] == "test"
    assert outside.get_experiment_by_name("quantpipe") is None


def test_an_outer_run_that_nobody_named_gets_the_name(launch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = client(launch)
    outer = outside.create_run(outside.create_experiment("theirs")).info.run_id  # big-perch-692 or the like
    monkeypatch.setenv("MLFLOW_RUN_ID", outer)
    with MlflowTracker(launch_folder=launch) as tracker:
        tracker.start("vta greedy m", {}, {})
    assert outside.get_run(outer).info.run_name == "vta greedy m"


def test_jobs_under_an_outer_run_are_its_children(
    launch: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = client(launch)
    outer = outside.create_run(outside.create_experiment("theirs")).info.run_id
    monkeypatch.setenv("MLFLOW_RUN_ID", outer)
    with started(launch, parent_key=str(tmp_path / "sweep")) as tracker:
        pass
    run = outside.get_run(tracker.run_id)
    assert run.data.tags["mlflow.parentRunId"] == outer and run.info.status == "FINISHED"
    assert outside.get_run(outer).info.status == "RUNNING" and tracker.experiment == "theirs"


# ---------------------------------------------------------------- faults


def test_a_missing_outer_run_is_the_users_fault(launch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "0" * 32)
    with pytest.raises(ConfigError, match=r"tracking: .*not found"):
        started(launch)


def test_a_deleted_experiment_is_refused_with_the_remedy(launch: Path) -> None:
    outside = client(launch)
    outside.delete_experiment(outside.create_experiment("quantpipe"))
    with pytest.raises(ConfigError, match="mlflow experiments restore"):
        started(launch)


def test_failures_later_are_warnings(launch: Path, caplog: pytest.LogCaptureFixture) -> None:
    with started(launch) as tracker:
        tracker.log_model(launch / "absent.onnx")
        assert "logging the model failed" in caplog.text and "the run goes on" in caplog.text
        tracker.log_metrics({"a": 1.0})
        assert tracker.run_id is not None
        client(launch).delete_run(tracker.run_id)  # now every call fails
        for _ in range(5):
            tracker.log_metrics({"b": 1.0})
    assert caplog.text.count("logging metrics failed") == 2 and "nothing more is sent" in caplog.text
    client(launch).restore_run(tracker.run_id)
    assert client(launch).get_run(tracker.run_id).data.metrics == {"a": 1.0}


def test_a_store_that_is_locked_at_the_start_does_not_stop_the_run(
    launch: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE
    from mlflow.tracking import MlflowClient

    def locked(*_: Any, **__: Any) -> None:
        raise MlflowException("(sqlite3.OperationalError) database is locked", TEMPORARILY_UNAVAILABLE)

    monkeypatch.setattr(MlflowClient, "create_run", locked)
    with caplog.at_level(logging.WARNING), started(launch) as tracker:
        tracker.log_metrics({"a": 1.0})
        tracker.log_artifacts(tmp_path)
    assert tracker.run_id is None and caplog.text.count("MLflow") == 1 and "database is locked" in caplog.text


def test_the_store_itself_is_not_copied_into_the_run(launch: Path) -> None:
    (launch / "config.yaml").write_text("")
    with started(launch) as tracker:
        tracker.log_artifacts(launch)
    assert [f.path for f in client(launch).list_artifacts(tracker.run_id)] == ["config.yaml"]
