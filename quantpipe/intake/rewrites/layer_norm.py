"""Write the nodes of (x - mean) / √(variance + ε) · gain + offset over the last axis as LayerNormalization.

Models before opset 17 have it in several nodes. The op is one node in float, whose gain and offset accuracy recovery
can change. Exporters of PyTorch divide the deviation by the root and multiply by the gain. JAX multiplies the
reciprocal root by the gain first. TensorFlow multiplies x by that product and subtracts the mean times it from the
offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import is_op, new_constant, new_node, only_user, take_place
from quantpipe.intake.rewrites import rows


@dataclass(frozen=True)
class _Found:
    """The last node of a normalization, and the vectors in it (None: one or zero)."""

    last: ir.Node
    gain: ir.Value | None
    offset: ir.Value | None = None


def layer_norm(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the LayerNormalization around this root of the variance: Sqrt, or Pow with the exponent -1/2.

    Gain and offset may be missing.
    """
    epsilon, data = _spread(node)
    width = data.shape[-1] if data is not None and data.shape is not None else None
    if data is None or not isinstance(width, int):
        return
    found = next(_ends(graph, node, data), None)
    if found is None:
        return
    name = found.last.name
    given = new_constant(graph, f"{name}_gain", np.ones(width, np.float32)) if found.gain is None else found.gain
    gain, offset = (rows.flat(graph, v) for v in (given, found.offset))
    inputs = [data, gain] if offset is None else [data, gain, offset]
    attributes = {"axis": -1, "epsilon": epsilon}
    take_place(
        found.last.outputs[0],
        new_node(graph, found.last, "LayerNormalization", inputs, name=name, attributes=attributes),
    )


def _spread(node: ir.Node) -> tuple[float, ir.Value | None]:
    """Return (ε, x) where a node is the root of variance(x) + ε, or one over it."""
    for epsilon, variance in rows.under_root(node):
        if (data := rows.varied(variance)) is not None:
            return epsilon, data
    return 0.0, None


def _ends(graph: ir.Graph, node: ir.Node, data: ir.Value) -> Iterator[_Found]:
    """Yield the matches that use the root, in the forms that exporters write."""
    root = rows.seen(graph, node.outputs[0])
    user = only_user(root, graph)
    if is_op(node, "Sqrt"):
        if user is None or not is_op(user, "Div", "Reciprocal"):
            return
        if is_op(user, "Div") and rows.number(user.inputs[0]) != 1.0:
            if user.inputs[1] is root and rows.is_column(root, data):
                yield from _quotient(graph, user, data)
            return
        inverse = rows.seen(graph, user.outputs[0])
    else:
        inverse = root
    yield from _multiplied(graph, inverse, data, None)
    factor = only_user(inverse, graph)
    gain = rows.vector(factor, inverse, data) if factor is not None and is_op(factor, "Mul") else None
    if factor is not None and gain is not None and rows.is_column(inverse, data):
        yield from _multiplied(graph, factor.outputs[0], data, gain)


def _quotient(graph: ir.Graph, node: ir.Node, data: ir.Value) -> Iterator[_Found]:
    """Yield matches of (x - mean) / root, with the gain before or after it."""
    yield from _from_deviation(graph, node, node.inputs[0], data, gain=None)


def _multiplied(graph: ir.Graph, factor: ir.Value, data: ir.Value, gain: ir.Value | None) -> Iterator[_Found]:
    """Yield the matches of (x - mean)·factor, or x·factor + (offset - mean·factor)."""
    if not rows.is_column(factor, data):
        return
    user = only_user(factor, graph)
    if user is not None and is_op(user, "Mul"):
        yield from _from_deviation(graph, user, rows.other(user, factor), data, gain=gain)
    readers = [use.node for use in factor.uses()]
    if len(readers) == 2 and factor not in graph.outputs and all(is_op(r, "Mul") for r in readers):
        for scaled, shift in (readers, readers[::-1]):
            mean = rows.other(shift, factor)
            if rows.other(scaled, factor) is data and rows.averaged(mean) is data and rows.is_column(mean, data):
                yield from _shifted(graph, scaled, shift, data, gain=gain)


def _from_deviation(
    graph: ir.Graph, node: ir.Node, deviation: ir.Value | None, data: ir.Value, *, gain: ir.Value | None
) -> Iterator[_Found]:
    """Yield the matches at the end of a normalization, after the normalized deviation `node`."""
    if rows.centred(deviation) is not data:
        before = rows.producer(deviation)
        if gain is not None or before is None or not is_op(before, "Mul"):
            return
        ports = [p for p in (0, 1) if rows.centred(before.inputs[p]) is data]
        gain = rows.as_vector(before.inputs[1 - ports[0]], data) if ports else None
        if gain is None:
            return
    last = node
    if gain is None:
        product = only_user(last.outputs[0], graph)
        gain = rows.vector(product, last.outputs[0], data) if product is not None and is_op(product, "Mul") else None
        last = product if product is not None and gain is not None else last
    total = only_user(last.outputs[0], graph)
    offset = rows.vector(total, last.outputs[0], data) if total is not None and is_op(total, "Add") else None
    yield _Found(total if total is not None and offset is not None else last, gain, offset)


def _shifted(
    graph: ir.Graph, scaled: ir.Node, shift: ir.Node, data: ir.Value, *, gain: ir.Value | None
) -> Iterator[_Found]:
    """Yield the matches of x·factor + (offset - mean·factor), or x·factor - mean·factor."""
    below, total = only_user(shift.outputs[0], graph), only_user(scaled.outputs[0], graph)
    if below is None or total is None or not is_op(below, "Sub") or below.inputs[1] is not shift.outputs[0]:
        return
    if below is total and below.inputs[0] is scaled.outputs[0]:
        yield _Found(total, gain)
        return
    offset = rows.as_vector(below.inputs[0], data)
    if offset is not None and is_op(total, "Add") and only_user(below.outputs[0], graph) is total:
        yield _Found(total, gain, offset)
