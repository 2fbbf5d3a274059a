"""`python run.py` and nothing else: the newcomer's first command."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys

import numpy as np
import onnxruntime as ort
import pytest
import yaml

from quantpipe.artifacts import read_origin
from quantpipe.data import DigitsDataset
from quantpipe.types import TensorInfo
from tests.e2e.conftest import DefaultRun
from tests.e2e.program import ROOT, Program, read

LAYOUT = (
    "annotate/topology.json",
    "annotate/choices.json",
    "calibrate/profile.yaml",
    "calibrate/stats.npz",
    "search/trials.jsonl",
    "search/strategy.json",
    "realize/plan.json",
    "realize/certificate.json",
    "realize/model.onnx",
    "evaluate/report.json",
    "evaluate/report.html",
    "evaluate/figures.json",
    "evaluate/samples.npz",
    "config.yaml",
)
pytestmark = pytest.mark.smoke

KEYS = {
    "agreement": {"tensors", "elements", "differing", "behind_float", "max_lsb", "first_tensor"},
    "calibrate": {"seconds", "samples", "float_pass_seconds", "peak_rss_mb"},
    "search": {"algorithm", "evaluations", "seconds", "float_pass_seconds", "best_value", "space_size"},
    "model": {
        "float_bytes",
        "realized_bytes",
        "macs",
        "bops",
        "mean_weight_bits",
        "mean_activation_bits",
        "float_nodes",
        "integer_nodes",
    },
    "latency": {"float_ms", "realized_ms", "ratio"},
}


def test_it_ends_well_within_a_minute(default_run: DefaultRun) -> None:
    assert default_run.result.code == 0, default_run.result.err
    assert default_run.seconds < 60
    assert "Traceback" not in default_run.result.err


def test_the_run_folder_holds_every_file(default_run: DefaultRun) -> None:
    folder = default_run.result.folder
    assert [name for name in LAYOUT if not (folder / name).is_file()] == []
    assert not list(folder.rglob("*quantpipe-tmp"))


def test_every_artifact_carries_its_origin(default_run: DefaultRun) -> None:
    folder = default_run.result.folder
    model = default_run.result.report["run"]["model_hash"]
    for name in LAYOUT:
        if name.endswith("jsonl"):  # the log's first line says the same in its own way
            assert model in (folder / name).read_text().partition("\n")[0]
            continue
        origin = read_origin(folder / name)
        assert origin is not None, name
        assert origin.inputs["model"] == model, name


def test_one_value_from_pixel_to_logit_is_the_documented_one(default_run: DefaultRun) -> None:
    script, page = ROOT / "benchmarks" / "one_value.py", (ROOT / "docs" / "architecture.md").read_text()
    done = subprocess.run(
        [sys.executable, str(script), str(default_run.result.folder)], capture_output=True, text=True, check=True
    )
    hand, runtime = done.stdout.splitlines()
    total, product, stored, real = hand.removeprefix("by hand ").split()
    assert f"= **{total}**" in page and f"= {float(product):.4f} → **{stored}**" in page
    assert f"= {float(real):.4f} |" in page
    _, found, _, logit, *_, by_hand = runtime.split()
    assert found == stored and float(logit) == pytest.approx(float(by_hand), rel=1e-6)
    assert f"= **{float(logit):.4f}**, the logit" in page


def test_the_report_has_every_key_and_sane_values(default_run: DefaultRun) -> None:
    report, folder = default_run.result.report, default_run.result.folder
    for part in ("float", "simulated", "realized"):
        assert set(report["metrics"][part]) == {"top1", "kl", "sqnr_db", "cosine"}
    for part, keys in KEYS.items():
        assert keys <= set(report[part]), part
    top1 = {part: report["metrics"][part]["top1"] for part in report["metrics"]}
    assert top1["float"] >= 0.97
    assert top1["simulated"] == top1["realized"] >= top1["float"] - 0.01
    assert report["metrics"]["float"]["kl"] == 0
    assert 0 < report["metrics"]["realized"]["kl"] < 0.02
    assert (
        report["agreement"]["differing"] == report["agreement"]["behind_float"] == report["agreement"]["max_lsb"] == 0
    )
    assert report["agreement"]["elements"] > 100_000
    assert report["agreement"]["first_tensor"] is None
    assert report["calibrate"]["samples"] == 128
    assert (report["search"]["algorithm"], report["search"]["evaluations"]) == ("uniform", 1)
    assert report["search"]["space_size"] > 1.0, "other ranges cost this device nothing"
    assert report["search"]["device"]["left_out"]["options"] > 0, "fewer bits bring this device nothing"
    assert report["search"]["device"]["left_out"] == {"options": 4 * len(report["choices"]), "choices": 23}
    assert "points, cost cycles (objective.cost=auto: what ort_cpu pays)" in default_run.result.err
    assert report["model"]["mean_weight_bits"] == report["model"]["mean_activation_bits"] == 8
    assert (report["model"]["integer_nodes"], report["model"]["float_nodes"]) == (23, 0)
    files = {"float_bytes": ROOT / "quantpipe/assets/digits.onnx", "realized_bytes": folder / "realize/model.onnx"}
    assert {key: report["model"][key] for key in files} == {key: path.stat().st_size for key, path in files.items()}
    assert report["float_nodes"] == report["rescales"] == report["warnings"] == []
    assert report["host"] is None and "VNNI" not in default_run.result.err
    assert {"tensor", "sqnr_db", "rounding", "saturation", "overflow"} <= set(report["layers"][0])
    latency = report["latency"]
    assert latency["of"] == "device" and latency["processor"]
    numbers = {key: value for key, value in latency.items() if key not in ("of", "processor")}
    assert all(math.isfinite(v) and v > 0 for v in numbers.values())
    assert report["deployment"]["options"] == {} and "default_session" not in report["metrics"]
    assert report["run"]["samples"] == 607


def test_the_report_names_the_model_by_its_file(default_run: DefaultRun) -> None:
    run = default_run.result.report["run"]
    assert run["model"] == "digits.onnx"
    assert run["model_path"].endswith("/quantpipe/assets/digits.onnx")
    assert "digits.onnx · ort_cpu" in default_run.result.out
    assert "/digits.onnx ·" not in default_run.result.out


def test_the_realized_model_alone_gives_the_reported_accuracy(default_run: DefaultRun) -> None:
    path = default_run.result.folder / "realize" / "model.onnx"
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    port = session.get_inputs()[0]
    evaluate = DigitsDataset().splits([TensorInfo(port.name, (None, 1, 8, 8), "float32")], 10, 0).evaluate
    right = 0
    for batch in evaluate.batches(50):
        right += int(np.count_nonzero(session.run(None, batch.inputs)[0].argmax(axis=1) == batch.labels))
    assert right / len(evaluate) == default_run.result.report["metrics"]["realized"]["top1"]


def test_the_terminal_shows_the_result_and_where_it_is(default_run: DefaultRun) -> None:
    out = default_run.result.out
    for line in (
        "top-1 accuracy",
        "KL divergence",
        "size",
        "bits, weights / activations",
        "bit operations",
        "latency",
        "elements differ",
    ):
        assert line in out
    assert f"files   {default_run.result.folder}" in out
    assert f"mlflow ui --backend-store-uri sqlite:///{default_run.launch / 'mlflow.db'}\n" in out


def test_config_yaml_is_the_resolved_configuration(default_run: DefaultRun) -> None:
    config = yaml.safe_load((default_run.result.folder / "config.yaml").read_text())
    assert config["hardware"]["name"] == "ort_cpu"
    assert config["schema"]["name"] == "asymmetric"  # what `auto` came to
    assert config["realize"] == {"backend": "qdq"}
    assert config["search"]["algorithm"]["_target_"] == "quantpipe.search.algorithms.uniform.Uniform"
    assert config["seed"] == 0


def test_the_strategy_file_is_complete(default_run: DefaultRun) -> None:
    stored = read(default_run.result.folder / "search" / "strategy.json")
    strategy, results = stored["strategy"], stored["results"]
    assert stored["version"] == "1.0"
    assert set(strategy) == {"model_hash", "hardware", "schema", "structure", "topology", "bits", "thresholds"}
    assert set(strategy["topology"]) == {"node_conds", "edge_conds"}
    assert set(strategy["bits"].values()) == {8}
    assert results["quant_acc"] == default_run.result.report["metrics"]["realized"]["top1"]
    assert {"sim_acc", "float_acc", "cost"} <= set(results)


def test_mlflow_holds_the_run(default_run: DefaultRun) -> None:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{default_run.launch / 'mlflow.db'}")
    (experiment,) = (e for e in client.search_experiments() if e.name == "quantpipe")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id in default_run.result.out
    assert run.info.status == "FINISHED"
    assert run.data.params["hardware"] == "ort_cpu"
    assert run.data.metrics["realized/top1"] == default_run.result.report["metrics"]["realized"]["top1"]
    assert {e.path for e in client.list_artifacts(run.info.run_id)} >= {"annotate", "evaluate", "config.yaml"}


def test_what_is_proved_is_said_and_verified(default_run: DefaultRun, program: Program) -> None:
    """The table, the report and the page say it; the checker agrees, writes nothing, and finds a changed claim."""
    result = default_run.result
    proof, sentence = result.report["proof"], "proved for all inputs: 13 of 14 kernels; checked on 64 samples: 1 kernel"
    assert " ".join(result.out.split()).count(sentence) == 1
    assert sentence[1:] in (result.folder / "evaluate" / "report.html").read_text()
    assert (proof["kernels"], proof["proved"], proof["checked"], proof["float_nodes"]) == (14, 13, 1, 0)
    copy = program.cwd / "elsewhere"
    shutil.copytree(result.folder, copy)
    before = {p: p.stat().st_mtime_ns for p in copy.rglob("*")}
    verified = program.bare("command=verify", f"hydra.run.dir={copy}")
    assert verified.code == 0 and "13 of 14 kernels" in verified.out, verified.err
    assert {p: p.stat().st_mtime_ns for p in copy.rglob("*")} == before
    path = copy / "realize" / "certificate.json"
    path.write_text(path.read_text().replace('"proved": 13', '"proved": 14'))
    verified = program.bare("command=verify", f"hydra.run.dir={copy}")
    assert verified.code == 3 and verified.out.startswith("wrong: certificate.json: "), verified.out
    assert program.bare("command=verify", f"hydra.run.dir={program.cwd / 'nothing'}").code == 2
    assert not (program.cwd / "nothing").exists()
