"""Recurrent layers in integers: SQNR, size and latency beside onnxruntime's float and dynamically quantized kernels.

Networks with drawn weights (PyTorch's own initial range, widened so that gates leave their middle) on frames that
change slowly, as features of speech do. Samples for calibration and evaluation are different sequences.

    python benchmarks/recurrent.py > benchmarks/results/recurrent.md
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from machine import processor
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import quantpipe

Array = np.ndarray[Any, Any]
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
ROUNDS = 100
STORED: dict[str, Any] = {"option": "ort_cpu", "recurrent": {"inputs": "uint8", "cell_state": "int16"}}
DYNAMIC = "cells with scales of each run"
WAYS: tuple[tuple[str, str, Any], ...] = (
    ("cells", "cells", "ort_cpu"),
    (DYNAMIC, "cells", "ort_cpu"),
    ("steps", "steps", "ort_cpu"),
    ("loops", "loops", "ort_cpu"),
    ("loops that pass uint8 and cell states of int16", "loops", STORED),
)
"""The name of a way, `recurrent`, and the device."""


@dataclass(frozen=True)
class Net:
    """A network: its cell, layers, frames and sizes."""

    name: str
    op: str
    layers: int
    steps: int
    features: int
    size: int
    direction: str = "forward"

    @property
    def ways(self) -> int:
        """Return how many directions it has."""
        return 2 if self.direction == "bidirectional" else 1


NETS = (
    Net("keywords, LSTM", "LSTM", 1, 49, 40, 64),
    Net("keywords, GRU", "GRU", 1, 49, 40, 64),
    Net("tagger, two LSTM both ways", "LSTM", 2, 20, 32, 48, "bidirectional"),
    Net("large LSTM", "LSTM", 1, 16, 128, 256),
)


def model_of(net: Net) -> onnx.ModelProto:
    """The network as PyTorch exports it: samples first outside, time first inside, the last frame to a dense layer."""
    rng, node = np.random.default_rng(0), helper.make_node
    constants: dict[str, Array] = {}
    nodes = [node("Transpose", ["x"], ["t0"], name="time_first", perm=[1, 0, 2])]
    width, rows = net.features, GATES[net.op] * net.size
    for place in range(net.layers):
        bound = 2 / np.sqrt(net.size)
        for name, shape in (("W", (rows, width)), ("R", (rows, net.size)), ("B", (2 * rows,))):
            constants[f"{name}{place}"] = rng.uniform(-bound, bound, (net.ways, *shape))
        given = [f"t{place}", f"W{place}", f"R{place}", f"B{place}"]
        more = {"linear_before_reset": 1} if net.op == "GRU" else {}
        nodes.append(
            node(
                net.op,
                given,
                [f"y{place}"],
                name=f"layer{place}",
                hidden_size=net.size,
                direction=net.direction,
                **more,
            )
        )
        nodes.append(node("Transpose", [f"y{place}"], [f"s{place}"], name=f"beside{place}", perm=[0, 2, 1, 3]))
        nodes.append(node("Reshape", [f"s{place}", "flat"], [f"t{place + 1}"], name=f"joined{place}"))
        width = net.ways * net.size
    nodes.append(node("Gather", [f"t{net.layers}", "end"], ["last"], name="last", axis=0))
    nodes.append(node("Gemm", ["last", "w", "b"], ["scores"], name="scores", transB=1))
    constants |= {"w": rng.standard_normal((12, width)) / np.sqrt(width), "b": rng.standard_normal(12) * 0.1}
    held = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()]
    whole = {"flat": np.asarray([0, 0, -1], np.int64), "end": np.asarray(net.steps - 1, np.int64)}
    graph = helper.make_graph(
        nodes,
        "recurrent",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", net.steps, net.features])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 12])],
        [*held, *(numpy_helper.from_array(v, k) for k, v in whole.items())],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def frames(net: Net, count: int, seed: int) -> Array:
    """Sequences that change slowly, with a level of their own."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((count, net.steps, net.features))
    found = np.empty_like(noise)
    found[:, 0] = noise[:, 0]
    for step in range(1, net.steps):
        found[:, step] = 0.8 * found[:, step - 1] + 0.6 * noise[:, step]
    return (found + rng.standard_normal((count, 1, net.features))).astype(np.float32)


def session(data: bytes) -> ort.InferenceSession:
    """One thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def row(name: str, data: bytes, x: Array, wanted: Array) -> str:
    """SQNR over all sequences and the median latency of one."""
    running = session(data)
    found = running.run(None, {"x": x})[0]
    noise = float(np.square((found - wanted).astype(np.float64)).sum())
    quality = f"{10 * np.log10(np.square(wanted.astype(np.float64)).sum() / noise):.1f} dB" if noise else "–"
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        running.run(None, {"x": x[:1]})
        times.append(time.perf_counter() - start)
    return f"| {name} | {len(data) / 1e3:.0f} kB | {quality} | {statistics.median(times) * 1e6:.0f} µs |"


def rows(net: Net, folder: Path) -> Iterator[str]:
    """The float model, onnxruntime's dynamic one, and ours."""
    model, x = model_of(net), frames(net, 200, 2)
    given, made = folder / "float.onnx", folder / "dynamic.onnx"
    onnx.save(model, given)
    wanted = session(given.read_bytes()).run(None, {"x": x})[0]
    yield row("float kernel", given.read_bytes(), x, wanted)
    quantize_dynamic(given, made, weight_type=QuantType.QInt8, per_channel=True)
    inside = "DynamicQuantizeLSTM" if net.op == "LSTM" else "its recurrent layers stay in float"
    yield row(f"onnxruntime, dynamic ({inside})", made.read_bytes(), x, wanted)
    for name, recurrent, hardware in WAYS:
        if name == DYNAMIC and net.op != "LSTM":
            continue
        result = quantpipe.quantize(
            given,
            quantpipe.SampleSets(calibrate={"x": frames(net, 128, 1)}, evaluate={"x": x[:64]}),
            hardware,
            recurrent=recurrent,
            recover="none",
            annotate={"dynamic": ["*"]} if name == DYNAMIC else None,
            folder=folder / name,
        )
        if result.report["agreement"]["differing"]:
            raise SystemExit(f"{net.name}, {name}: simulated and realized integers differ")
        counts = result.report["model"]
        told = f"ort_cpu, {name}: {counts['integer_nodes']} nodes in integers, {counts['float_nodes']} in float"
        yield row(told, Path(result.model_path).read_bytes(), x, wanted)


def main() -> None:
    """Print a table for each network."""
    print("# Recurrent layers\n")
    print(f"{processor()}. `python benchmarks/recurrent.py`, onnxruntime {ort.__version__}.")
    print("One thread, one sequence at a time.")
    for net in NETS:
        ways = ", both ways" if net.ways == 2 else ""
        print(
            f"\n## {net.name}\n\n{net.layers} x {net.op} of {net.size}{ways}, {net.steps} frames of {net.features}.\n"
        )
        print("| model | file | SQNR to float | latency |\n|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder:
            for line in rows(net, Path(folder)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
