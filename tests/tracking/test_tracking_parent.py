"""The jobs of a sweep are children of one parent run, which ends FINISHED."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quantpipe.tracking import MlflowTracker, finish_sweep
from quantpipe.tracking.setup import make_client


def client(launch: Path) -> Any:
    return make_client(f"sqlite:///{launch}/mlflow.db")


def job(launch: Path, sweep: Path, number: int) -> MlflowTracker:
    tracker = MlflowTracker(launch_folder=launch, parent_key=str(sweep))
    tracker.start(f"job {number}", {"number": number}, {})
    return tracker


def parent_of(launch: Path, tracker: MlflowTracker) -> Any:
    return client(launch).get_run(client(launch).get_run(tracker.run_id).data.tags["mlflow.parentRunId"])


@pytest.mark.program
def test_one_parent_for_all_jobs(launch: Path, tmp_path: Path) -> None:
    sweep = tmp_path / "multirun" / "2026-01-01" / "12-00-00"
    with job(launch, sweep, 0) as first:
        assert parent_of(launch, first).info.status == "RUNNING"
    assert parent_of(launch, first).info.status == "FINISHED"
    with job(launch, sweep, 1) as second:
        parent = parent_of(launch, second)
        assert parent.info.status == "RUNNING" and parent.info.run_id == parent_of(launch, first).info.run_id
        assert parent.info.run_name == "2026-01-01/12-00-00" and parent.info.experiment_id == "1"
    assert parent_of(launch, second).info.status == "FINISHED"
    record = json.loads((sweep / ".mlflow_parent.json").read_text())
    assert record["run_id"] == parent.info.run_id


def test_the_parent_ends_finished_though_a_job_fails_or_dies(launch: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), job(launch, tmp_path / "sweep", 0) as failed:
        raise RuntimeError
    assert client(launch).get_run(failed.run_id).info.status == "FAILED"
    assert parent_of(launch, failed).info.status == "FINISHED"
    dead = job(launch, tmp_path / "sweep", 1)  # never ends
    assert parent_of(launch, dead).info.status == "RUNNING"
    finish_sweep(tmp_path / "sweep", None, launch)
    assert parent_of(launch, dead).info.status == "FINISHED"


def test_the_parent_has_the_results_of_the_best_job(launch: Path, tmp_path: Path) -> None:
    for number in (0, 1):
        with job(launch, tmp_path / "sweep", number) as last:
            last.log_metrics({"realized/top1": 0.5 + 0.1 * number})
            last.log_trials([(0, {"search/tried_value": 3.0})])
    finish_sweep(tmp_path / "sweep", None, launch, best=last.run_id)
    assert parent_of(launch, last).data.metrics == {"realized/top1": 0.6}


@pytest.mark.parametrize("record", ["", "{", "[]", '{"run_id": "0", "uri": "sqlite:////nowhere.db"}', "deleted"])
def test_a_stale_record_is_replaced(launch: Path, tmp_path: Path, record: str) -> None:
    stale = json.dumps({"run_id": "f" * 32, "uri": f"sqlite:///{launch}/mlflow.db"}) if record == "deleted" else record
    (tmp_path / ".mlflow_parent.json").write_text(stale)
    with job(launch, tmp_path, 0) as tracker:
        assert parent_of(launch, tracker).info.status == "RUNNING"


def test_finishing_what_is_not_there_is_harmless(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    finish_sweep(tmp_path, None, tmp_path)
    assert not caplog.records and not list(tmp_path.iterdir())
    (tmp_path / ".mlflow_parent.json").write_text('{"run_id": "x", "uri": "nonsense://y"}')
    finish_sweep(tmp_path, "sqlite:///other.db", tmp_path)
    assert not caplog.records
    finish_sweep(tmp_path, "nonsense://y", tmp_path)
    assert "could not be closed" in caplog.text
