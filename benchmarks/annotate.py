"""How annotate and plan grow with the graph: 500, 1000 and 2000 nodes of efficientnet_lite0's inverted residual blocks.

    python benchmarks/annotate.py [--out benchmarks/results/annotate.json]

Each block is as in that model (1x1 expansion, Clip, 3x3 depthwise, Clip, 1x1 projection, addition), with few channels,
since the time of these stages goes with nodes and not with their size. Prints and writes processor seconds per stage
(they run in one thread), the best of several runs.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper

from quantpipe.annotate.choices import choice_space
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.topology import analyze
from quantpipe.graph.view import Graph, view
from quantpipe.hardware.load import load_hardware
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.intake.load import load_graph
from quantpipe.plan import Planner
from quantpipe.types import Range, Strategy, Topology

CONF = Path(__file__).resolve().parents[1] / "conf"
SIZES = (500, 1000, 2000)
LIMIT = 1.0
REPEATS = 3
TYPES = {"x": "uint8", "w": "int8", "y": "uint8", "z": "uint8", "u": "int8", "s": "uint8"}
KERNELS = {
    "expand": {"pattern": {"y": "Conv(x, w)", "z": "Clip(y) | Relu(y)"}, "types": {t: TYPES[t] for t in "xwyz"}},
    "project": {"pattern": {"y": "Conv(x, w)", "s": "Add(y, z)"}, "types": {t: TYPES[t] for t in "xwyzs"}},
}
"""Patterns that lie all over the model: three sites in each block."""


def model(nodes: int, channels: int = 8, expansion: int = 6) -> onnx.ModelProto:
    """Inverted residual blocks up to about that many nodes (six per block)."""
    rng = np.random.default_rng(0)
    made: list[onnx.NodeProto] = []
    constants = [numpy_helper.from_array(np.float32(v), n) for n, v in (("low", 0.0), ("high", 6.0))]

    def conv(name: str, x: str, into: int, out: int, *, kernel: int, group: int = 1) -> str:
        weight = rng.standard_normal((out, into // group, kernel, kernel)).astype(np.float32) * 0.2
        bias = rng.standard_normal(out).astype(np.float32) * 0.1
        constants.extend([numpy_helper.from_array(weight, f"{name}.w"), numpy_helper.from_array(bias, f"{name}.b")])
        pads = [kernel // 2] * 4
        inputs = [x, f"{name}.w", f"{name}.b"]
        made.append(helper.make_node("Conv", inputs, [f"{name}.out"], name=name, pads=pads, group=group))
        return f"{name}.out"

    def clip(name: str, x: str) -> str:
        made.append(helper.make_node("Clip", [x, "low", "high"], [f"{name}.out"], name=name))
        return f"{name}.out"

    x, wide = conv("stem", "image", 3, channels, kernel=3), channels * expansion
    block = 0
    while len(made) < nodes:
        name, skip = f"block{block}", x
        y = clip(f"{name}.clip1", conv(f"{name}.expand", x, channels, wide, kernel=1))
        y = clip(f"{name}.clip2", conv(f"{name}.depthwise", y, wide, wide, kernel=3, group=wide))
        y = conv(f"{name}.project", y, wide, channels, kernel=1)
        made.append(helper.make_node("Add", [y, skip], [f"{name}.out"], name=f"{name}.add"))
        x, block = f"{name}.out", block + 1
    graph = helper.make_graph(
        made,
        "blocks",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, 6, 6])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["N", channels, 6, 6])],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def best(function: Callable[[], Any], repeats: int = REPEATS) -> float:
    """Least processor seconds of several runs."""
    times = []
    for _ in range(repeats):
        gc.collect()
        started = time.process_time()
        function()
        times.append(time.process_time() - started)
    return min(times)


def fresh(graph: Graph) -> Graph:
    """The same graph without anything cached on it."""
    made = view(graph.model, graph.model_hash, graph.source)
    return replace(made, shapes=graph.shapes, dtypes=graph.dtypes)


def strategy_of(graph: Graph, topology: Topology) -> Strategy:
    """8 bits everywhere, ranges made up: the numbers do not matter for the time."""
    bits = {g.key: g.max_bits for g in topology.groups} | {w.tensor: w.max_bits for w in topology.weights}
    ranges = {g.key: Range(-4.0, 4.0) for g in topology.groups}
    weights = {}
    for site in topology.weights:
        values = np.abs(graph.constant(site.tensor))
        axes = tuple(a for a in range(values.ndim) if a != site.axis)
        weights[site.tensor] = values.max(axis=axes).astype(np.float64)
    return Strategy(bits, ranges, weights)


def measure(nodes: int) -> dict[str, float]:
    data = yaml.safe_load((CONF / "hardware" / "ort_cpu.yaml").read_text())
    spec = load_hardware(data)
    schemas = {p.stem: yaml.safe_load(p.read_text()) for p in (CONF / "schema").glob("*.yaml") if p.stem != "auto"}
    schema = resolve_schema(spec, {"name": "auto"}, schemas)
    options = AnnotateOptions()
    feeds = {"image": np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "blocks.onnx"
        onnx.save(model(nodes), path)
        started = time.process_time()
        graph = load_graph(path, lambda raw: feeds)
        load_seconds = time.process_time() - started
    topology = analyze(graph, spec, schema, options)
    patterns = load_hardware(data | {"kernels": KERNELS})
    strategy = strategy_of(graph, topology)
    planner = Planner(graph, topology, spec, schema)
    planner.plan(strategy)
    return {
        "nodes": len(graph.nodes),
        "load": load_seconds,
        "annotate": best(lambda: choice_space(analyze(fresh(graph), spec, schema, options), options)),
        "annotate_with_kernels": best(lambda: choice_space(analyze(fresh(graph), patterns, schema, options), options)),
        "plan": best(lambda: Planner(graph, topology, spec, schema).plan(strategy)),
        "plan_again": best(lambda: planner.plan(strategy)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "annotate.json")
    arguments = parser.parse_args()
    rows = [measure(n) for n in SIZES]
    for row in rows:
        row["annotate_plus_plan"] = row["annotate"] + row["plan"]
        print({k: round(v, 4) for k, v in row.items()})
    per_node = [row["annotate_plus_plan"] / row["nodes"] for row in rows]
    result = {
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "limit_seconds": LIMIT,
        "rows": rows,
        "growth_per_node": per_node[-1] / per_node[0],
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"seconds per node at {SIZES[-1]} over those at {SIZES[0]}: {result['growth_per_node']:.2f}")


if __name__ == "__main__":
    main()
