"""Models whose weights stay in their files, as a user runs them; and how much memory models take that are many times
as large as their largest layer."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from tests.e2e.program import NO_TRACKING, RUN, Program, environment, read
from tests.graph.outside_nets import dense_net, saved

LAYERS = 12


def features(path: Path, count: int, width: int) -> str:
    """Random rows as a file; gives dataset.path=…"""
    np.save(path, np.random.default_rng(5).standard_normal((count, width), dtype=np.float32))
    return f"dataset.path={path}"


def test_a_run_with_the_weights_left_in_their_file(program: Program) -> None:
    program.env["TMPDIR"] = str(program.cwd)  # forked runs end without clean-up
    path = saved(dense_net(), program.cwd / "model")
    data = features(program.cwd / "x.npy", 64, 64)
    arguments = (f"model.path={path}", "model.resident_mb=0", "dataset=npz", data, "threshold.weights.method=max_range")
    first = program.run(*arguments)
    assert first.code == 0, first.err
    report = first.report
    assert report["agreement"]["differing"] == 0 and report["agreement"]["elements"] > 1000
    assert not report["latency"] and "stay in their files" in first.err
    size = path.with_name("net.data").stat().st_size
    assert report["model"]["float_bytes"] == pytest.approx(size, rel=0.02)
    realized = first.folder / "realize" / "model.onnx"
    (weights,) = realized.parent.glob("*.data")
    assert report["model"]["realized_bytes"] == pytest.approx(
        realized.stat().st_size + weights.stat().st_size, rel=0.05
    )
    session = ort.InferenceSession(str(realized), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.zeros((2, 64), np.float32)})[0].shape == (2, 96)
    written = weights.stat().st_mtime_ns
    assert program.run(*arguments).code == 0 and weights.stat().st_mtime_ns == written  # the stage was skipped
    weights.unlink()
    assert program.run(*arguments).code == 0 and weights.is_file()  # and is made anew where a file is missing
    path.with_name("net.data").unlink()
    assert "net.data: there is no such file" in program.run(*arguments, folder="other").paragraph


def test_recovery_with_the_weights_left_in_their_file(program: Program) -> None:
    """The recovered integers are those of the model in memory, up to what sums in another order round otherwise; they
    go to files of their own, are taken from the run folder the next time, and are replayed from there."""
    program.env["TMPDIR"] = str(program.cwd)  # forked runs end without clean-up
    path = saved(dense_net(), program.cwd / "model")
    data = features(program.cwd / "x.npy", 96, 64)
    arguments = (f"model.path={path}", "dataset=npz", data, "hardware=int4_weights", "recover=default")
    inside = program.run(*arguments, folder="inside")
    outside = program.run(*arguments, "model.resident_mb=0", folder="outside")
    for run in (inside, outside):
        assert run.code == 0, run.err
        assert run.report["agreement"]["differing"] == 0
        assert next(row for row in run.report["recover"] if row["step"] == "gptq_compensated")["kept"]
    first, second = (dict(np.load(run.folder / "recover" / "weights.npz")) for run in (inside, outside))
    weights = [name for name in first if name.startswith("weight/")]
    assert len(weights) == 5 and first.keys() == second.keys()
    assert np.mean([np.mean(first[name] == second[name]) for name in weights]) > 0.999
    made = (outside.folder / "realize" / "model.onnx").read_bytes()
    shutil.rmtree(outside.folder / "realize")
    again = program.run(*arguments, "model.resident_mb=0", folder="outside")
    assert again.code == 0 and (outside.folder / "realize" / "model.onnx").read_bytes() == made
    strategy = outside.folder / "search" / "strategy.json"
    replay = program.run(*arguments, "model.resident_mb=0", "command=replay", f"strategy={strategy}", folder="replay")
    assert replay.code == 0, replay.err
    assert replay.report["metrics"]["realized"] == outside.report["metrics"]["realized"]


@pytest.mark.parametrize("value,wanted", [("-1", "legal is 0 and above"), ("all", "legal is an integer")])
def test_resident_mb_is_checked(program: Program, value: str, wanted: str) -> None:
    paragraph = program.run(f"model.resident_mb={value}").paragraph
    assert "model.resident_mb" in paragraph and wanted in paragraph


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="memory by kind is measured through Linux's /proc")
@pytest.mark.parametrize(
    ("width", "most"),
    [
        pytest.param(4096, 500 << 20, id="768MiB"),
        pytest.param(8192, 900 << 20, id="3GiB", marks=pytest.mark.slow),
    ],
)
def test_a_large_model_takes_the_memory_of_one_layer(width: int, most: int, tmp_path: Path) -> None:
    """Calibrate, search, realize and evaluate; bounded is anonymous memory, which only swap could take back.

    Pages of mapped files count as resident, too, but the operating system drops them when it needs room. Measured: 212
    and 400 MiB, of which 200 to 290 with any model; one layer's weights are 64 and 256 MiB. (With all layers' weights
    made real at once it was 893 and 3200 MiB.)
    """
    size = LAYERS * width * width * 4
    needed = 3 * size  # the model, its integers in temporary files, the realized model, and some room
    if (free := shutil.disk_usage(tmp_path).free) < needed:
        pytest.skip(f"{tmp_path} has {free >> 20} MiB free, the test writes files of {needed >> 20} MiB")
    try:
        model = wide_model(tmp_path, width)
        assert (tmp_path / "wide.data").stat().st_size == size
        folder = tmp_path / "run"
        arguments = [
            NO_TRACKING, f"model.path={model}", "dataset=npz", features(tmp_path / "x.npy", 24, width),
            "threshold=max_range", "threshold.weights.method=max_range", "model.resident_mb=64",
            f"hydra.run.dir={folder}",
        ]  # fmt: skip
        code, peak, text = watched([sys.executable, str(RUN), *arguments], tmp_path)
        assert code == 0, text
        assert peak["RssAnon"] < most, peak
        assert peak["RssFile"] > size, peak  # the weights were used, where they lie
        report = read(folder / "evaluate" / "report.json")
        assert report["agreement"]["differing"] == 0 and report["agreement"]["elements"] > 12 * width * LAYERS
        assert report["model"]["integer_nodes"] == 2 * LAYERS and report["model"]["float_nodes"] == 0
        assert report["metrics"]["realized"]["sqnr_db"] > 20
        (weights,) = (folder / "realize").glob("*.data")
        assert weights.stat().st_size == size // 4
        assert not list(tmp_path.glob("quantpipe-*"))  # nothing is left of the temporary files
    finally:
        shutil.rmtree(tmp_path, ignore_errors=True)  # pytest would keep it for three sessions


def wide_model(folder: Path, width: int) -> Path:
    """`LAYERS` dense layers with Relu, random weights, written one layer at a time."""
    rng = np.random.default_rng(0)
    nodes, tensors, x = [], [], "x"
    with (folder / "wide.data").open("wb") as file:
        for number in range(LAYERS):
            weight = rng.random((width, width), dtype=np.float32)
            weight -= np.float32(0.5)
            weight *= np.float32(np.sqrt(24 / width))  # variance 2 / width: Relu keeps the scale of its input
            tensor = TensorProto(name=f"w{number}", data_type=TensorProto.FLOAT, dims=weight.shape)
            tensor.data_location = TensorProto.EXTERNAL
            for key, value in (("location", "wide.data"), ("offset", file.tell()), ("length", weight.nbytes)):
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            file.write(weight.data)
            nodes.append(helper.make_node("MatMul", [x, f"w{number}"], [f"sum{number}"], name=f"dense{number}"))
            nodes.append(helper.make_node("Relu", [f"sum{number}"], [f"relu{number}"], name=f"relu{number}"))
            x = f"relu{number}"
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", width]) for name in ("x", x)]
    graph = helper.make_graph(nodes, "wide", ports[:1], ports[1:], tensors)
    path = folder / "wide.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(path))
    return path


def watched(command: list[str], folder: Path) -> tuple[int, Counter[str], str]:
    """(exit code, the highest RssAnon and RssFile seen in bytes, what it wrote), looked at every 5 ms."""
    peak: Counter[str] = Counter()
    with (folder / "output").open("w") as output:
        process = subprocess.Popen(
            command, cwd=folder, env=environment({"TMPDIR": str(folder)}), stdout=output, stderr=output
        )
        status = Path(f"/proc/{process.pid}/status")
        while process.poll() is None:
            for line in status.read_text().splitlines() if status.is_file() else ():
                key, _, value = line.partition(":")
                if key in ("RssAnon", "RssFile"):
                    peak[key] = max(peak[key], int(value.split()[0]) << 10)
            time.sleep(0.005)
    return process.returncode, peak, (folder / "output").read_text()
