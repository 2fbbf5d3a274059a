"""train=… through the whole program: stopped and resumed, replayed, verified, filed; and what it rejects."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from sklearn.datasets import load_digits

import quantpipe
from quantpipe.artifacts import read_npz
from quantpipe.errors import ConfigError
from tests.api.nets import QUICK, numbers_of, small_net
from tests.crash import KILLED
from tests.e2e.crashes import differences, essence
from tests.e2e.models import SCALED, autoencoder, npz
from tests.e2e.program import RUN, Program, Result, Zygote, environment, read
from tests.ops.line import Net

pytest.importorskip("torch")

BITS = ("objective.tolerance=9", "hardware=tensorrt", "hardware.weights.bits=4", "hardware.activations.bits=4")
SAMPLES = tuple(f"dataset.samples.{part}=32" for part in ("calibrate", "search", "evaluate"))
FEW = (*BITS, *SAMPLES, "dataset.samples.train=128", "evaluate.agreement_samples=4", "evaluate.layer_samples=4")
LSQ = (*FEW, "train=lsq", "train.epochs=6", "train.learning_rate=1e-3", "train.scale_rate=1e-2")


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    process = Zygote("torch")
    yield process
    process.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Result, list[str]]:
    """A run that was never stopped, and its calls."""
    result, calls = Program(tmp_path_factory.mktemp("whole"), zygote).crash(*LSQ)
    assert result.code == 0, result.err
    return result, calls


def row_of(result: Result) -> dict[str, Any]:
    row: dict[str, Any] = result.report["recover"][-1]
    return row


def learned(folder: Path) -> dict[str, Any]:
    return {name: value.tolist() for name, value in read_npz(folder / "recover" / "weights.npz").items()}


def test_the_report_holds_note_and_curve(whole: tuple[Result, list[str]]) -> None:
    result, _ = whole
    row = row_of(result)
    assert row["step"] == "train" and row["kept"] and row["kl_after"] < row["kl_before"] / 2
    assert len(row["curve"]) == 6 and row["curve"][-1] < row["curve"][0]
    assert row["on"].startswith("10 of 10 weights, 11 of 11 ranges, 6 epochs, loss of the epochs ")
    assert result.report["agreement"]["differing"] == 0
    record = read(result.folder / "data.json")
    assert record["train"]["samples"] == 128 and record["calibrate"]["samples"] == 32
    first = record["train"]["indices"][0][0]
    assert first == record["calibrate"]["indices"][0][0]
    assert not (result.folder / "recover" / "partial").exists()


def test_killed_in_training_it_ends_at_the_same_numbers(program: Program, whole: tuple[Result, list[str]]) -> None:
    """Killed while a checkpoint is written, and before and behind the moment at which it takes its place."""
    result, calls = whole
    named = [n for n, call in enumerate(calls, start=1) if "/recover/partial/.train-" in call and "os.rename" in call]
    assert len(named) == 6
    for number in (named[0], named[2] - 1, named[3] + 1):
        folder = program.cwd / str(number)
        assert program.crash(*LSQ, folder=folder, kill_at=number)[0].code == KILLED
        assert not (folder / "recover" / "weights.npz").exists()
        again = program.run(*LSQ, folder=folder)
        assert again.code == 0, again.err
        assert row_of(again)["curve"] == row_of(result)["curve"]
        assert learned(folder) == learned(result.folder)
        assert not list(differences(essence(folder), essence(result.folder))), number


def test_two_processes_learn_the_same_bits(program: Program, whole: tuple[Result, list[str]]) -> None:
    """A started process and a forked one; another seed takes the samples in another order."""
    process = program.start(*LSQ)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert learned(program.cwd / "run") == learned(whole[0].folder)
    for name in ("plan.json", "model.onnx"):
        own, other = (folder / "realize" / name for folder in (program.cwd / "run", whole[0].folder))
        assert own.read_bytes() == other.read_bytes()
    assert learned(program.run(*LSQ, "seed=1", folder="other").folder) != learned(whole[0].folder)


def test_ctrl_c_in_training_prints_how_to_resume(program: Program) -> None:
    many = (*LSQ, "train.epochs=60")
    process = program.start(*many)
    partial = program.cwd / "run" / "recover" / "partial"
    deadline = time.monotonic() + 200
    while not list(partial.glob("train-*.npz")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    command = shlex.split(err.partition("Resume with: ")[2].strip())
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=program.cwd, env=environment({"PATH": path}), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    expected = program.run(*many, folder="uninterrupted")
    assert learned(program.cwd / "run") == learned(expected.folder)
    rows = [row_of(Result(0, "", "", folder)) for folder in (program.cwd / "run", expected.folder)]
    assert rows[0]["curve"] == rows[1]["curve"] and len(rows[0]["curve"]) == 60


def test_a_folder_holds_one_training(program: Program, whole: tuple[Result, list[str]]) -> None:
    """The same options take what is there; others are rejected, and nothing is changed."""
    first = program.run(*LSQ)
    weights = first.folder / "recover" / "weights.npz"
    times = weights.stat().st_mtime_ns
    assert program.run(*LSQ).code == 0
    for change in ("train.epochs=5", "dataset.samples.train=64"):
        assert "this folder holds the work of another run" in program.run(*LSQ, change).paragraph, change
    assert weights.stat().st_mtime_ns == times
    assert learned(first.folder) == learned(whole[0].folder)


def test_a_trained_strategy_is_replayed(program: Program, whole: tuple[Result, list[str]]) -> None:
    result, _ = whole
    again = program.run(*FEW, "command=replay", f"strategy={result.folder / 'search' / 'strategy.json'}")
    assert again.code == 0, again.err
    assert numbers_of(again.folder)["plan"] == numbers_of(result.folder)["plan"]
    models = [onnx.load(folder / "realize" / "model.onnx") for folder in (again.folder, result.folder)]
    assert models[0].graph == models[1].graph
    assert again.report["metrics"]["realized"] == result.report["metrics"]["realized"]
    assert again.report["agreement"]["differing"] == 0


def test_a_trained_model_is_verified(whole: tuple[Result, list[str]]) -> None:
    verdict = quantpipe.verify(whole[0].folder)
    assert verdict.wrong is None and verdict.kernels > 10


def test_mlflow_holds_the_options(program: Program) -> None:
    mlflow = pytest.importorskip("mlflow")
    store = f"sqlite:///{program.cwd / 'mlflow.db'}"
    done = program.run(*LSQ, "train.epochs=1", "tracking=mlflow", f"tracking.uri={store}")
    assert done.code == 0, done.err
    client = mlflow.MlflowClient(tracking_uri=store)
    (experiment,) = (e for e in client.search_experiments() if e.name == "quantpipe")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["train"] == "lsq" and run.data.params["train.epochs"] == "1"
    assert "recover" in {e.path for e in client.list_artifacts(run.info.run_id)}


@pytest.mark.parametrize("option", ["ste", "pact", "dorefa", "dsq", "qil", "adaround"])
def test_every_option_runs(program: Program, option: str) -> None:
    done = program.run(*FEW, f"train={option}", "train.epochs=1")
    assert done.code == 0, done.err
    row = row_of(done)
    assert row["step"] == "train" and row["curve"] and "reason" not in row
    assert done.report["agreement"]["differing"] == 0


def test_labels_decide_about_a_training_by_labels() -> None:
    """Labels that name every third class the next one: what they teach is far from the float model, and kept."""
    bunch = load_digits()
    images, labels = (bunch.images[:, None] / 16).astype(np.float32), bunch.target
    taught = np.where(labels % 3 == 0, (labels + 1) % 10, labels)
    found = quantpipe.quantize(
        quantpipe.example_model(),
        (images, taught),
        {"option": "tensorrt", "name": "narrow", "weights": {"bits": 4}},
        dataset={"samples": {"calibrate": 64, "search": 128, "evaluate": 256, "train": 400}},
        train={"option": "lsq", "loss": "labels", "epochs": 4, "learning_rate": 3e-3},
        objective={"tolerance": 99.0},
        evaluate=QUICK,
    )
    row = found.report["recover"][-1]
    assert row["step"] == "train" and row["kept"] and row["kl_after"] > row["kl_before"]
    assert "judged with labels: " in row["on"]
    metrics = found.report["metrics"]
    assert metrics["realized"]["top1"] > metrics["float"]["top1"] + 0.1


@pytest.mark.parametrize("fold", [-1, 1, 2, 3, 4])
def test_every_fold_runs(program: Program, fold: int) -> None:
    done = program.run(*FEW, "train=lsq", "train.epochs=1", f"train.fold={fold}")
    assert done.code == 0, done.err
    assert row_of(done)["on"].startswith("10 of 10 weights, 9 with their BatchNormalization, 11 of 11 ranges")
    assert done.report["agreement"]["differing"] == 0


# --- what is rejected before the first stage --------------------------------------------------------------------------


def no_stage(folder: Path) -> bool:
    """Whether no stage has written anything."""
    return not [p for p in folder.glob("*/*") if p.parent.name in ("annotate", "calibrate", "search", "recover")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train=lsk"], "train: has no option 'lsk' (did you mean 'lsq'"),
        (["train=null"], "train: is 'null'; legal is the name of an option"),
        (["train=lsq", "train.epoch=3"], "train.epoch: is no key (did you mean 'train.epochs'"),
        (["train.weights=lsk"], "train.weights: is 'lsk' (did you mean 'lsq'?); legal are none, ste, lsq"),
        (["train.weights=pact"], "train.weights: is 'pact'"),
        (["train.activations=qil"], "train.activations: is 'qil'"),
        (["train.fold=5"], "train.fold: is 5; legal are -1, 0, 1, 2, 3, 4"),
        (["train.fold=true"], "train.fold: is True"),
        (["train=lsq", "train.asynchronous=0"], "train.asynchronous: is 0; legal is an integer of at least 1"),
        (["train=lsq", "train.asynchronous=2"], "train.asynchronous: is 2, and train.fold=0 uses no statistics"),
        (["train.loss=kl"], "train.loss: is 'kl'; legal are outputs, labels, both"),
        (["train.scope=layers"], "train.scope: is 'layers'; legal are network, blocks"),
        (["train=adaround", "train.loss=labels"], "train.loss: is labels, and a block has no labels"),
        (["train=adaround", "train.fold=1"], "train.fold: is 1, and train.weights=adaround learns the rounding"),
        (["train=lsq", "train.scope=blocks", "train.fold=4"], "train.fold: is 4, and blocks train the folded"),
        (["train.activations=lsq", "train.fold=4"], "train.fold: is 4, and train.weights=none learns no weights"),
        (["train.epochs=-1"], "train.epochs: is -1; legal is an integer of at least 0"),
        (["train.epochs=1.5"], "train.epochs"),
        (["train.epochs=many"], "train.epochs"),
        (["train.batch=0"], "train.batch: is 0; legal is an integer of at least 1"),
        (["train.optimizer=adamw"], "train.optimizer: is 'adamw' (did you mean 'adam'?)"),
        (["train.learning_rate=-1"], "train.learning_rate: is -1"),
        (
            ["train.learning_rate=1e38"],
            "train.learning_rate: is 1e+38; legal is a number of at least 0 and at most 1e+06",
        ),
        (["train.scale_rate=nan"], "train.scale_rate: is nan"),
        (["train.warmup=0.6"], "train.warmup: is 0.6; legal is a number of at least 0 and at most 0.5, or null"),
        (["train.warmup=-0.1"], "train.warmup: is -0.1"),
        (["train.warmup=nan"], "train.warmup: is nan"),
        (["train.warmup=true"], "train.warmup: is True"),
        (["train.warmup=long"], "train.warmup: is 'long'"),
        (["train.weight_decay=inf"], "train.weight_decay: is inf"),
        (["train.range_decay=-0.1"], "train.range_decay: is -0.1"),
        (["train.drop=1"], "train.drop: is 1"),
        (["train.weight_size=small"], "train.weight_size: is 'small'; legal are kept, unit"),
        (["train.threads=0"], "train.threads: is 0; legal is an integer of at least 1"),
        (["train.device=gpu"], "train.device: is 'gpu' (did you mean 'cpu'?); legal are cpu, cuda"),
        (["train=lsq", "train.fold=-1", "hardware=vta"], "train.fold: is -1, which needs symmetric weights"),
        (["train=lsq", "train.fold=-1", "hardware=fbgemm"], "train.fold: is -1, which needs symmetric weights"),
        (["train=lsq", "train.fold=2", "model=digits_vit"], "train.fold: is 2, and no BatchNormalization follows"),
        (["dataset.samples.train=0"], "dataset.samples.train"),
        (["dataset.samples.training=8"], "dataset.samples.training"),
        (["recover=default", "recover.steps=[train]"], "recover.steps: has 'train'"),
    ],
)
def test_options(program: Program, arguments: list[str], said: str) -> None:
    done = program.run(*arguments)
    assert said in done.paragraph
    assert no_stage(done.folder)


def test_cuda_where_there_is_none(program: Program) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    done = program.run("train=lsq", "train.device=cuda")
    assert "train.device: is cuda, and torch finds no such device; legal here is cpu" in done.paragraph
    assert no_stage(done.folder)


def test_labels_that_are_not_there(program: Program) -> None:
    data = npz(program.cwd / "d.npz", labels=None)
    for loss in ("labels", "both"):
        done = program.run(*SCALED, data, "train=lsq", f"train.loss={loss}", folder=loss)
        assert f"train.loss: is {loss}, and the samples have no labels" in done.paragraph
        assert no_stage(done.folder)


def test_samples_that_judge_are_not_trained_on(program: Program) -> None:
    npz(program.cwd / "a.npz")
    npz(program.cwd / "b.npz", images=npz_images(program.cwd / "a.npz")[::-1].copy())
    paths = ("dataset.calibrate.path=a.npz", "dataset.evaluate.path=b.npz", "dataset.train.path=b.npz")
    done = program.run(*SCALED, *paths, "train=lsq")
    assert "dataset.evaluate.path and dataset.train.path share samples" in done.paragraph
    assert no_stage(done.folder)


def npz_images(path: Path) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.load(path)["images"]
    return found


def determinant() -> onnx.ModelProto:
    net = Net(1)
    x = net.input(None, 3, 3)
    net.output(net.dense(net.node("Flatten", x), 9, 4), net.node("Det", x, name="determinant"))
    return net.proto()


def loop() -> onnx.ModelProto:
    """The small net behind a loop that doubles its input three times."""
    model = small_net()
    helper = onnx.helper
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [helper.make_node("Add", ["v", "v"], ["w"]), helper.make_node("Identity", ["c"], ["d"])],
        "body",
        [value("i", 7, []), value("c", 9, []), value("v", 1, None)],
        [value("d", 9, []), value("w", 1, None)],
    )
    for node in model.graph.node:
        node.input[:] = ["looped" if name == "x" else name for name in node.input]
    model.graph.node.insert(0, helper.make_node("Loop", ["times", "go", "x"], ["looped"], name="looping", body=body))
    for name, array in (("times", np.int64(3)), ("go", np.bool_(True))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    return model


@pytest.mark.parametrize(
    ("build", "shape", "node"), [(determinant, (3, 3), "determinant"), (loop, (3, 8, 8), "looping")]
)
def test_nodes_without_gradients(
    build: Callable[[], onnx.ModelProto], shape: tuple[int, ...], node: str, tmp_path: Path
) -> None:
    data = np.random.default_rng(0).standard_normal((64, *shape)).astype(np.float32)
    with pytest.raises(ConfigError, match=rf"train=lsq: cannot train this model: node {node} .*; legal is train=none"):
        quantpipe.quantize(build(), data, "ort_cpu", folder=tmp_path, train="lsq", evaluate=QUICK, executor="serial")
    assert no_stage(tmp_path)


def test_outputs_that_are_integers(tmp_path: Path) -> None:
    net = Net(1)
    logits = net.dense(net.input(None, 9), 9, 4)
    net.output(net.node("ArgMax", logits, axis=1, keepdims=0))
    data = np.random.default_rng(0).standard_normal((64, 9)).astype(np.float32)
    with pytest.raises(ConfigError, match=r"train\.loss: is outputs, and the compared outputs are integers"):
        quantpipe.quantize(net.proto(), data, "ort_cpu", folder=tmp_path, train="lsq", evaluate=QUICK)
    assert no_stage(tmp_path)


ABSENT = {
    "absent": "raise ModuleNotFoundError(\"No module named 'torch'\")",
    "broken": 'raise OSError("libtorch_cpu.so: cannot open shared object file")',
}


@pytest.mark.parametrize("how", ABSENT)
def test_without_torch(program: Program, how: str) -> None:
    """One paragraph that says how to install it; and nothing else needs it."""
    stub = program.cwd / "stub"
    stub.mkdir()
    (stub / "torch.py").write_text(ABSENT[how])
    program.env["PYTHONPATH"] = os.pathsep.join((str(stub), str(RUN.parent)))
    process = program.start(*FEW, "train=lsq")
    out, err = process.communicate(timeout=200)
    result = Result(process.returncode, out, err, program.cwd / "run")
    assert "train=lsq: needs PyTorch, which cannot be imported" in result.paragraph
    assert "quantpipe-onnx[train]" in result.paragraph and no_stage(result.folder)
    process = program.start("stages=[annotate]", "train=none", folder="plain")
    _, err = process.communicate(timeout=200)
    assert process.returncode == 0, err


def test_a_model_without_classes_is_trained(program: Program) -> None:
    data = np.random.default_rng(0).standard_normal((200, 16)).astype(np.float32)
    np.savez(program.cwd / "d.npz", images=data)
    model = autoencoder(program.cwd / "m.onnx")
    done = program.run(model, "dataset=npz", "dataset.path=d.npz", *BITS, "train=lsq", "train.epochs=3")
    assert done.code == 0, done.err
    assert len(row_of(done)["curve"]) == 3 and done.report["agreement"]["differing"] == 0
