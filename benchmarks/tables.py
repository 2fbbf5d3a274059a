"""Tables of which rows are looked up (embeddings): bytes, what their integers lose, and the time of a look-up.

Three parts: the look-up alone, in the ways in which ONNX can write it; a recommender (tables and a small MLP, weights
drawn by seed) and, where QUANTPIPE_ENCODER names a folder with `embed_ts.onnx`, `full.cal.npz` and `full.val.npz`
(benchmarks/README.md), a sentence encoder, each with its tables in float, in the forms that hardware files can ask for,
and as onnxruntime's dynamic quantization leaves it.

    QUANTPIPE_ENCODER=FOLDER python benchmarks/tables.py > benchmarks/results/tables.md
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import quantpipe
from quantpipe.app import compose

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]
ROUNDS = 200

FORMS: Mapping[str, dict[str, Any] | None] = {
    "tables in float": None,
    "8 bits, scale": {"bits": 8},
    "8 bits, scale float16": {"bits": 8, "numbers": "float16"},
    "8 bits, scale and offset": {"bits": 8, "offset": True},
    "8 bits, scale and offset float16": {"bits": 8, "offset": True, "numbers": "float16"},
    "8 bits, fused, float32": {"bits": 8, "offset": True, "layout": "fused"},
    "4 bits, scale": {"bits": 4},
    "4 bits, scale and offset float16": {"bits": 4, "offset": True, "numbers": "float16"},
    "4 bits, fused, float16": {"bits": 4, "offset": True, "numbers": "float16", "layout": "fused"},
}


def session(model: bytes | str) -> ort.InferenceSession:
    """One thread, so that small times can be compared."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def microseconds(run: Callable[[], object]) -> float:
    """The median of some runs."""
    for _ in range(5):
        run()
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def look_ups(rows: int = 30000, columns: int = 384) -> None:
    """Gather of integer rows and their scales, and a DequantizeLinear of the whole table in front of the Gather."""
    rng = np.random.default_rng(0)
    table = (rng.standard_normal((rows, columns)) * 0.05).astype(np.float32)
    scale = (np.abs(table).max(axis=1, keepdims=True) / 127).astype(np.float32)
    integers = np.rint(table / scale).astype(np.int8)
    node = helper.make_node
    written = {
        "Gather of float32": ([node("Gather", ["t", "ids"], ["y"])], {"t": table}),
        "Gather of int8, Cast, Mul by a Gather of scales": (
            [
                node("Gather", ["q", "ids"], ["a"]),
                node("Cast", ["a"], ["b"], to=TensorProto.FLOAT),
                node("Gather", ["s", "ids"], ["c"]),
                node("Mul", ["b", "c"], ["y"]),
            ],
            {"q": integers, "s": scale},
        ),
        "DequantizeLinear of the table, Gather": (
            [node("DequantizeLinear", ["q", "s"], ["a"], axis=0), node("Gather", ["a", "ids"], ["y"])],
            {"q": integers, "s": scale[:, 0]},
        ),
    }
    print(f"## The look-up alone\n\nA table of {rows} x {columns}; microseconds for 16, 128 and 1024 places.\n")
    print("| written as | file | 16 | 128 | 1024 |\n|---|---|---|---|---|")
    for name, (nodes, constants) in written.items():
        graph = helper.make_graph(
            nodes,
            "lookup",
            [helper.make_tensor_value_info("ids", TensorProto.INT64, ["n"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", columns])],
            [numpy_helper.from_array(v, k) for k, v in constants.items()],
        )
        data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10).SerializeToString()
        running = session(data)
        times = []
        for count in (16, 128, 1024):
            feeds = {"ids": rng.integers(0, rows, count)}
            times.append(f"{microseconds(partial(running.run, None, feeds)):.0f}")
        print(f"| {name} | {len(data) / 1e6:.1f} MB | {' | '.join(times)} |")


def recommender() -> tuple[onnx.ModelProto, Feeds, Feeds]:
    """Users, items and a weighted history of items, through a dense net; items are of very different size."""
    rng, users, items, dim = np.random.default_rng(0), 20000, 30000, 32
    constants = {
        "user.weight": rng.standard_normal((users, dim)) * 0.3,
        "item.weight": rng.standard_normal((items, dim)) * 0.3 * np.exp(0.5 * rng.standard_normal((items, 1))),
        "fc1.weight": rng.standard_normal((3 * dim, 64)) / np.sqrt(3 * dim),
        "fc1.bias": rng.standard_normal(64) * 0.1,
        "fc2.weight": rng.standard_normal((64, 8)) / 8,
        "fc2.bias": rng.standard_normal(8) * 0.1,
    }
    node = helper.make_node
    nodes = [
        node("Gather", ["user.weight", "user"], ["u"], name="user"),
        node("Gather", ["item.weight", "item"], ["i"], name="item"),
        node("Gather", ["item.weight", "history"], ["h"], name="history"),
        node("Mul", ["h", "weights"], ["weighed"], name="weigh"),
        node("ReduceSum", ["weighed", "axes"], ["bag"], name="pool", keepdims=0),
        node("Concat", ["u", "i", "bag"], ["x"], name="cat", axis=1),
        node("Gemm", ["x", "fc1.weight", "fc1.bias"], ["hidden"], name="fc1"),
        node("Relu", ["hidden"], ["relu"], name="relu"),
        node("Gemm", ["relu", "fc2.weight", "fc2.bias"], ["scores"], name="fc2"),
    ]
    ports = [
        helper.make_tensor_value_info("user", TensorProto.INT64, ["N"]),
        helper.make_tensor_value_info("item", TensorProto.INT64, ["N"]),
        helper.make_tensor_value_info("history", TensorProto.INT64, ["N", 10]),
        helper.make_tensor_value_info("weights", TensorProto.FLOAT, ["N", 10, 1]),
    ]
    held = [numpy_helper.from_array(v.astype(np.float32), k) for k, v in constants.items()]
    graph = helper.make_graph(
        nodes,
        "recommender",
        ports,
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["N", 8])],
        [*held, numpy_helper.from_array(np.asarray([1], np.int64), "axes")],
    )

    def drawn(count: int) -> Feeds:
        return {
            "user": rng.integers(0, users, count),
            "item": rng.integers(0, items, count),
            "history": rng.integers(0, items, (count, 10)),
            "weights": rng.random((count, 10, 1)).astype(np.float32),
        }

    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return model, drawn(512), drawn(1024)


def compared(title: str, model: onnx.ModelProto, calibrate: Feeds, evaluate: Feeds) -> None:
    """A row for each way to store the tables, all else as the default has it."""
    print(f"\n## {title}\n")
    print(f"{len(next(iter(evaluate.values())))} samples; latency of one sample, one thread.\n")
    print("| tables | file | SQNR to float | cosine | latency |\n|---|---|---|---|---|")
    running = session(model.SerializeToString())
    names = {i.name for i in running.get_inputs()}
    feeds = {k: v for k, v in evaluate.items() if k in names}
    first = running.get_outputs()[0].name
    wanted = running.run([first], feeds)[0]
    one = {k: v[:1] for k, v in feeds.items()}

    def row(name: str, data: bytes) -> None:
        own = session(data)
        found = own.run([first], feeds)[0]
        took = microseconds(lambda: own.run([first], one))
        print(
            f"| {name} | {len(data) / 1e6:.2f} MB | {_sqnr(wanted, found)} | {_cosine(wanted, found)} | {took:.0f} µs |"
        )

    row("float model", model.SerializeToString())
    with tempfile.TemporaryDirectory() as folder:
        given, made = Path(folder) / "float.onnx", Path(folder) / "dynamic.onnx"
        onnx.save(model, given)
        quantize_dynamic(given, made, weight_type=QuantType.QInt8, op_types_to_quantize=["Gather"])
        row("onnxruntime, Gather alone (one scale for the table)", made.read_bytes())
        quantize_dynamic(given, made, weight_type=QuantType.QInt8)
        row("onnxruntime, dynamic", made.read_bytes())
        for name, tables in FORMS.items():
            result = quantpipe.quantize(
                given,
                quantpipe.SampleSets(calibrate=calibrate, evaluate=evaluate),
                compose.option("hardware", "ort_cpu") | {"tables": tables},
                recover="none",
                folder=Path(folder) / "run" / name.replace(" ", "_").replace(",", ""),
            )
            if result.report["agreement"]["differing"]:
                raise SystemExit(f"{title}, {name}: simulated and realized integers differ")
            row(f"ort_cpu, {name}", Path(result.model_path).read_bytes())


def _sqnr(wanted: Array, found: Array) -> str:
    noise = np.square((found - wanted).astype(np.float64)).sum()
    return "–" if not noise else f"{10 * np.log10(np.square(wanted.astype(np.float64)).sum() / noise):.1f} dB"


def _cosine(wanted: Array, found: Array) -> str:
    a, b = (v.reshape(len(v), -1).astype(np.float64) for v in (wanted, found))
    return f"{np.mean((a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)):.5f}"


def main() -> None:
    """Print all parts."""
    print("# Tables of rows\n")
    print(f"`python benchmarks/tables.py`, onnxruntime {ort.__version__}, one thread.\n")
    look_ups()
    compared("A recommender", *recommender())
    folder = os.environ.get("QUANTPIPE_ENCODER")
    if folder is None:
        print("\nNo sentence encoder: QUANTPIPE_ENCODER names none.")
        return
    data = [dict(np.load(Path(folder) / f"full.{split}.npz")) for split in ("cal", "val")]
    compared("A sentence encoder (all-MiniLM-L6-v2)", onnx.load(Path(folder) / "embed_ts.onnx"), data[0], data[1])


if __name__ == "__main__":
    main()
