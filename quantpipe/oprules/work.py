"""Count the multiply-accumulates of ops that have no row in OP_RULES.

These are recurrent cells, attention, Einsum, deformable convolutions, and products that are integers already. They stay
in float here, and count in a model's work: the integer share is a share of all of it. Shapes are shapes of one sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod

from quantpipe.graph.op_tables import RECURRENT
from quantpipe.graph.view import MS_DOMAIN, Graph, Node
from quantpipe.oprules.recurrent_loop import multiplied
from quantpipe.oprules.table import OP_RULES, float_reason, rule_of
from quantpipe.types import ReasonKind

Shape = tuple[int, ...]
Work = Callable[[Node, Graph], int]


def multiply_accumulates(node: Node, graph: Graph) -> int:
    """Return the multiply-accumulates of a node per sample.

    The result is 0 for ops that form no sum of products, and for unknown ops (`is_unknown_work`).
    """
    rule = rule_of(node)
    if rule is not None:
        return rule.macs(node, graph)
    work = MICROSOFT.get(node.op) if node.domain == MS_DOMAIN else STANDARD.get(node.op)
    return work(node, graph) if work is not None else 0


def is_unknown_work(node: Node, graph: Graph) -> bool:
    """Return whether a node may multiply and add an amount that is not known.

    It does where it holds graphs that do, but for loops that multiply by constants alone, or where its op is in no
    table.
    """
    if node.has_body:
        inside = sum(count for op, count in node.body_ops.items() if op in _MULTIPLYING)
        return inside > len(multiplied(node, graph))
    counted = node.op in (MICROSOFT if node.domain == MS_DOMAIN else STANDARD)
    return rule_of(node) is None and not counted and float_reason(node).kind is ReasonKind.UNKNOWN_OP


def _shape(node: Node, graph: Graph, port: int) -> Shape:
    """Return the shape of an input; empty where it is absent."""
    name = node.inputs[port] if port < len(node.inputs) else ""
    return tuple(graph.shapes.get(name, ())) if name else ()


def _result(node: Node, graph: Graph, port: int = 0) -> Shape:
    name = node.outputs[port] if port < len(node.outputs) else ""
    return tuple(graph.shapes.get(name, ())) if name else ()


def _recurrent(node: Node, graph: Graph) -> int:
    """Count products of the input and the state with the weights of all gates and directions, for each step."""
    steps = prod(_shape(node, graph, 0)[:2])
    return steps * sum(prod(shape) for port in (1, 2) if (shape := _shape(node, graph, port)))


def _loop(node: Node, graph: Graph) -> int:
    """Count products of a state with the constants that the body reads, for each step."""
    first = len(node.inputs) - int(node.attr("num_scan_inputs", 0))
    return prod(_shape(node, graph, first)[:2]) * sum(multiplied(node, graph).values())


def _convolution(weight: int) -> Work:
    def work(node: Node, graph: Graph) -> int:
        return prod(_result(node, graph)) * prod(_shape(node, graph, weight)[1:])

    return work


def _dense(node: Node, graph: Graph) -> int:
    """Count products over the axis that both operands share."""
    data = _shape(node, graph, 0)
    return prod(_result(node, graph)) * (data[-2 if node.attr("transA", 0) else -1] if data else 0)


def _in_blocks(node: Node, graph: Graph) -> int:
    return prod(_result(node, graph)) * int(node.attr("K", 0))


def _einsum(node: Node, graph: Graph) -> int:
    """Count the combinations of all indices, times the number of operands less one."""
    terms = str(node.attr("equation", "")).replace(" ", "").split("->")[0].split(",")
    sizes: dict[str, int] = {}
    for port, term in enumerate(terms):
        shape = _shape(node, graph, port)
        head, dots, tail = term.partition("...")
        free = max(len(shape) - len(head) - len(tail), 0) if dots else 0
        # The axes behind dots are the last ones that all operands have in common.
        labels = [*head, *(f"...{free - i}" for i in range(free)), *tail]
        for label, size in zip(labels, shape, strict=False):
            sizes[label] = max(size, sizes.get(label, 1))
    return prod(sizes.values()) * (len(terms) - 1)


def _attention(node: Node, graph: Graph) -> int:
    """Count scores of every query by every key, and the weighted values: `[…, L, d]`, heads apart or joined."""
    keys = _shape(node, graph, 1)
    length = (keys[-2] if keys else 0) + (past[-2] if (past := _shape(node, graph, 4)) else 0)
    return length * (prod(_shape(node, graph, 0)) + prod(_result(node, graph)))


def _multi_head(node: Node, graph: Graph) -> int:
    """Count onnxruntime's op: keys `[N, L, …]`, or `[N, heads, L, d]`; without them one tensor holds all three."""
    keys = _shape(node, graph, 1) or _shape(node, graph, 0)
    past = _shape(node, graph, 6)
    length = (keys[2 if len(keys) == 4 else 1] if len(keys) > 1 else 0) + (past[2] if len(past) == 4 else 0)
    return 2 * length * prod(_result(node, graph))


def _projected(past: int) -> Work:
    """Return the count of onnxruntime's attention that makes queries, keys and values by a weight `[in, q + k + v]`."""

    def work(node: Node, graph: Graph) -> int:
        data, weight, kept = (_shape(node, graph, port) for port in (0, 1, past))
        length = (data[1] if len(data) > 1 else 0) + (kept[-2] if kept else 0)
        return prod(data) * (weight[-1] if weight else 0) + 2 * length * prod(_result(node, graph))

    return work


def _grouped_query(node: Node, graph: Graph) -> int:
    """Count all past and new keys: `[N, heads, L, d]`, its second result."""
    present = _result(node, graph, 1)
    return 2 * (present[2] if len(present) == 4 else 0) * prod(_result(node, graph))


_INTEGER: Mapping[str, Work] = {
    "ConvInteger": _convolution(1),
    "QLinearConv": _convolution(3),
    "MatMulInteger": _dense,
    "QLinearMatMul": _dense,
}

STANDARD: Mapping[str, Work] = {
    **dict.fromkeys(RECURRENT, _recurrent),
    "Scan": _loop,
    "DeformConv": _convolution(1),
    "Einsum": _einsum,
    "Attention": _attention,
    **_INTEGER,
}
"""Ops of ONNX."""

MICROSOFT: Mapping[str, Work] = {
    **_INTEGER,
    **dict.fromkeys(("QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMul", "FusedGemm"), _dense),
    "FusedConv": _convolution(1),
    "NhwcFusedConv": _convolution(1),
    "MatMulNBits": _in_blocks,
    "DynamicQuantizeLSTM": _recurrent,
    "Attention": _projected(4),
    "QAttention": _projected(8),
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped_query,
}
"""onnxruntime's own."""

_MULTIPLYING = frozenset(op for op, rule in OP_RULES.items() if rule.weight is not None).union(STANDARD, MICROSOFT)
