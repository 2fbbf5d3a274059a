"""Predict the times of layers of networks that the predictor was not fitted to (objective.cost=latency).

Draws networks of random shapes, quantizes them for onnxruntime on this CPU, measures each layer with onnxruntime's
profiler on one thread. The layers of each real network are predicted by figures of `cost.layers` that are fitted to all
other networks, drawn and real. The table has the median of the relative errors per network and per kind of kernel.

    python benchmarks/layer_times.py [--nets 8] [--encoders 6] [--repeats 100] [--folder FOLDER] [--lock FILE]
        [--out FILE.md]
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import sys
import tempfile
from collections import defaultdict
from contextlib import nullcontext
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import onnx  # noqa: E402
from corpus import Counts, cases  # noqa: E402
from machine import processor  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

import quantpipe  # noqa: E402
from quantpipe.api.options import given_dataset  # noqa: E402
from quantpipe.app.explain import settings_of_run  # noqa: E402
from quantpipe.conform.layer_times import MeasuredLayer, fit, read_times  # noqa: E402
from quantpipe.hardware.predictor import predicted_layer  # noqa: E402
from quantpipe.pipeline.identify_times import identify_times, layers_of_runs  # noqa: E402
from quantpipe.pipeline.settings import Settings  # noqa: E402

REAL = (
    "cifar10_resnet20", "cifar10_resnet8_mlperf", "vww_mobilenet_v1_025", "kws_dscnn", "ad_autoencoder",
    "imagenet_efficientnet_lite0", "digits", "digits_vit",
)  # fmt: skip
CHANNELS = (3, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 320, 512, 672, 1024)
LARGE = 10
"""Microseconds from which the profiler's resolution is no longer a tenth."""
QUICK: dict[str, Any] = {
    "precision": "none", "recover": "none", "search": "uniform",
    "evaluate": {"latency_runs": 5, "latency_seconds": 1, "baseline": "none", "explain": "none", "layer_samples": 4,
                 "agreement_samples": 4},
}  # fmt: skip


class Quiet:
    """A console that shows nothing."""

    def stage(self, name: str, note: str = "") -> None:
        """Show nothing."""

    def progress(self, name: str) -> Any:
        """Return a function that shows nothing."""
        return lambda done, total, note: None

    def warn(self, text: str) -> None:
        """Show nothing."""


def drawn(path: Path, seed: int) -> tuple[Path, np.ndarray[Any, Any]]:
    """Write a network of random layers: convolutions of all kinds, additions, a pool and dense layers."""
    rng = np.random.default_rng(seed)
    side, channels = int(rng.choice([8, 12, 16, 28, 32, 48, 64, 96])), int(rng.choice(CHANNELS[:6]))
    shape, nodes, held, tensor = (channels, side, side), [], [], "x"

    def weight(*dims: int) -> str:
        values = rng.standard_normal(dims) * (2 / max(np.prod(dims[1:]), 1)) ** 0.5
        held.append(numpy_helper.from_array(values.astype(np.float32), f"w{len(held)}"))
        return f"w{len(held) - 1}"

    def add(op: str, inputs: list[str], **options: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"t{len(nodes)}"], name=f"n{len(nodes)}", **options))
        return f"t{len(nodes) - 1}"

    for _ in range(int(rng.integers(10, 18))):
        kind = rng.choice(["pointwise", "pointwise", "spatial", "spatial", "depthwise", "residual"])
        most = max(16, min(1024, int(2e5 / side)))
        out = int(rng.choice([c for c in CHANNELS if 8 <= c <= most]))
        stride = int(rng.choice([1, 1, 2])) if side >= 8 else 1
        kernel = int(rng.choice([3, 3, 5]))
        if kind == "pointwise":
            made = add("Conv", [tensor, weight(out, channels, 1, 1)])
            stride = 1
        elif kind == "depthwise":
            out = channels
            options = {"group": channels, "pads": [kernel // 2] * 4, "strides": [stride] * 2}
            made = add("Conv", [tensor, weight(channels, 1, kernel, kernel)], **options)
        elif kind == "spatial":
            out = min(out, max(16, int(4e7 / (side * side * channels * kernel * kernel))))
            made = add(
                "Conv", [tensor, weight(out, channels, kernel, kernel)], pads=[kernel // 2] * 4, strides=[stride] * 2
            )
        else:
            out, stride = channels, 1
            made = add("Add", [tensor, add("Relu", [add("Conv", [tensor, weight(channels, channels, 1, 1)])])])
        tensor, channels, side = add("Relu", [made]), out, -(-side // stride)
    tensor = add("Flatten", [add("GlobalAveragePool", [tensor])])
    for out in (int(rng.choice([32, 128, 640])), 10):
        tensor = add("Gemm", [tensor, weight(out, channels)], transB=1)
        channels = out
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", *shape])]
    out_port = helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", 10])
    graph = helper.make_graph(nodes, "drawn", ports, [out_port], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path, rng.standard_normal((32, *shape)).astype(np.float32)


def drawn_encoder(path: Path, seed: int) -> tuple[Path, np.ndarray[Any, Any]]:
    """Write an encoder of random sizes: attention and a dense pair per block, normalized and added to the residual."""
    rng = np.random.default_rng(1000 + seed)
    tokens, heads, width = (int(rng.choice(some)) for some in ((8, 12, 16, 32, 64), (2, 4), (8, 16, 24, 32)))
    channels, hidden = heads * width, heads * width * int(rng.choice([2, 4]))
    nodes, held = [], []

    def constant(values: np.ndarray[Any, Any]) -> str:
        held.append(numpy_helper.from_array(values, f"c{len(held)}"))
        return f"c{len(held) - 1}"

    def add(op: str, *inputs: str, **options: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [f"t{len(nodes)}"], name=f"n{len(nodes)}", **options))
        return f"t{len(nodes) - 1}"

    def dense(tensor: str, inputs: int, outputs: int) -> str:
        weight = rng.standard_normal((inputs, outputs)).astype(np.float32) * np.float32(inputs**-0.5)
        bias = rng.standard_normal(outputs).astype(np.float32) * np.float32(0.1)
        return add("Add", add("MatMul", tensor, constant(weight)), constant(bias))

    def normalized(tensor: str) -> str:
        ones = constant(np.ones(channels, np.float32))
        return add("LayerNormalization", tensor, ones, constant(np.zeros(channels, np.float32)))

    def parted(tensor: str, order: list[int]) -> str:
        shape = constant(np.array([0, tokens, heads, width], np.int64))
        return add("Transpose", add("Reshape", tensor, shape), perm=order)

    tensor = "x"
    for _ in range(int(rng.integers(1, 4))):
        given = normalized(tensor)
        query, key, value = (dense(given, channels, channels) for _ in range(3))
        scores = add("MatMul", parted(query, [0, 2, 1, 3]), parted(key, [0, 2, 3, 1]))
        scores = add("Softmax", add("Mul", scores, constant(np.full(1, width**-0.5, np.float32))), axis=-1)
        mixed = add("Transpose", add("MatMul", scores, parted(value, [0, 2, 1, 3])), perm=[0, 2, 1, 3])
        mixed = add("Reshape", mixed, constant(np.array([0, tokens, channels], np.int64)))
        tensor = add("Add", tensor, dense(mixed, channels, channels))
        inner = dense(normalized(tensor), channels, hidden)
        inner = add("Mul", inner, add("Sigmoid", inner)) if seed % 2 else add("Relu", inner)
        tensor = add("Add", tensor, dense(inner, hidden, channels))
    tensor = dense(add("ReduceMean", normalized(tensor), constant(np.array([1], np.int64)), keepdims=0), channels, 10)
    ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", tokens, channels])]
    out_port = helper.make_tensor_value_info(tensor, TensorProto.FLOAT, ["n", 10])
    graph = helper.make_graph(nodes, "drawn", ports, [out_port], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path, rng.standard_normal((32, tokens, channels)).astype(np.float32)


def quantized(folder: Path, name: str, make: Any) -> Settings:
    """Quantize a network into a folder of its own, unless it is there, and return the settings of the run."""
    run = folder / name
    model, samples = make()
    if not (run / "evaluate" / "report.json").is_file():
        quantpipe.quantize(model, samples, "ort_cpu", folder=run, **QUICK)
    return settings_of_run(run, plugins=[], given={"dataset": given_dataset(run, samples)}, key="runs")


def real(name: str, folder: Path) -> tuple[Path, Any]:
    """Return a network of the corpus, and some of its samples in one array."""
    case = cases()[name](folder, Counts(16, 8, 8))
    (port,) = case.calibrate
    return case.model, np.concatenate([part[port] for part in (case.calibrate, case.search, case.evaluate)])


def table(layers: list[MeasuredLayer]) -> str:
    """Return the result as Markdown: the layers of each real network, predicted by figures of all other networks."""
    parts: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for network in dict.fromkeys(one.network for one in layers):
        if not network.startswith("drawn"):
            figures = fit([one for one in layers if one.network != network], "latency")
            for one in (one for one in layers if one.network == network):
                pair = one.took["latency"], predicted_layer(one.work, figures)
                for name in ("all", network, one.work.kind):
                    parts[name].append(pair)
    lines = []
    for name, pairs in parts.items():
        took, guess = np.array(pairs).T
        errors = np.abs(guess / took - 1)
        large = errors[took >= LARGE]
        text = f"{100 * np.median(large):.1f} % ({len(large)})" if len(large) else "none"
        typical, most = 100 * np.median(errors), 100 * np.quantile(errors, 0.9)
        lines.append(
            f"| {name} | {len(took)} | {typical:.1f} % | {most:.0f} % | {text} | {took.sum():.0f} | {guess.sum():.0f} |"
        )
    networks = len({one.network for one in layers})
    return "\n".join(
        [
            "# Predicted times of layers",
            "",
            f"{processor()}; one thread. {len(layers)} layers of {networks} networks; each real network is predicted",
            "by figures that were fitted to all others (benchmarks/layer_times.py). The profiler counts whole",
            "microseconds.",
            "",
            f"| layers of | layers | median error | 90 % within | from {LARGE} µs on | measured µs | predicted µs |",
            "|---|---|---|---|---|---|---|",
            *lines,
            "",
        ]
    )


def main() -> None:
    """Measure, fit, predict and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nets", type=int, default=8)
    parser.add_argument("--encoders", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--folder", type=Path, default=None)
    parser.add_argument("--lock", type=Path, default=None)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="quantpipe-"))
    folder.mkdir(parents=True, exist_ok=True)
    runs = {}
    for seed in range(given.nets):
        name = f"drawn{seed}"
        runs[name] = quantized(folder, name, lambda name=name, seed=seed: drawn(folder / f"{name}.onnx", seed))
    for seed in range(given.encoders):
        name = f"drawn_encoder{seed}"
        runs[name] = quantized(folder, name, lambda name=name, seed=seed: drawn_encoder(folder / f"{name}.onnx", seed))
    for name in REAL:
        runs[name] = quantized(folder, name, lambda name=name: real(name, folder))
    with given.lock.open("w") if given.lock else nullcontext() as lock:
        if lock is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        found = identify_times(runs, Quiet(), None, given.repeats)
    layers, _ = read_times(Path(found["times"]), layers_of_runs(runs, Quiet()))
    text = table(layers)
    sys.stdout.write(text)
    if given.out is not None:
        given.out.write_text(text)


if __name__ == "__main__":
    csv.field_size_limit(1 << 20)
    main()
