"""What int8 weights stored as uint8 about 128 cost onnxruntime: one convolution, one dense layer, one thread.

python benchmarks/unsigned_weights.py > benchmarks/results/unsigned_weights.md
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import onnx
import onnxruntime as ort
from machine import processor
from onnx import TensorProto, helper, numpy_helper

ROUNDS = 200
KINDS = {"int8": (np.int8, 0), "uint8 about 128": (np.uint8, 128)}


def convolution(dtype: type, zero: int) -> onnx.ModelProto:
    """QLinearConv, 64 to 64 channels, windows of 3 x 3 on 28 x 28."""
    weight = np.random.default_rng(0).integers(-64, 65, (64, 64, 3, 3))
    scale, unsigned = np.float32(1), np.uint8(3)
    values = {"xs": scale, "xz": unsigned, "w": (weight + zero).astype(dtype), "ws": np.ones(64, np.float32)}
    values |= {"wz": np.full(64, zero, dtype), "ys": np.float32(4000), "yz": np.uint8(128)}
    return model("QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"], values, (1, 64, 28, 28))


def dense(dtype: type, zero: int) -> onnx.ModelProto:
    """MatMulInteger, 64 rows of 512 by 512 x 512."""
    weight = np.random.default_rng(0).integers(-64, 65, (512, 512))
    values = {"w": (weight + zero).astype(dtype), "xz": np.uint8(3), "wz": dtype(zero)}
    return model("MatMulInteger", ["x", "w", "xz", "wz"], values, (64, 512))


def model(op: str, inputs: list[str], values: dict[str, np.ndarray], shape: tuple[int, ...]) -> onnx.ModelProto:
    """A model of one op on uint8 data."""
    out = TensorProto.INT32 if op == "MatMulInteger" else TensorProto.UINT8
    graph = helper.make_graph(
        [helper.make_node(op, inputs, ["y"])],
        op,
        [helper.make_tensor_value_info("x", TensorProto.UINT8, shape)],
        [helper.make_tensor_value_info("y", out, None)],
        [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def microseconds(make: Callable[[type, int], onnx.ModelProto], shape: tuple[int, ...]) -> dict[str, float]:
    """The median time of each kind, in turns; their results have to be equal."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    sessions = {k: ort.InferenceSession(make(*kind).SerializeToString(), options) for k, kind in KINDS.items()}
    feeds = {"x": np.random.default_rng(1).integers(0, 256, shape).astype(np.uint8)}
    first, second = (session.run(None, feeds)[0] for session in sessions.values())
    assert np.array_equal(first, second)
    times: dict[str, list[float]] = {k: [] for k in KINDS}
    for _ in range(ROUNDS):
        for kind, session in sessions.items():
            begin = time.perf_counter()
            session.run(None, feeds)
            times[kind].append(1e6 * (time.perf_counter() - begin))
    return {kind: median(values) for kind, values in times.items()}


def main() -> None:
    """Print the table."""
    print("# int8 weights stored as uint8 about 128\n")
    print(
        f"{processor()}, onnxruntime {ort.__version__}, one thread; medians of {ROUNDS} runs in turn, microseconds.\n"
    )
    print("| kernel | int8 | uint8 about 128 | ratio |\n|---|---|---|---|")
    for name, make, shape in (("QLinearConv", convolution, (1, 64, 28, 28)), ("MatMulInteger", dense, (64, 512))):
        found = microseconds(make, shape)
        a, b = found.values()
        print(f"| {name} | {a:.0f} | {b:.0f} | {b / a:.1f} |")


if __name__ == "__main__":
    main()
