"""Nodes that stay in float, as TFLite's float operators: what comes behind the last integers, such as a Softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantpipe.graph.view import Node
from quantpipe.realize.tflite import moves
from quantpipe.realize.tflite.layout import Order, plain, turned
from quantpipe.realize.tflite.walk import Walk
from quantpipe.types import Form, Kernel

RealWriter = Callable[[Walk, Node], None]
"""Writes one float node, and keeps its result."""

NO_KERNEL: Any = None

ELEMENTWISE: Mapping[str, tuple[str, str | None]] = {
    "Add": ("ADD", "AddOptions"),
    "Sub": ("SUB", "SubOptions"),
    "Mul": ("MUL", "MulOptions"),
    "Div": ("DIV", "DivOptions"),
    "Max": ("MAXIMUM", "MaximumMinimumOptions"),
    "Min": ("MINIMUM", "MaximumMinimumOptions"),
    "Sigmoid": ("LOGISTIC", None),
    "Tanh": ("TANH", None),
    "Relu": ("RELU", None),
    "Exp": ("EXP", "ExpOptions"),
    "Log": ("LOG", None),
    "Sqrt": ("SQRT", None),
    "Abs": ("ABS", "AbsOptions"),
    "Neg": ("NEG", "NegOptions"),
}


def elementwise(walk: Walk, node: Node) -> None:
    """Write an operator over elements."""
    op, kind = ELEMENTWISE[node.op]
    output = node.outputs[0]
    rank = len(walk.graph.shapes[output])
    known = [o for t in node.inputs for o in walk.orders(t) if len(o) == rank]
    order = known[0] if known else plain(rank)
    inputs = [_aligned(walk, t, order) for t in node.inputs]
    result = walk.make(output, order, Form.FLOAT)
    walk.file.operator(op, inputs, [result], 1, kind=kind)
    walk.keep(output, Form.FLOAT, order, result)


def _aligned(walk: Walk, tensor: str, order: Order) -> int:
    shape, rank = walk.graph.shapes[tensor], len(order)
    if len(shape) == rank:
        return walk.get(tensor, order, Form.FLOAT)
    if not walk.graph.is_constant(tensor):
        raise walk.refused("operands that are computed must have as many axes as the result")
    whole = (*[1] * (rank - len(shape)), *shape)
    value = walk.graph.constant(tensor)
    return walk.file.constant(f"{tensor} (aligned)", turned(value.reshape(whole), order), value.dtype.name)


def softmax(walk: Walk, node: Node) -> None:
    """Write Softmax; TFLite's goes along the last axis in memory."""
    output, rank = node.outputs[0], len(walk.graph.shapes[node.outputs[0]])
    axis = node.attr("axis", -1) % rank
    found = [o for o in walk.orders(node.inputs[0]) if o[-1] == axis]
    order = found[0] if found else (*(a for a in range(rank) if a != axis), axis)
    value = walk.get(node.inputs[0], order, Form.FLOAT)
    result = walk.make(output, order, Form.FLOAT)
    walk.file.operator("SOFTMAX", [value], [result], 1, kind="SoftmaxOptions", beta=1.0)
    walk.keep(output, Form.FLOAT, order, result)


def concat(walk: Walk, node: Node) -> None:
    """Write Concat."""
    output = node.outputs[0]
    order = next((o for t in node.inputs for o in walk.orders(t)), plain(len(walk.graph.shapes[output])))
    inputs = [walk.get(t, order, Form.FLOAT) for t in node.inputs]
    result = walk.make(output, order, Form.FLOAT)
    axis = order.index(node.attr("axis") % len(order))
    walk.file.operator("CONCATENATION", inputs, [result], 1, kind="ConcatenationOptions", axis=axis)
    walk.keep(output, Form.FLOAT, order, result)


REDUCTIONS: Mapping[str, str] = {
    "ReduceMean": "MEAN", "ReduceSum": "SUM", "ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN",
}  # fmt: skip


def reduced(walk: Walk, node: Node) -> None:
    """Write a mean, a sum or an extreme over some axes."""
    source, output = node.inputs[0], node.outputs[0]
    rank, keep = len(walk.graph.shapes[source]), bool(node.attr("keepdims", 1))
    given = moves.numbers_of(walk, node, 1, "axes")
    axes = [a % rank for a in given] if given is not None else list(range(rank))
    if walk.free and 0 in axes:
        raise walk.refused("it reduces over the samples of a batch")
    order = next((o for o in walk.orders(source) if keep), plain(rank))
    value, number = (
        walk.get(source, order, Form.FLOAT),
        walk.numbers(f"{node.name}/axes", [order.index(a) for a in axes]),
    )
    made = order if keep else plain(len(walk.graph.shapes[output]))
    result = walk.make(output, made, Form.FLOAT)
    walk.file.operator(REDUCTIONS[node.op], [value, number], [result], 2, kind="ReducerOptions", keepDims=keep)
    walk.keep(output, Form.FLOAT, made, result)


def _in_float(write: Callable[[Walk, Node, Kernel, Form], None]) -> RealWriter:
    return lambda walk, node: write(walk, node, NO_KERNEL, Form.FLOAT)


WRITERS: Mapping[str, RealWriter] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _in_float(moves.reshape)),
    "Transpose": _in_float(moves.transpose),
    "Identity": _in_float(moves.same),
    "Softmax": softmax,
    "Concat": concat,
    **dict.fromkeys(REDUCTIONS, reduced),
}
