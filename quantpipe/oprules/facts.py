"""The small per-op functions that the rows of OP_RULES are made of."""

from __future__ import annotations

from math import prod

import numpy as np

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.lookup import parameter_axis
from quantpipe.oprules.rule import Facts

INF = float("inf")

LONGEST_SUM = 1 << 15
"""The terms of a sum whose length the model leaves open, such as positions of a cache: int32 holds them of 8 bits."""


def _input(node: Node, port: int) -> str:
    return node.inputs[port] if port < len(node.inputs) else ""


def conv_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a convolution cannot run in integers (its weight or bias is no constant), or None."""
    if not graph.is_constant(_input(node, 1)):
        return "its weight is computed at run time, not constant"
    bias = _input(node, 2)
    if bias and not graph.is_constant(bias):
        return "its bias is computed at run time, not constant"
    return None


def conv_macs(node: Node, graph: Graph) -> int:
    """Return the multiply-accumulates of a convolution per sample."""
    weight = graph.shapes[node.inputs[1]]
    return prod(graph.shapes[node.outputs[0]]) * prod(weight[1:])


def conv_facts(node: Node, graph: Graph) -> Facts:
    """Return the kind of groups (`1`, `depthwise`, `grouped`) and the widest pad of a convolution."""
    group = int(node.attr("group", 1))
    channels = graph.shapes[node.inputs[0]][1]
    kind = "1" if group == 1 else "depthwise" if group == channels else "grouped"
    return {"group": kind, "pad_max": widest_pad(node, graph)}


def widest_pad(node: Node, graph: Graph) -> int:
    """Return the maximum number of elements added at one side of a map, also where `auto_pad` decides it."""
    if node.attr("auto_pad", "NOTSET") not in ("SAME_UPPER", "SAME_LOWER"):
        return int(max(node.attr("pads", [0]), default=0))
    size, out = graph.shapes[node.inputs[0]][2:], graph.shapes[node.outputs[0]][2:]
    kernel = node.attr("kernel_shape") or graph.shapes[node.inputs[1]][2:]
    steps, holes = node.attr("strides", [1] * len(size)), node.attr("dilations", [1] * len(size))
    whole = [(o - 1) * s + (k - 1) * d + 1 - n for n, o, k, s, d in zip(size, out, kernel, steps, holes, strict=True)]
    return int(max([0, *whole]) + 1) // 2


def pad_facts(node: Node, graph: Graph) -> Facts:
    """Return the widest pad of a Pad; nothing where it is computed at run time."""
    given = _input(node, 1)
    if given and not graph.is_constant(given):
        return {}
    return {"pad_max": int(np.max(graph.constant(given) if given else node.attr("pads", [0]), initial=0))}


def gemm_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a Gemm is no product of an activation with a constant matrix plus a bias per channel, or None."""
    if not graph.is_constant(_input(node, 1)):
        return "both operands are activations"
    if node.attr("transA", 0) or node.attr("alpha", 1.0) != 1.0:
        return "transA or alpha is set"
    bias = _input(node, 2)
    if not bias:
        return None
    if not graph.is_constant(bias) or node.attr("beta", 1.0) != 1.0:
        return "its bias is computed at run time or scaled by beta"
    if prod(graph.shapes[bias]) != graph.shapes[node.outputs[0]][-1]:
        return "its bias is not one value per output channel"
    return None


def gemm_axis(node: Node, graph: Graph) -> int:
    """Return the axis of output features in the weight of a Gemm."""
    return 0 if node.attr("transB", 0) else 1


def matmul_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a MatMul cannot run in integers, or None."""
    weight = _input(node, 1)
    if graph.is_constant(_input(node, 0)):
        return "its left side is constant"
    if min(len(graph.shapes[t]) for t in node.inputs) < 2:
        return "one side is a vector"
    return "its constant is not a matrix" if graph.is_constant(weight) and len(graph.shapes[weight]) != 2 else None


def product_terms(node: Node, graph: Graph) -> int:
    """Return how many terms a sum of a product of two activations has at most."""
    a, b = node.inputs[:2]
    size = int(graph.shapes[a][-1])
    return max(size, LONGEST_SUM) if graph.is_open(a, -1) or graph.is_open(b, -2) else size


def matmul_facts(node: Node, graph: Graph) -> Facts:
    """Return whether a MatMul multiplies by a `weight` or multiplies two `activations`."""
    return {"operands": "weight" if graph.is_constant(node.inputs[1]) else "activations"}


def matmul_axis(node: Node, graph: Graph) -> int:
    """Return the axis of output features in the weight of a MatMul, which is always 1."""
    return 1


def dense_macs(node: Node, graph: Graph) -> int:
    """Return the multiply-accumulates of a matrix product per sample."""
    return prod(graph.shapes[node.outputs[0]]) * graph.shapes[node.inputs[0]][-1]


def sum_refuses(node: Node, graph: Graph) -> str | None:
    """Return why an addition cannot run in integers (both operands are constants), or None."""
    return "it adds two constants" if all(graph.is_constant(t) for t in node.inputs) else None


def global_count(node: Node, graph: Graph) -> int:
    """Return the number of elements that a global average is taken over."""
    return prod(graph.shapes[node.inputs[0]][2:])


def global_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a global average cannot run in integers (its number of elements varies with the sample), or None."""
    varies = node.inputs[0] in graph.varying
    return "it averages another number of elements for another sample" if varies else None


def pool_unasked(node: Node, graph: Graph) -> str | None:
    """Return why windows of an average pool differ in size (at the border of the map), or None."""
    padded = any(node.attr("pads", [0])) or node.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID")
    if padded and not node.attr("count_include_pad", 0):
        return "its window counts fewer elements at the border (pads without count_include_pad)"
    return "ceil_mode makes its border windows smaller" if node.attr("ceil_mode", 0) else None


def pool_asked(node: Node, graph: Graph) -> str | None:
    """Return why the sums of an average pool are not divided one by one, or None."""
    if node.inputs[0] in graph.varying:
        return "the map has another size for another sample, and so have the windows at its border"
    held = {} if graph.imported is None else graph.imported.kept_tensors
    pair = [held[t].grid for t in (node.inputs[0], node.outputs[0]) if t in held]
    if len(pair) == 2 and not pair[0].same(pair[1]):
        return "its quantized file stores its result at another scale than its input"
    return "it averages over three axes" if len(graph.shapes[node.inputs[0]]) > 4 else None


def pool_count(node: Node, graph: Graph) -> int:
    """Return the number of elements in the window of a pool."""
    return prod(node.attr("kernel_shape", [1]))


def global_facts(node: Node, graph: Graph) -> Facts:
    """Return the size of the window of a global average."""
    return {"window": global_count(node, graph)}


def pool_facts(node: Node, graph: Graph) -> Facts:
    """Return the size of the window and the widest pad of a pool."""
    return {"window": pool_count(node, graph), "pad_max": widest_pad(node, graph)}


def max_pool_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a MaxPool cannot run in integers (its indices are used), or None."""
    return "its indices are used" if len(node.outputs) > 1 and node.outputs[1] else None


def top_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a TopK cannot run in integers (where its positions are read, its order is open), or None."""
    positions = node.outputs[1] if len(node.outputs) > 1 else ""
    if positions in graph.consumers or positions in graph.output_names:
        return "its positions are read, which are no values with a scale"
    return None if node.attr("sorted", 1) else "the order of its results is open (sorted=0)"


def scatter_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a ScatterND or ScatterElements cannot run in integers (it combines new values with old), or None."""
    how = node.attr("reduction", "none")
    return None if how == "none" else f"it combines new values with those in their places (reduction={how})"


def pad_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a Pad cannot run in integers (it pads with another constant than zero), or None."""
    if node.attr("mode", "constant") != "constant":
        return None
    value = _input(node, 2)
    if not value:
        return None
    if not graph.is_constant(value) or np.any(graph.constant(value) != 0):
        return "it pads with something else than zero"
    return None


def gather_unasked(node: Node, graph: Graph) -> str | None:
    """Return why a Gather moves no activations (it reads rows of a constant table), or None.

    In integers all rows of the table have the one scale of the result, which costs precision. A device that needs it
    requests it by `when: {operands: weight}`.
    """
    return "it looks rows up in a constant table" if graph.is_constant(_input(node, 0)) else None


def gather_facts(node: Node, graph: Graph) -> Facts:
    """Return whether a Gather looks rows up in a constant table (`weight`) or moves `activations`."""
    return {"operands": "weight" if graph.is_constant(_input(node, 0)) else "activations"}


def division_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a quotient cannot run in integers, or None."""
    if all(graph.is_constant(t) for t in node.inputs):
        return "it divides two constants"
    divisor = _input(node, 1)
    if graph.is_constant(divisor) and np.any(graph.constant(divisor) == 0):
        return "its divisor is constant and holds a zero"
    return None


def gathered_table(node: Node, graph: Graph) -> str | None:
    """Return the constant `[R, …]` of float32 whose rows a Gather looks up, or None."""
    table = _input(node, 0)
    if not graph.is_constant(table) or int(node.attr("axis", 0)) != 0:
        return None
    tensor = graph.constant_tensor(table)
    return table if tensor.dtype.numpy() == np.float32 and len(tensor.shape) >= 2 else None


def relu_bounds(node: Node, graph: Graph) -> tuple[float, float]:
    """Return the real bounds of a Relu: 0 and infinity."""
    return 0.0, INF


def clip_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a Clip cannot run in integers (its bounds are computed at run time), or None."""
    bounds = [t for t in node.inputs[1:] if t]
    return None if all(graph.is_constant(t) for t in bounds) else "its bounds are computed at run time"


def clip_bounds(node: Node, graph: Graph) -> tuple[float, float]:
    """Return the real bounds of a Clip; an absent bound is infinite."""
    low, high = _input(node, 1), _input(node, 2)
    return (
        float(graph.constant(low).reshape(())) if low else -INF,
        float(graph.constant(high).reshape(())) if high else INF,
    )


def transpose_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a transposed convolution cannot run in integers, or None."""
    if node.attr("group", 1) != 1:
        return "its channels are in groups"
    return conv_refuses(node, graph)


def transpose_macs(node: Node, graph: Graph) -> int:
    """Return the multiply-accumulates of a transposed convolution per sample."""
    return prod(graph.shapes[node.inputs[0]]) * prod(graph.shapes[node.inputs[1]][1:])


def transpose_axis(node: Node, graph: Graph) -> int:
    """Return the axis of output channels in the weight of a transposed convolution, which is always 1."""
    return 1


def resize_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a Resize cannot run in integers (it interpolates instead of copying the nearest element), or None."""
    mode = node.attr("mode", "nearest")
    return None if mode == "nearest" else f"its {mode} interpolation mixes neighbours by real weights"


def lookup_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a function cannot be a table (it is not of exactly one activation), or None."""
    if any(t and not graph.is_constant(t) for t in node.inputs[1:]):
        return "its second operand is computed at run time"
    try:
        parameter_axis(node, graph)
    except ValueError:
        return "its constant varies along several axes"
    return "its input is constant" if graph.is_constant(_input(node, 0)) else None


def extreme_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a Max or Min cannot run in integers (it has not exactly two operands), or None."""
    return "it has another number of operands than two" if len(node.inputs) != 2 else None
