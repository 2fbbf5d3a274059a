"""The memory of a run is estimated before calibration, and a machine that has less is reported with what to lower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import quantpipe
from quantpipe.evaluate import baseline
from quantpipe.graph.execute import concurrency
from quantpipe.pipeline import memory_estimate as module
from quantpipe.pipeline.memory_estimate import (
    BASE_MB,
    BETWEEN,
    SCORES,
    SOLVED,
    HeldSamples,
    MemoryEstimate,
    available_mb,
    memory_estimate,
)
from tests.api.nets import QUICK
from tests.effort.test_limits import samples, two_layers
from tests.explain.planted import run
from tests.ops.line import Net, hardware, line

QUIET = {**QUICK, "explain": "none"}


def dense(width: int) -> Any:
    net = Net(seed=1)
    x = net.input(None, 8)
    x = net.node("Relu", net.node("MatMul", x, net.floats(8, width)))
    net.output(net.node("MatMul", x, net.floats(width, 4)))
    return line(net, hardware("ort_cpu")).graph


def test_weights_and_tensors_count() -> None:
    small, large = dense(16), dense(1600)
    weights = [sum(graph.constant_tensor(n).nbytes for n in graph.constant_names()) for graph in (small, large)]
    for graph, held in zip((small, large), weights, strict=True):
        assert memory_estimate(graph).weights_mb == pytest.approx(4 * held / 2**20)
    assert memory_estimate(large).tensors_mb > 50 * memory_estimate(small).tensors_mb
    # Of one sample: the input, the first product and its Relu are alive together.
    assert module._alive(small) == 4 * (16 + 16)
    assert memory_estimate(large).peak_mb == pytest.approx(
        BASE_MB + memory_estimate(large).weights_mb + memory_estimate(large).tensors_mb
    )


def test_recovery_and_outputs_count() -> None:
    """By hand: 8 inputs and `width` outputs in the first product, `width` and 4 in the second."""
    graph, width = dense(1600), 1600
    running = memory_estimate(graph).tensors_mb
    found = memory_estimate(graph, HeldSamples(compared=64, fitted=32, memory_mb=1024))
    assert found.tensors_mb == running and found.weights_mb == memory_estimate(graph).weights_mb
    assert found.outputs_mb == pytest.approx(64 * 4 * SCORES / 2**20)
    alive = 4 * (width + width)
    solved = 8 * width * (SOLVED * width + 4)
    at_once = concurrency(2)[0] * graph.batch_size * alive
    assert found.recovery_mb == pytest.approx((BETWEEN * 32 * alive + 2 * at_once + solved) / 2**20)
    assert found.peak_mb == pytest.approx(BASE_MB + found.weights_mb + found.recovery_mb + found.outputs_mb)
    many = [memory_estimate(graph, HeldSamples(fitted=10**6, memory_mb=mb)).recovery_mb for mb in (1024, 2048)]
    assert many[1] - many[0] == pytest.approx(1024 / 4), "the rest goes to files"


def test_each_matrix_of_a_batch_of_weights_counts() -> None:
    """As the relative positions of a DeBERTa, which ended a run with a traceback."""
    net = Net(seed=1)
    heads, keys, places = 3, 8, 5
    x = net.input(None, heads, 2, keys)
    net.output(net.node("MatMul", x, net.floats(heads, keys, places)))
    graph = line(net, hardware("ort_cpu")).graph
    assert module._largest_layer(graph) == 8.0 * heads * keys * (SOLVED * keys + keys)
    vector = Net(seed=1)
    vector.output(vector.node("MatMul", vector.input(None, 2, keys), vector.floats(keys)))
    assert module._largest_layer(line(vector, hardware("ort_cpu")).graph) == 8.0 * keys * (SOLVED * keys + 1)


def test_weights_in_files_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_outside", lambda model: True)
    assert memory_estimate(dense(16)).weights_mb == 0.0


@pytest.mark.parametrize(
    ("estimate", "words"),
    [
        (MemoryEstimate(3000.0, 500.0), ("3,000 MB are for weights", "model.resident_mb", "executor=serial")),
        (MemoryEstimate(10.0, 200.0, 3500.0), ("3,500 MB are for recovery", "calibrate.memory_mb", "recover=none")),
        (MemoryEstimate(10.0, 200.0, 300.0, 3500.0), ("3,500 MB are for outputs of all samples",)),
        (MemoryEstimate(10.0, 3500.0), ("3,500 MB are for tensors of 32 samples", "calibrate.memory_mb")),
    ],
)
def test_what_to_lower_follows_from_the_largest_part(estimate: MemoryEstimate, words: tuple[str, ...]) -> None:
    said = estimate.warning(1000.0, 400.0, 32)
    assert said is not None and all(word in said for word in (*words, "1,000 MB available"))
    assert f"{estimate.peak_mb - 400.0:,.0f} MB more than now" in said
    assert estimate.warning(estimate.peak_mb - 400.0, 400.0, 32) is None
    assert estimate.warning(None, 0.0, 32) is None, "where the system does not tell, nothing is known"


def test_the_smaller_of_system_and_control_group_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(module, "CGROUP", tmp_path)
    assert available_mb() is None
    (tmp_path / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable:    4096 kB\n")
    assert available_mb() == 4.0
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "memory.current").write_text(f"{1 << 20}\n")
    assert available_mb() == 4.0
    (tmp_path / "memory.max").write_text(f"{3 << 20}\n")
    assert available_mb() == 2.0


def test_little_memory_is_reported_before_calibration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BASE_MB", 1e6)
    monkeypatch.setattr(module, "available_mb", lambda: 7.0)
    with pytest.warns(quantpipe.QuantpipeWarning, match="this machine has 7 MB available") as caught:
        found = run(samples(), tmp_path, model=two_layers(), evaluate=QUIET)
    place = [str(one.message) for one in caught]
    assert sum("MB available" in text for text in place) == 1
    log = (tmp_path / "main.log").read_text("utf-8") if (tmp_path / "main.log").is_file() else ""
    assert not log or log.index("7 MB available") < log.index("calibrate  ")
    assert found.report["effort"]["estimated_peak_mb"] > 1e6


@pytest.mark.filterwarnings("ignore::quantpipe.QuantpipeWarning")
def test_a_model_too_large_for_the_other_tool_is_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baseline, "MOST_BYTES", 1)
    monkeypatch.setattr("quantpipe.pipeline.finish.worth_comparing", lambda *args, **options: True)
    report = run(samples(), tmp_path, model=two_layers(), evaluate={**QUIET, "baseline": "auto"}).report
    assert any("whose tool copies the 0 MB of weights" in said for said in report["effort"]["left_out"])
    assert report.get("baseline") is None
