"""Calibration as a user meets it: the cache between runs, extremes only, channels, bad values, a killed process."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from quantpipe.artifacts import read_npz
from tests.e2e.models import SCALED, npz, save
from tests.e2e.program import Program, Result

ONLY = "stages=[annotate,calibrate]"


def line(result: Result) -> str:
    """What the console said of the calibrate stage."""
    assert result.code == 0, result.err
    (found,) = [text for text in result.err.splitlines() if "  calibrate " in text]
    return found


def stats(folder: Path) -> dict[str, object]:
    arrays = read_npz(folder / "calibrate" / "stats.npz")
    return {k: v.tolist() for k, v in arrays.items() if not k.endswith("seconds") and k != "peak_rss_mb"}


@pytest.fixture
def cached(program: Program) -> Program:
    program.env["QUANTPIPE_CACHE"] = str(program.cwd / "cache")
    return program


def test_a_second_run_takes_statistics_from_the_cache(cached: Program) -> None:
    data = (*SCALED, npz(cached.cwd / "d.npz"))
    first = cached.run(ONLY, *data, "threshold=max_range", folder="a")
    assert "from" not in line(first)
    other_threshold = cached.run(ONLY, *data, "threshold=mse", folder="b")
    assert "from the cache" in line(other_threshold)
    assert stats(cached.cwd / "a") == stats(cached.cwd / "b")
    # Other hardware measures other tensors: what is there is used, and the rest added.
    other_hardware = line(cached.run(ONLY, *data, "hardware=vta", folder="c"))
    assert "from the cache" in other_hardware or "tensors known from earlier runs" in other_hardware
    assert "from the cache" in line(cached.run(ONLY, *data, "hardware=vta", folder="d"))
    changed = cached.run(ONLY, data[0], data[2], "dataset.preprocess.scale=1/15", folder="e")
    assert "from" not in line(changed)
    assert "from" not in line(cached.run(ONLY, *data, "calibrate.cache=null", folder="f"))
    assert stats(cached.cwd / "f") == stats(cached.cwd / "a")
    assert len(list((cached.cwd / "cache" / "statistics").iterdir())) == 2


def test_extremes_only_serve_what_needs_no_more(cached: Program) -> None:
    extremes = "calibrate.statistics=extremes"
    data = (*SCALED, npz(cached.cwd / "d.npz"))
    refused = cached.run(*data, extremes, "threshold=mse", folder="no").paragraph
    assert "calibrate.statistics: is extremes, and threshold=mse reads histograms" in refused
    first = cached.run(*data, extremes, "threshold=max_range", folder="a")
    assert "from" not in line(first)
    assert first.report["agreement"]["differing"] == 0
    again = line(cached.run(ONLY, *data, "threshold=mse", folder="b"))
    assert "measured again: an earlier run kept only extremes" in again
    assert "from the cache" in line(cached.run(ONLY, *data, extremes, "threshold=max_range", folder="c"))
    full = cached.run(*data, "threshold=max_range", folder="d")
    assert "from the cache" in line(full)
    assert full.strategy == first.strategy, "the graph's own reductions find the same extremes"


def test_channels_on_request(cached: Program) -> None:
    data = (*SCALED, npz(cached.cwd / "d.npz"))
    assert "from" not in line(cached.run(ONLY, *data, folder="a"))
    assert "tensors known" in line(cached.run(ONLY, *data, "calibrate.per_channel=['stem*']", folder="b"))
    arrays = read_npz(cached.cwd / "b" / "calibrate" / "stats.npz")
    with_channels = {str(n) for n, c in zip(arrays["names"], arrays["channel_counts"], strict=True) if c}
    assert with_channels == {"stem.out"}
    wrong = cached.run(ONLY, *data, "calibrate.per_channel=[nix*]", folder="c").paragraph
    assert "calibrate.per_channel: 'nix*' matches none of" in wrong


def wide_model(path: Path) -> str:
    """Tensors of 4 MiB a sample: with 16 MiB of memory each of them is a pass of its own, or nearly."""
    rng = np.random.default_rng(0)
    nodes, weights, before = [], [], "x"
    for i in range(4):
        kernel = 0.4 * rng.standard_normal((8 if i < 3 else 2, 1 if i == 0 else 8, 3, 3))
        weights.append(numpy_helper.from_array(kernel.astype(np.float32), f"w{i}"))
        nodes.append(helper.make_node("Conv", [before, f"w{i}"], [f"c{i}"], name=f"conv{i}", pads=[1, 1, 1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        before = f"r{i}"
    nodes += [
        helper.make_node("GlobalAveragePool", [before], ["pooled"], name="pool"),
        helper.make_node("Flatten", ["pooled"], ["y"], name="flat"),
    ]
    graph = helper.make_graph(
        nodes,
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 1, 512, 512])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        weights,
    )
    return save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


@pytest.mark.parametrize("what", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_killed_calibration_goes_on_where_it_was(program: Program, what: signal.Signals) -> None:
    images = np.random.default_rng(0).standard_normal((12, 1, 512, 512)).astype(np.float32)
    np.savez(program.cwd / "wide.npz", images=images)
    arguments = (
        ONLY,
        wide_model(program.cwd / "wide.onnx"),
        "dataset=npz",
        f"dataset.path={program.cwd / 'wide.npz'}",
        "dataset.split.calibrate=0.5",
        "dataset.split.search=0.25",
        "dataset.split.evaluate=0.25",
        "calibrate.memory_mb=16",
        "dataset.force_few=true",
    )
    partial = program.cwd / "run" / "calibrate" / "partial.npz"
    process = program.start(*arguments)
    deadline = time.monotonic() + 120
    while not partial.is_file():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(what)
    _, err = process.communicate(timeout=120)
    assert process.returncode == (-signal.SIGKILL if what == signal.SIGKILL else 130), err
    assert partial.is_file() and not partial.with_name("stats.npz").exists()
    resumed = program.run(*arguments)
    assert "going on where an interrupted run was" in line(resumed)
    assert not partial.exists() and not list((program.cwd / "run").rglob("*quantpipe-tmp"))
    assert "going on" not in line(program.run(*arguments, folder="other"))
    assert stats(program.cwd / "run") == stats(program.cwd / "other")


@pytest.mark.parametrize("statistics", ["full", "extremes"])
def test_values_that_are_not_finite_are_named(program: Program, statistics: str) -> None:
    model = onnx.load(wide_model(program.cwd / "wide.onnx").partition("=")[2])
    model.graph.node.insert(1, helper.make_node("Log", ["c0"], ["log"], name="log"))
    model.graph.node[2].input[0] = "log"
    images = np.ones((12, 1, 512, 512), np.float32)
    np.savez(program.cwd / "wide.npz", images=-images)
    paragraph = program.run(
        save(model, program.cwd / "log.onnx"),
        "dataset=npz",
        f"dataset.path={program.cwd / 'wide.npz'}",
        "threshold=max_range",
        f"calibrate.statistics={statistics}",
        "dataset.duplicates=allow",
        "dataset.force_few=true",
        ONLY,
    ).paragraph
    assert "calibrate:" in paragraph and "not finite, first in calibration sample 0 of" in paragraph, paragraph
