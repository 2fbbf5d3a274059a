"""How long it takes until a large transformer is read, cleaned and measured, and where the time goes.

    QUANTPIPE_ENCODER=FOLDER python benchmarks/intake.py > benchmarks/results/intake.md

Always: an encoder of 90 MB drawn by seed (a table of 30,522 rows, six layers of 384 features, LayerNormalization and
Gelu in several nodes as older exporters write them). With QUANTPIPE_ENCODER also the files of a real one by torch's two
exporters (benchmarks/README.md). Medians of several loads, apart from the start of the program; the steps are those
that the loading process reports, from one load.
"""

from __future__ import annotations

import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxslim
from onnx import TensorProto, helper, numpy_helper

from quantpipe.graph.view import Graph
from quantpipe.intake import load

REPEATS = 5
ROWS, WIDTH, LAYERS, HEADS, LENGTH = 30522, 384, 6, 12, 64
LIMIT = 5.0


class Encoder:
    """Writes the nodes of an encoder one after the other."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def constant(self, name: str, array: np.ndarray) -> str:
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, *shape: int) -> str:
        return self.constant(name, (self.rng.standard_normal(shape) * shape[0] ** -0.5).astype(np.float32))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [f"{name}.out"], name=name, **attributes))
        return f"{name}.out"

    def number(self, value: float) -> str:
        return self.constant(f"number_{len(self.constants)}", np.float32(value))

    def shape(self, *axes: int) -> str:
        return self.constant(f"shape_{len(self.constants)}", np.array(axes, np.int64))

    def norm(self, x: str) -> str:
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        variance = self.op("ReduceMean", self.op("Pow", centred, self.number(2.0)), axes=[-1])
        scaled = self.op("Div", centred, self.op("Sqrt", self.op("Add", variance, self.number(1e-12))))
        gain = self.constant(f"gain_{len(self.constants)}", np.ones(WIDTH, np.float32))
        return self.op("Add", self.op("Mul", scaled, gain), self.weight(f"shift_{len(self.constants)}", WIDTH))

    def dense(self, x: str, into: int, out: int) -> str:
        name = f"dense_{len(self.constants)}"
        product = self.op("MatMul", x, self.weight(f"{name}.w", into, out))
        return self.op("Add", product, self.weight(f"{name}.b", out))

    def heads(self, x: str, *order: int) -> str:
        split = self.op("Reshape", self.dense(x, WIDTH, WIDTH), self.shape(0, -1, HEADS, WIDTH // HEADS))
        return self.op("Transpose", split, perm=order)

    def layer(self, x: str) -> str:
        query, key, value = self.heads(x, 0, 2, 1, 3), self.heads(x, 0, 2, 3, 1), self.heads(x, 0, 2, 1, 3)
        scores = self.op("Div", self.op("MatMul", query, key), self.number((WIDTH // HEADS) ** 0.5))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        joined = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), self.shape(0, -1, WIDTH))
        x = self.norm(self.op("Add", x, self.dense(joined, WIDTH, WIDTH)))
        wide = self.dense(x, WIDTH, 4 * WIDTH)
        erf = self.op("Erf", self.op("Div", wide, self.number(2**0.5)))
        gelu = self.op("Mul", self.op("Mul", wide, self.op("Add", erf, self.number(1.0))), self.number(0.5))
        return self.norm(self.op("Add", x, self.dense(gelu, 4 * WIDTH, WIDTH)))

    def model(self) -> onnx.ModelProto:
        x = self.norm(self.op("Gather", self.weight("table", ROWS, WIDTH), "ids"))
        for _ in range(LAYERS):
            x = self.layer(x)
        port = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])
        result = helper.make_tensor_value_info(x, TensorProto.FLOAT, ["batch", "length", WIDTH])
        graph = helper.make_graph(self.nodes, "encoder", [port], [result], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def measured(path: Path, example: Callable[[Graph], Any]) -> tuple[float, int, dict[str, float]]:
    """(median seconds of a load, nodes of the clean graph, seconds of each step)."""
    seconds, nodes = [], 0
    for _ in range(REPEATS):
        start = time.perf_counter()
        nodes = len(load.load_graph(path, example).nodes)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds), nodes, steps(path, example)


def steps(path: Path, example: Callable[[Graph], Any]) -> dict[str, float]:
    """Seconds of each step that a load tells of."""
    told: list[tuple[str, float]] = [("reading and checking the file", time.perf_counter())]

    def here(work: Any, *_: Any) -> Any:
        return work(lambda step: told.append((step, time.perf_counter())))

    apart, load.apart = load.apart, here
    try:
        load.load_graph(path, example)
    finally:
        load.apart = apart
    ends = [at for _, at in told[1:]] + [time.perf_counter()]
    return {name: end - at for (name, at), end in zip(told, ends, strict=True)}


def models(folder: Path) -> Iterator[tuple[str, Path, Callable[[Graph], Any]]]:
    path = folder / "encoder.onnx"
    onnx.save(Encoder().model(), path)
    ids = np.random.default_rng(1).integers(0, ROWS, (4, LENGTH))
    yield "drawn by seed", path, lambda graph: {"ids": ids}
    real = Path(os.environ.get("QUANTPIPE_ENCODER", "-"))
    for form in ("embed_ts", "embed_dynamo"):
        if (real / f"{form}.onnx").is_file():
            data = np.load(real / "padded.cal.npz")
            yield form, real / f"{form}.onnx", lambda graph, data=data: {i.name: data[i.name][:4] for i in graph.inputs}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = [(name, path.stat().st_size, *measured(path, example)) for name, path, example in models(Path(folder))]
    print("# Intake of large transformers\n")
    print(f"`python benchmarks/intake.py`; onnxruntime {ort.__version__}, onnxslim {onnxslim.__version__}, ", end="")
    print(f"Python {platform.python_version()}. Seconds of `load_graph` on four samples of {LENGTH} tokens:")
    print(f"read, clean, compare, measure; median of {REPEATS}. Aim: {LIMIT:.0f} s.\n")
    print("| model | MB | nodes after | seconds |\n|---|---|---|---|")
    for name, size, seconds, nodes, _ in rows:
        print(f"| {name} | {size / 1e6:.0f} | {nodes} | {seconds:.2f} |")
    print("\nWhere they go:\n")
    print(f"| step | {' | '.join(row[0] for row in rows)} |\n|---|{'---|' * len(rows)}")
    for step in rows[0][-1]:
        print(f"| {step} | {' | '.join(f'{row[-1].get(step, 0.0):.2f}' for row in rows)} |")


if __name__ == "__main__":
    main()
