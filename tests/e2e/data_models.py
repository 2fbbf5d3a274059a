"""Small models that take something else than one image: sound, text, rows of a table, state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

KINDS = {"float32": TensorProto.FLOAT, "int64": TensorProto.INT64}
Port = tuple[str, Sequence[int | str], str]


def write(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: Mapping[str, Any],
) -> str:
    """Save a checked model; gives model.path=…"""
    for number, node in enumerate(nodes):
        node.name = node.name or f"{node.op_type.lower()}_{number}"

    def ports(values: Sequence[Port]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(name, KINDS[kind], shape) for name, shape, kind in values]

    stored = [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()]
    graph = helper.make_graph(list(nodes), "model", ports(inputs), ports(outputs), stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return f"model.path={path}"


def normal(seed: int, *shape: int, scale: float = 0.4) -> np.ndarray[Any, Any]:
    return (scale * np.random.default_rng(seed).standard_normal(shape)).astype(np.float32)


def mlp(path: Path, features: int = 6, classes: int = 3, batch: int | str = "N") -> str:
    """x [batch, features] -> logits [batch, classes], 16 hidden units."""
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["y"]),
    ]
    constants = {
        "w1": normal(0, features, 16),
        "b1": normal(1, 16),
        "w2": normal(2, 16, classes),
        "b2": normal(3, classes),
    }
    return write(path, nodes, [("x", [batch, features], "float32")], [("y", [batch, classes], "float32")], constants)


def two_towers(path: Path) -> str:
    """a [N, 2] and b [N, 3] -> y [N, 3]: a dense layer each, added."""
    nodes = [
        helper.make_node("Gemm", ["a", "wa", "ba"], ["ha"]),
        helper.make_node("Gemm", ["b", "wb", "bb"], ["hb"]),
        helper.make_node("Add", ["ha", "hb"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w", "bias"], ["y"]),
    ]
    constants = {
        "wa": normal(0, 2, 8), "ba": normal(1, 8), "wb": normal(2, 3, 8), "bb": normal(3, 8), "w": normal(4, 8, 3),
        "bias": normal(5, 3),
    }  # fmt: skip
    inputs: list[Port] = [("a", ["N", 2], "float32"), ("b", ["N", 3], "float32")]
    return write(path, nodes, inputs, [("y", ["N", 3], "float32")], constants)


def sound_classifier(path: Path, time: int | str = "T", classes: int = 3) -> str:
    """wave [N, 1, T] -> logits [N, classes]: two convolutions, pooled over time."""
    nodes = [
        helper.make_node("Conv", ["wave", "w1", "b1"], ["c1"], kernel_shape=[5], strides=[2], pads=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["c2"], kernel_shape=[3], pads=[1, 1]),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("GlobalAveragePool", ["r2"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "w3", "b3"], ["y"]),
    ]
    constants = {
        "w1": normal(0, 8, 1, 5), "b1": normal(1, 8, scale=0.1), "w2": normal(2, 8, 8, 3), "b2": normal(3, 8),
        "w3": normal(4, 8, classes, scale=1.0), "b3": normal(5, classes),
    }  # fmt: skip
    return write(path, nodes, [("wave", ["N", 1, time], "float32")], [("y", ["N", classes], "float32")], constants)


def sound_to_sound(path: Path) -> str:
    """wave [N, 1, T] -> [N, 2, T]: an output as long as its input."""
    nodes = [
        helper.make_node("Conv", ["wave", "w1", "b1"], ["c1"], kernel_shape=[5], pads=[2, 2]),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["y"], kernel_shape=[3], pads=[1, 1]),
    ]
    constants = {"w1": normal(0, 8, 1, 5), "b1": normal(1, 8, scale=0.1), "w2": normal(2, 2, 8, 3), "b2": normal(3, 2)}
    return write(path, nodes, [("wave", ["N", 1, "T"], "float32")], [("y", ["N", 2, "T"], "float32")], constants)


def text_classifier(path: Path, words: int = 30, classes: int = 2) -> str:
    """input_ids, attention_mask [N, L] int64 -> logits [N, classes]: embedding, dense, mean over what is not masked."""
    nodes = [
        helper.make_node("Gather", ["embedding", "input_ids"], ["e"]),
        helper.make_node("MatMul", ["e", "w1"], ["d"]),
        helper.make_node("Relu", ["d"], ["r"]),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=TensorProto.FLOAT),
        helper.make_node("Unsqueeze", ["m", "last"], ["m3"]),
        helper.make_node("Mul", ["r", "m3"], ["kept"]),
        helper.make_node("ReduceSum", ["kept", "time"], ["total"], keepdims=0),
        helper.make_node("ReduceSum", ["m3", "time"], ["count"], keepdims=0),
        helper.make_node("Div", ["total", "count"], ["mean"]),
        helper.make_node("Gemm", ["mean", "w2", "b2"], ["y"]),
    ]
    constants = {
        "embedding": normal(0, words, 8, scale=1.0), "w1": normal(1, 8, 16), "w2": normal(2, 16, classes),
        "b2": normal(3, classes), "last": np.array([2], np.int64), "time": np.array([1], np.int64),
    }  # fmt: skip
    inputs: list[Port] = [("input_ids", ["N", "L"], "int64"), ("attention_mask", ["N", "L"], "int64")]
    return write(path, nodes, inputs, [("y", ["N", classes], "float32")], constants)


def recurrent(path: Path, batch: int | str = "N", hidden: int = 8, stacked: bool = False) -> str:
    """x [N, 4], h [N, hidden] -> y [N, 3], h_next [N, hidden]: a minimal gated cell, whose matrices are dense layers.

    z = sigmoid([x h] Wz + bz); c = tanh([x h] Wc + bc); h_next = h + z (c - h). `stacked`: the states are
    [2, N, hidden / 2], as those of two layers are.
    """
    nodes = [
        helper.make_node("Concat", ["x", "h"], ["xh"], axis=1),
        helper.make_node("Gemm", ["xh", "wz", "bz"], ["az"]),
        helper.make_node("Sigmoid", ["az"], ["z"]),
        helper.make_node("Gemm", ["xh", "wc", "bc"], ["ac"]),
        helper.make_node("Tanh", ["ac"], ["c"]),
        helper.make_node("Sub", ["c", "h"], ["d"]),
        helper.make_node("Mul", ["z", "d"], ["zd"]),
        helper.make_node("Add", ["h", "zd"], ["h_next"]),
        helper.make_node("Gemm", ["h_next", "wy", "by"], ["y"]),
    ]
    constants = {
        "wz": normal(0, 4 + hidden, hidden), "bz": normal(1, hidden), "wc": normal(2, 4 + hidden, hidden),
        "bc": normal(3, hidden), "wy": normal(4, hidden, 3, scale=1.0), "by": normal(5, 3),
    }  # fmt: skip
    state: list[int | str] = [batch, hidden]
    if stacked:
        state = [2, batch, hidden // 2]
        for node in nodes:
            node.input[:] = ["flat" if name == "h" else name for name in node.input]
            node.output[:] = ["flat_next" if name == "h_next" else name for name in node.output]
        nodes[-1].input[0] = "flat_next"
        nodes.insert(0, helper.make_node("Reshape", ["swapped", "rows"], ["flat"]))
        nodes.insert(0, helper.make_node("Transpose", ["h"], ["swapped"], perm=[1, 0, 2]))
        nodes.append(helper.make_node("Reshape", ["flat_next", "cube"], ["cubed"]))
        nodes.append(helper.make_node("Transpose", ["cubed"], ["h_next"], perm=[1, 0, 2]))
        constants |= {"rows": np.array([-1, hidden]), "cube": np.array([-1, 2, hidden // 2])}
    inputs: list[Port] = [("x", [batch, 4], "float32"), ("h", state, "float32")]
    outputs: list[Port] = [("y", [batch, 3], "float32"), ("h_next", state, "float32")]
    return write(path, nodes, inputs, outputs, constants)
