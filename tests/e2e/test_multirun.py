"""A sweep: one parent run in MLflow, a child for each job."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.program import QUICK, Program

mlflow = pytest.importorskip("mlflow")
SWEEP = ("-m", "hardware=ort_cpu,vta", "search=uniform,random", "search.max_evaluations=4", *QUICK)


def runs_of(folder: Path) -> tuple[Any, list[Any], Any]:
    """The parent, its children, and the client."""
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name == "quantpipe")
    runs = client.search_runs([experiment.experiment_id])
    parents = [r for r in runs if "mlflow.parentRunId" not in r.data.tags]
    assert len(parents) == 1
    children = [r for r in runs if r.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    assert len(children) == len(runs) - 1
    return parents[0], children, client


def test_one_parent_and_a_child_for_each_job(program: Program) -> None:
    result = program.bare(*SWEEP)
    assert result.code == 0, result.err
    parent, children, client = runs_of(program.cwd)
    assert parent.info.status == "FINISHED"
    assert {c.info.status for c in children} == {"FINISHED"}
    assert sorted((c.data.params["hardware"], c.data.params["search"]) for c in children) == [
        ("ort_cpu", "random"),
        ("ort_cpu", "uniform"),
        ("vta", "random"),
        ("vta", "uniform"),
    ]
    names = [{k for k in c.data.params if not k.startswith("bits.")} for c in children]
    assert all(n == names[0] for n in names)
    told = {f"{h} {s} max_evaluations=4 digits" for h in ("ort_cpu", "vta") for s in ("random", "uniform")}
    assert {c.info.run_name for c in children} == told
    best = client.get_run(parent.data.tags["quantpipe.best_run"])
    assert parent.data.metrics["realized/top1"] == best.data.metrics["realized/top1"]
    for child in children:
        assert {"realized/top1", "agreement/differing", "model/bops", "search/evaluations"} <= set(child.data.metrics)
        assert child.data.metrics["agreement/differing"] == 0
        assert {a.path for a in client.list_artifacts(child.info.run_id)} >= {"evaluate", "realize", "search"}
        steps = client.get_metric_history(child.info.run_id, "search/tried_value")
        assert len(steps) == child.data.metrics["search/evaluations"]
        best = client.get_metric_history(child.info.run_id, "search/best_value")
        values = [found.value for found in sorted(best, key=lambda found: found.step)]
        assert len(steps) == 1 or values == sorted(values)
    local = client.download_artifacts(children[0].info.run_id, "evaluate/report.json", str(program.cwd))
    assert json.loads(Path(local).read_text())["agreement"]["differing"] == 0
    assert len(list(program.cwd.glob("outputs/*/*/[0-3]/evaluate/report.json"))) == 4


@pytest.mark.slow
def test_a_job_that_cannot_run_is_told_and_the_others_are_kept(program: Program) -> None:
    result = program.bare("-m", "hardware=vta,ort_cpu", "schema=asymmetric", *QUICK)
    assert result.code == 2
    assert "Traceback" not in result.err
    assert "'asymmetric' cannot run on vta" in result.err
    assert len(list(program.cwd.glob("outputs/*/*/1/evaluate/report.json"))) == 1


LAUNCHERS = {
    "joblib": ("hydra.launcher.n_jobs=2",),
    "submitit_local": ("hydra.launcher.timeout_min=5",),
    "ray": ("+hydra.launcher.ray.init.num_cpus=2",),
}
PLUGIN = {"submitit_local": "hydra_submitit_launcher"}


@pytest.mark.parametrize(
    "launcher",
    [pytest.param(name, marks=pytest.mark.slow if name == "ray" else pytest.mark.program) for name in LAUNCHERS],
)
def test_jobs_in_processes_share_the_parent(launcher: str, program: Program) -> None:
    plugin = PLUGIN.get(launcher, f"hydra_{launcher}_launcher")
    try:
        importlib.import_module(f"hydra_plugins.{plugin}")
    except ImportError:
        assert os.environ.get("CI") != "true" or launcher == "ray", f"the launcher {launcher} is not installed"
        pytest.skip(f"the launcher {launcher} is not installed")
    result = program.bare("-m", "hardware=ort_cpu,vta", *QUICK, f"hydra/launcher={launcher}", *LAUNCHERS[launcher])
    assert result.code == 0, result.err
    parent, children, _ = runs_of(program.cwd)
    assert {parent.info.status, *(c.info.status for c in children)} == {"FINISHED"}
    assert len(children) == 2
    assert len(list(program.cwd.glob("outputs/*/*/[0-1]/evaluate/report.json"))) == 2
