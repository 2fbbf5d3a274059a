"""A store that misses a run gets it later, from the folder; and what cannot begin leaves no run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.program import QUICK, RUN, Program, environment

mlflow = pytest.importorskip("mlflow")


def test_a_mistyped_path_is_answered_at_once_and_leaves_no_run(tmp_path: Path) -> None:
    """Before any library is loaded, so that no disk is slow enough to notice."""
    for given, said in (
        (["model.path=nowhere.onnx"], "error: model: "),
        (["dataset=npz", "dataset.path=nowhere.npz"], "error: data: "),
    ):
        code = (
            "import sys; sys.argv = ['run.py', *sys.argv[1:]]\n"
            "from quantpipe.app.start import main\n"
            "try: main()\n"
            "finally: sys.stderr.write(' '.join(m for m in ('numpy', 'onnx', 'hydra', 'mlflow') if m in sys.modules))"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, *given], cwd=tmp_path, env=environment({}), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 2 and done.stderr.startswith(said) and done.stderr.count("\n") == 1
        assert done.stderr.rstrip().endswith(("ONNX model", "(from dataset.path)."))
    assert not list(tmp_path.iterdir())


@pytest.mark.program
def test_a_store_gets_a_run_later(program: Program) -> None:
    first = program.run(folder="run")
    assert first.code == 0
    wrong = program.bare("command=sync", "runs=[run]", "tracking=none")
    assert wrong.code == 2 and "tracking" in wrong.paragraph
    result = program.bare("command=sync", "runs=[run]", "tracking.experiment=later")
    assert result.code == 0, result.err
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{program.cwd / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("later")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED" and run.info.run_id in result.out
    assert run.data.params["hardware"] == "ort_cpu" and run.data.metrics["agreement/differing"] == 0
    assert run.data.metrics["realized/top1"] == first.report["metrics"]["realized"]["top1"]
    assert len(run.outputs.model_outputs) == 1 and len(run.inputs.dataset_inputs) == 3
    again = program.bare("command=sync", "runs=[run]")  # the folder knows its run
    assert again.code == 0, again.err
    assert len(client.search_runs([experiment.experiment_id])) == 1


@pytest.mark.program
def test_bad_input_after_loading_leaves_no_run_either(program: Program) -> None:
    (program.cwd / "broken.onnx").write_bytes(b"no model")
    result = program.bare("model.path=broken.onnx", *QUICK)
    assert result.code == 2
    assert not (program.cwd / "mlflow.db").exists() or not mlflow.MlflowClient(
        tracking_uri=f"sqlite:///{program.cwd / 'mlflow.db'}"
    ).search_experiments(filter_string="name = 'quantpipe'")


@pytest.mark.program
def test_the_checkout_is_a_project_of_mlflow(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    command = [sys.executable, "-m", "mlflow", "run", str(RUN.parent), "--env-manager", "local"]
    given = f"seed=3 evaluate.latency_runs=1 hydra.run.dir={tmp_path / 'run'} annotate.threshold_steps=[0]"
    words = ["-P", "hardware=vta", "-P", f"overrides={given}"]
    env = environment({}) | {"MLFLOW_TRACKING_URI": store, "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    done = subprocess.run([*command, *words], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    client = mlflow.MlflowClient(tracking_uri=store)
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    assert run.info.status == "FINISHED"
    assert (run.data.params["hardware"], run.data.params["seed"]) == ("vta", "3")
    assert run.data.metrics["agreement/differing"] == 0
