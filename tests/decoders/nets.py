"""A small decoder with random weights, in the styles of three exporters: the same function, so the same numbers.

`standard` has ONNX's Attention, RotaryEmbedding and RMSNormalization (opset 23); `runtime` has onnxruntime's fused ops,
as its model builder writes them; `merged` has the first in both branches of an If.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
MS = "com.microsoft"
WORDS, WIDTH, HEADS, KV, SIZE, LAYERS, INNER, PLACES = 64, 64, 4, 2, 16, 2, 128, 128
KINDS = ("key", "value")
EPSILON = {"epsilon": 1e-5}


def weights(seed: int = 0) -> dict[str, Array]:
    """Return all constants of the decoder by name."""
    rng = np.random.default_rng(seed)
    turns = np.arange(PLACES)[:, None] * 100.0 ** (-np.arange(SIZE // 2) / (SIZE // 2))
    sizes = {"q": (WIDTH, HEADS * SIZE), "k": (WIDTH, KV * SIZE), "v": (WIDTH, KV * SIZE), "o": (HEADS * SIZE, WIDTH)}
    sizes |= {"gate": (WIDTH, INNER), "up": (WIDTH, INNER), "down": (INNER, WIDTH)}
    found = {"cos": np.cos(turns), "sin": np.sin(turns), "table": rng.standard_normal((WORDS, WIDTH))}
    for layer in range(LAYERS):
        found |= {f"{layer}.{n}": rng.standard_normal(s) / np.sqrt(s[0]) for n, s in sizes.items()}
        found |= {f"{layer}.{n}": 1 + 0.1 * rng.standard_normal(WIDTH) for n in ("before", "between")}
    found |= {"last": np.ones(WIDTH), "head": rng.standard_normal((WIDTH, WORDS)) / np.sqrt(WIDTH)}
    return {name: array.astype(np.float32) for name, array in found.items()}


class _Nodes(list[onnx.NodeProto]):
    """Nodes in the making; each gives one tensor by default."""

    def put(self, op: str, inputs: str, outputs: str, domain: str = "", **attributes: Any) -> str:
        """Add a node with tensors separated by spaces, `-` for an absent one, and return its first output."""
        names = [["" if n == "-" else n for n in text.split()] for text in (inputs, outputs)]
        self.append(helper.make_node(op, *names, name=names[1][0], domain=domain, **attributes))
        return names[1][0]


def _feed_forward(nodes: _Nodes, layer: int, data: str) -> str:
    nodes.put("MatMul", f"{data} {layer}.gate", f"{layer}.g")
    nodes.put("Sigmoid", f"{layer}.g", f"{layer}.s")
    nodes.put("Mul", f"{layer}.g {layer}.s", f"{layer}.h")
    nodes.put("MatMul", f"{data} {layer}.up", f"{layer}.u")
    nodes.put("Mul", f"{layer}.h {layer}.u", f"{layer}.m")
    return nodes.put("MatMul", f"{layer}.m {layer}.down", f"{layer}.d")


def _projections(nodes: _Nodes, layer: int) -> list[str]:
    return [nodes.put("MatMul", f"{layer}.a {layer}.{n}", f"{layer}.{n}_") for n in "qkv"]


def _pasts(layer: int) -> str:
    return " ".join(f"past_key_values.{layer}.{kind}" for kind in KINDS)


def _presents(layer: int) -> str:
    return " ".join(f"present.{layer}.{kind}" for kind in KINDS)


def _standard_nodes() -> _Nodes:
    nodes = _Nodes()
    row = nodes.put("Gather", "table input_ids", "x")
    for layer in range(LAYERS):
        nodes.put("RMSNormalization", f"{row} {layer}.before", f"{layer}.a", **EPSILON)
        query, key, value = _projections(nodes, layer)
        for name, heads in ((query, HEADS), (key, KV)):
            nodes.put("RotaryEmbedding", f"{name} cos sin position_ids", f"{name}r", num_heads=heads)
        groups = {"q_num_heads": HEADS, "kv_num_heads": KV, "is_causal": 1}
        made = f"{layer}.w {_presents(layer)}"
        nodes.put("Attention", f"{query}r {key}r {value} - {_pasts(layer)}", made, **groups)
        nodes.put("MatMul", f"{layer}.w {layer}.o", f"{layer}.p")
        nodes.put("Add", f"{row} {layer}.p", f"{layer}.r")
        nodes.put("RMSNormalization", f"{layer}.r {layer}.between", f"{layer}.b", **EPSILON)
        row = nodes.put("Add", f"{layer}.r {_feed_forward(nodes, layer, f'{layer}.b')}", f"{layer}.y")
    nodes.put("RMSNormalization", f"{row} last", "n", **EPSILON)
    nodes.put("MatMul", "n head", "logits")
    return nodes


def _runtime_nodes() -> _Nodes:
    nodes = _Nodes()
    row, added = nodes.put("Gather", "table input_ids", "x"), ""
    nodes.put("ReduceSum", "attention_mask one", "sums", keepdims=0)
    nodes.put("Cast", nodes.put("Sub", "sums one", "ends"), "lengths", to=TensorProto.INT32)
    nodes.put("Gather", f"{nodes.put('Shape', 'attention_mask', 'axes')} second", "longest")
    nodes.put("Cast", "longest", "total", to=TensorProto.INT32)
    skip = "SkipSimplifiedLayerNormalization"
    for layer in range(LAYERS):
        if added:
            nodes.put(skip, f"{row} {added} {layer}.before", f"{layer}.a - - {layer}.x", MS, **EPSILON)
            row = f"{layer}.x"
        else:
            nodes.put("SimplifiedLayerNormalization", f"{row} {layer}.before", f"{layer}.a", axis=-1, **EPSILON)
        parts = " ".join(_projections(nodes, layer))
        groups = {"num_heads": HEADS, "kv_num_heads": KV, "do_rotary": 1}
        made = f"{layer}.w {_presents(layer)}"
        nodes.put("GroupQueryAttention", f"{parts} {_pasts(layer)} lengths total cos sin", made, MS, **groups)
        nodes.put("MatMul", f"{layer}.w {layer}.o", f"{layer}.p")
        nodes.put(skip, f"{row} {layer}.p {layer}.between", f"{layer}.b - - {layer}.r", MS, **EPSILON)
        row, added = f"{layer}.r", _feed_forward(nodes, layer, f"{layer}.b")
    nodes.put(skip, f"{row} {added} last", "n", MS, **EPSILON)
    nodes.put("MatMul", "n head", "logits")
    return nodes


def _cache(name: str, length: str) -> list[onnx.ValueInfoProto]:
    axes = ["batch_size", KV, length, SIZE]
    names = [f"{name}.{layer}.{kind}" for layer in range(LAYERS) for kind in KINDS]
    return [helper.make_tensor_value_info(n, TensorProto.FLOAT, axes) for n in names]


def _numbers(*names: str) -> list[onnx.ValueInfoProto]:
    lengths = {"attention_mask": "total_sequence_length"}
    axes = {name: ["batch_size", lengths.get(name, "sequence_length")] for name in names}
    return [helper.make_tensor_value_info(n, TensorProto.INT64, a) for n, a in axes.items()]


def _outputs() -> list[onnx.ValueInfoProto]:
    axes = ["batch_size", "sequence_length", WORDS]
    logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, axes)
    return [logits, *_cache("present", "total_sequence_length")]


def _model(
    nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], held: Mapping[str, Array], opset: int
) -> onnx.ModelProto:
    constants = [numpy_helper.from_array(array, name) for name, array in held.items()]
    given = [*inputs, *_cache("past_key_values", "past_sequence_length")]
    graph = helper.make_graph(nodes, "decoder", given, _outputs(), constants)
    domains = [helper.make_opsetid("", opset), helper.make_opsetid(MS, 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def standard(held: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    """Return the decoder in ONNX's own ops."""
    return _model(_standard_nodes(), _numbers("input_ids", "position_ids"), held or weights(), 23)


def runtime(held: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    """Return the decoder in onnxruntime's fused ops."""
    found = {**(held or weights()), "one": np.int64([1]), "second": np.int64(1)}
    return _model(_runtime_nodes(), _numbers("input_ids", "attention_mask"), found, 21)


def merged(held: Mapping[str, Array] | None = None) -> onnx.ModelProto:
    """Return a model that has the decoder in both branches of an If, which the input `use_cache_branch` selects."""
    branches = {f"{side}_branch": _branch(side) for side in ("then", "else")}
    names = [value.name for value in _outputs()]
    node = helper.make_node("If", ["use_cache_branch"], names, name="if", **branches)
    selected = helper.make_tensor_value_info("use_cache_branch", TensorProto.BOOL, [1])
    return _model([node], [*_numbers("input_ids", "position_ids"), selected], held or weights(), 23)


def _branch(side: str) -> onnx.GraphProto:
    nodes = _standard_nodes()
    made = {name for node in nodes for name in node.output}
    for node in nodes:
        node.name = f"{node.name}/{side}"
        for names in (node.input, node.output):
            names[:] = [f"{n}/{side}" if n in made else n for n in names]
    ports = [helper.make_tensor_value_info(f"{v.name}/{side}", TensorProto.FLOAT, None) for v in _outputs()]
    return helper.make_graph(nodes, side, [], ports)


def empty_cache(samples: int = 1) -> dict[str, Array]:
    """Return the past of no tokens."""
    names = [f"past_key_values.{layer}.{kind}" for layer in range(LAYERS) for kind in KINDS]
    return {name: np.zeros((samples, KV, 0, SIZE), np.float32) for name in names}


def feeds(tokens: Array, past: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """Return all inputs of all styles but `use_cache_branch` for tokens [N, S] after a past."""
    found = dict(past) if past is not None else empty_cache(len(tokens))
    begin = next(iter(found.values())).shape[2]
    places = np.tile(np.arange(begin, begin + tokens.shape[1]), (len(tokens), 1))
    mask = np.ones((len(tokens), begin + tokens.shape[1]), np.int64)
    return {"input_ids": tokens, "position_ids": places, "attention_mask": mask, **found}


def text(samples: int, length: int, seed: int = 1) -> Array:
    """Return random tokens."""
    return np.random.default_rng(seed).integers(0, WORDS, (samples, length))
