"""Transformers with drawn weights, for measuring what a size costs: an encoder and a decoder of text, one of pictures.

Each is written as exporters write it: projections as MatMul and Add, attention by heads, Gelu, LayerNormalization.
Weights are normal noise of the standard deviation that keeps the variance, so ranges are those of a network at its
start. `outside` puts weights into a data file next to the model.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEAD = [0, 2, 1, 3]
"""The order of axes that puts heads before tokens, and back."""


@dataclass(frozen=True)
class Size:
    """The dimensions of a transformer; `words` is the size of the vocabulary, 0 where samples are real vectors."""

    layers: int
    width: int
    heads: int
    tokens: int
    words: int = 0


BERT_BASE = Size(12, 768, 12, 64, 30522)
VIT_BASE = Size(12, 768, 12, 197)
DECODER = Size(12, 768, 12, 64, 16384)
"""110 million parameters (440 MB), with a last layer of its own."""
LARGE_DECODER = Size(18, 1024, 16, 64, 16384)
"""260 million parameters (1,040 MB)."""
LARGE = Size(24, 1024, 16, 64, 30522)
"""1.3 GB of weights in 24 layers."""


class _Writer:
    """Hold the nodes and weights of a model while it is written."""

    def __init__(self) -> None:
        self.rng, self.nodes, self.weights = np.random.default_rng(0), [], []

    def constant(self, name: str, array: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        output = f"{op.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=output, **attributes))
        return output

    def drawn(self, rows: int, *shape: int) -> str:
        """Return a weight of so many addends per sum."""
        array = self.rng.standard_normal(shape, np.float32) / np.float32(rows**0.5)
        return self.constant(f"w{len(self.weights)}", array)

    def bias(self, width: int) -> str:
        return self.constant(f"b{len(self.weights)}", self.rng.standard_normal(width).astype(np.float32) / 10)

    def dense(self, x: str, rows: int, columns: int) -> str:
        return self.node("Add", self.node("MatMul", x, self.drawn(rows, rows, columns)), self.bias(columns))

    def normalized(self, x: str, width: int) -> str:
        scale = self.constant(f"s{len(self.weights)}", np.ones(width, np.float32))
        offset = self.constant(f"o{len(self.weights)}", np.zeros(width, np.float32))
        return self.node("LayerNormalization", x, scale, offset)

    def attention(self, x: str, size: Size) -> str:
        width = size.width
        q, k, v = (self.node("Reshape", self.dense(x, width, width), "heads") for _ in range(3))
        turned = ((q, HEAD), (k, [0, 2, 3, 1]), (v, HEAD))
        q, k, v = (self.node("Transpose", one, perm=turn) for one, turn in turned)
        share = self.node("Softmax", self.node("Mul", self.node("MatMul", q, k), "root"), axis=-1)
        seen = self.node("Reshape", self.node("Transpose", self.node("MatMul", share, v), perm=HEAD), "flat")
        return self.dense(seen, width, width)

    def feed_forward(self, x: str, width: int) -> str:
        return self.dense(self.node("Gelu", self.dense(x, width, 4 * width)), 4 * width, width)

    def shapes(self, size: Size) -> None:
        self.constant("heads", np.array([0, size.tokens, size.heads, size.width // size.heads]))
        self.constant("flat", np.array([0, size.tokens, size.width]))
        self.constant("root", np.float32((size.width // size.heads) ** -0.5))

    def cached(self, x: str, size: Size, layer: int) -> str:
        """Return a causal attention over the tokens of a cache and new ones."""
        width, names = size.width, [f"{layer}.{kind}" for kind in ("key", "value")]
        q, k, v = (self.dense(x, width, width) for _ in range(3))
        heads = {"q_num_heads": size.heads, "kv_num_heads": size.heads, "is_causal": 1}
        seen = self.node("Attention", q, k, v, "", *(f"past_key_values.{name}" for name in names), **heads)
        self.nodes[-1].output.extend(f"present.{name}" for name in names)
        return self.dense(seen, width, width)

    def save(self, name: str, ports: tuple[Any, Any], path: Path, outside: bool, opset: int = 20) -> None:
        inputs, outputs = ([one] if isinstance(one, onnx.ValueInfoProto) else one for one in ports)
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        onnx.save(model, path, save_as_external_data=outside, location=f"{path.stem}.data")


def text_encoder(size: Size, path: Path, outside: bool = False) -> None:
    """Write an encoder normalized after each part, as BERT is; with `words`, token identifiers are its input."""
    writer, width = _Writer(), size.width
    writer.shapes(size)
    x, port = "x", helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", size.tokens, width])
    if size.words:
        port = helper.make_tensor_value_info("x", TensorProto.INT64, ["N", size.tokens])
        known = writer.node("Gather", writer.drawn(1, size.words, width), "x")
        x = writer.normalized(writer.node("Add", known, writer.drawn(1, size.tokens, width)), width)
    for _ in range(size.layers):
        x = writer.normalized(writer.node("Add", x, writer.attention(x, size)), width)
        x = writer.normalized(writer.node("Add", x, writer.feed_forward(x, width)), width)
    writer.nodes[-1].output[0] = "y"
    made = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", size.tokens, width])
    writer.save("encoder", (port, made), path, outside)


def text_decoder(size: Size, path: Path, outside: bool = False) -> None:
    """Write a decoder normalized before each part, as GPT-2 is, whose inputs are tokens, their places and a cache."""
    writer, width = _Writer(), size.width
    known = writer.node("Gather", writer.drawn(1, size.words, width), "x")
    x = writer.node("Add", known, writer.node("Gather", writer.drawn(1, 4 * size.tokens, width), "position_ids"))
    for layer in range(size.layers):
        x = writer.node("Add", x, writer.cached(writer.normalized(x, width), size, layer))
        x = writer.node("Add", x, writer.feed_forward(writer.normalized(x, width), width))
    writer.node("MatMul", writer.normalized(x, width), writer.drawn(width, width, size.words))
    writer.nodes[-1].output[0] = "y"
    names = [f"{layer}.{kind}" for layer in range(size.layers) for kind in ("key", "value")]
    axes = ["N", size.heads, "past", width // size.heads]
    ports = (
        [
            *(helper.make_tensor_value_info(name, TensorProto.INT64, ["N", "new"]) for name in ("x", "position_ids")),
            *(helper.make_tensor_value_info(f"past_key_values.{n}", TensorProto.FLOAT, axes) for n in names),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "new", size.words]),
            *(helper.make_tensor_value_info(f"present.{n}", TensorProto.FLOAT, ["N", None, None, None]) for n in names),
        ],
    )
    writer.save("decoder", ports, path, outside, 23)


def picture_encoder(size: Size, path: Path, outside: bool = False) -> None:
    """Write a classifier of 224 x 224 pictures in patches of 16, normalized before each part, as ViT is."""
    writer, width = _Writer(), size.width
    writer.shapes(size)
    patch = writer.node("Conv", "x", writer.drawn(768, width, 3, 16, 16), writer.bias(width), strides=[16, 16])
    rows = writer.node("Reshape", patch, writer.constant("patches", np.array([0, width, size.tokens - 1])))
    rows = writer.node("Transpose", rows, perm=[0, 2, 1])
    begin = writer.constant("pads", np.array([0, 1, 0, 0, 0, 0]))
    x = writer.node("Add", writer.node("Pad", rows, begin), writer.drawn(1, size.tokens, width))
    for _ in range(size.layers):
        x = writer.node("Add", x, writer.attention(writer.normalized(x, width), size))
        x = writer.node("Add", x, writer.feed_forward(writer.normalized(x, width), width))
    first = writer.node("Gather", writer.normalized(x, width), writer.constant("first", np.array(0)), axis=1)
    writer.dense(first, width, 1000)
    writer.nodes[-1].output[0] = "y"
    ports = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 224, 224]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 1000]),
    )
    writer.save("pictures", ports, path, outside)


def samples(
    size: Size, numbers: tuple[int, int, int], pictures: bool = False, *, places: bool = False
) -> tuple[dict[str, Any], ...]:
    """Return drawn samples to calibrate, search and evaluate by; `places`: with the places of tokens."""
    rng = np.random.default_rng(1)
    if places:
        rows = np.arange(size.tokens)[None]
        return tuple({**one, "position_ids": np.repeat(rows, len(one["x"]), 0)} for one in samples(size, numbers))
    if size.words:
        return tuple({"x": rng.integers(0, size.words, (n, size.tokens))} for n in numbers)
    shape = (3, 224, 224) if pictures else (size.tokens, size.width)
    return tuple({"x": rng.standard_normal((n, *shape), np.float32)} for n in numbers)
