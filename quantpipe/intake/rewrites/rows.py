"""Statistics of the last axis: which values are means of it, and the variance in the forms that exporters write."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, only_user, rank

VIEWS = ("Unsqueeze", "Reshape", "Expand", "Identity")
MOST_VIEWS = 4


def producer(value: ir.Value | None) -> ir.Node | None:
    """Return the node that makes a value; None for inputs, constants and an absent value."""
    return None if value is None else value.producer()


def number(value: ir.Value | None) -> float | None:
    """Return a constant with one element, of any type of number."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 and array.dtype.kind in "fi" else None


def bare(value: ir.Value | None) -> ir.Value | None:
    """Return a value without the views above it that add a last axis of length one, or repeat along it.

    JAX writes a mean that keeps its axis with such views.
    """
    for _ in range(MOST_VIEWS):
        node = producer(value)
        if node is None or not is_op(node, *VIEWS) or not _keeps_rows(node):
            break
        value = node.inputs[0]
    return value


def _keeps_rows(node: ir.Node) -> bool:
    """Return whether a view keeps the order of rows: [..., C] to itself, [...] to [..., 1], [..., 1] to [..., C]."""
    if is_op(node, "Identity"):
        return True
    before, after = (None if v is None else v.shape for v in (node.inputs[0], node.outputs[0]))
    if before is None or after is None:
        return False
    if len(after) == len(before) + 1:
        return not is_op(node, "Expand") and after[-1] == 1 and _alike(list(before), list(after)[:-1])
    if len(after) != len(before) or not is_op(node, "Expand", "Reshape"):
        return False
    widened = is_op(node, "Expand") and before[-1] == 1
    return _alike(list(before)[:-1], list(after)[:-1]) and (widened or before[-1] == after[-1])


def _alike(before: Sequence[object], after: Sequence[object]) -> bool:
    """Return whether two shapes are equal but for names of free axes, of which at most one may differ."""
    nameless = ir.SymbolicDim(None)
    differing = [(a, b) for a, b in zip(before, after, strict=True) if a != b or a == nameless]
    return len(differing) <= 1 and not any(isinstance(a, int) and isinstance(b, int) for a, b in differing)


def is_column(value: ir.Value | None, data: ir.Value) -> bool:
    """Return whether a statistic has as many axes as `data`, so that it meets its rows.

    With fewer axes it would be broadcast along another one.
    """
    axes = rank(value)
    return axes is not None and axes == rank(data)


def averaged(value: ir.Value | None) -> ir.Value | None:
    """Return x where a value is the mean of x over its last axis alone, else None."""
    value = bare(value)
    node = producer(value)
    if node is None:
        return None
    if is_op(node, "ReduceMean"):
        return node.inputs[0] if _over_last(node) else None
    if not is_op(node, "Div", "Mul"):
        return None
    for port in (0,) if node.op_type == "Div" else (0, 1):
        total, factor = producer(bare(node.inputs[port])), number(node.inputs[1 - port])
        if total is None or not factor or not is_op(total, "ReduceSum") or not _over_last(total):
            continue
        width = _width(total.inputs[0])
        wanted = width if node.op_type == "Div" or width is None else 1 / width
        if wanted is not None and math.isclose(factor, wanted, rel_tol=1e-5):
            return total.inputs[0]
    return None


def _over_last(node: ir.Node) -> bool:
    axes = rank(node.inputs[0])
    given = constant(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
    return axes is not None and given is not None and [int(a) % axes for a in given] == [axes - 1]


def _width(value: ir.Value | None) -> int | None:
    size = value.shape[-1] if value is not None and value.shape is not None and len(value.shape) else None
    return size if isinstance(size, int) else None


def under_root(node: ir.Node) -> Iterator[tuple[float, ir.Value | None]]:
    """Yield (ε, value) if a node is the root of value + ε, or one over it; ε may be either operand."""
    powered = is_op(node, "Pow") and number(node.inputs[1]) == -0.5
    add = producer(bare(node.inputs[0])) if powered or is_op(node, "Sqrt") else None
    if add is None or not is_op(add, "Add"):
        return
    for port in (0, 1):
        epsilon = number(add.inputs[1 - port])
        if epsilon is not None and epsilon >= 0:
            yield epsilon, add.inputs[port]


def squared(value: ir.Value | None) -> ir.Value | None:
    """Return v where a value is v², else None."""
    node = producer(value)
    if is_op(node, "Mul") and node is not None and bare(node.inputs[0]) is bare(node.inputs[1]):
        return node.inputs[0]
    if is_op(node, "Pow") and node is not None and number(node.inputs[1]) == 2.0:
        return node.inputs[0]
    return None


def centred(value: ir.Value | None) -> ir.Value | None:
    """Return x where a value is x - mean(x), else None."""
    node = producer(value)
    if node is None or not is_op(node, "Sub"):
        return None
    data = node.inputs[0]
    found = averaged(node.inputs[1])
    return data if data is not None and found is data and is_column(node.inputs[1], data) else None


def varied(value: ir.Value | None) -> ir.Value | None:
    """Return x where a value is the variance of x over its last axis, else None.

    The forms are mean((x - mean)²) and mean(x²) - mean², which may be clamped at zero.
    """
    value = bare(value)
    squares = averaged(value)
    if squares is not None:
        return centred(squared(squares))
    node = producer(value)
    if node is not None and (is_op(node, "Relu") or _at_zero(node)):
        node = producer(bare(node.inputs[0]))
    if node is None or not is_op(node, "Sub"):
        return None
    data, mean = squared(averaged(node.inputs[0])), squared(bare(node.inputs[1]))
    matches = data is not None and averaged(mean) is data and rank(node.inputs[0]) == rank(node.inputs[1])
    return data if matches else None


def _at_zero(node: ir.Node) -> bool:
    """Return whether a node is a clip at zero from below alone."""
    bounded = is_op(node, "Clip") and len(node.inputs) > 1 and number(node.inputs[1]) == 0.0
    return bounded and (len(node.inputs) < 3 or node.inputs[2] is None)


def seen(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """Return a value after the views that are its only readers."""
    user = only_user(value, graph)
    while user is not None and bare(user.outputs[0]) is bare(value) and is_op(user, *VIEWS):
        value, user = user.outputs[0], only_user(user.outputs[0], graph)
    return value


def other(node: ir.Node, value: ir.Value) -> ir.Value | None:
    """Return the operand of a node with two that is not this one."""
    return node.inputs[1] if node.inputs[0] is value else node.inputs[0]


def vector(node: ir.Node | None, value: ir.Value, data: ir.Value) -> ir.Value | None:
    """Return the vector as long as the last axis that a node joins a value with, or None."""
    return None if node is None else as_vector(other(node, value), data)


def as_vector(value: ir.Value | None, data: ir.Value) -> ir.Value | None:
    """Return a value that is a constant along the last axis alone, or None."""
    array = constant(value)
    if array is None or array.dtype != np.float32 or data.shape is None or not 1 <= array.ndim <= len(data.shape):
        return None
    return value if array.shape[-1] == array.size == data.shape[-1] else None


def flat(graph: ir.Graph, value: ir.Value | None) -> ir.Value | None:
    """Return a constant with one axis; what has one, and what is no constant, as it is."""
    array = constant(value)
    if value is None or array is None or array.ndim == 1:
        return value
    return new_constant(graph, f"{value.name}_row", array.reshape(-1))
