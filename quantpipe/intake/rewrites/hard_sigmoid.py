"""clip(x + 3, 0, 6) / 6 and the like, written out in several nodes, are the op HardSigmoid: one table."""

from __future__ import annotations

import math

import onnx_ir as ir

from quantpipe.graph.edit import is_op, is_scalar, new_node, only_user, operand, scalar, take_place
from quantpipe.intake.rewrites.polynomial import argument

SLOPES = (1 / 6, 0.2)
"""Those of published definitions: torch's, and that of Keras and ONNX. A clip between 0 and 1 behind another line is
left as it is, since hardware has clips."""


def hard_sigmoid(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the HardSigmoid that ends in this clamp: clip(x·a·t + t/2, 0, t) / t.

    t is 6, or 1, which needs no division.
    """
    found = clamped(node.outputs[0]) if is_op(node, "Clip") else None
    if found is None or found[1] != 0.0:
        return
    line, _, top = found
    last = node
    if top != 1.0:
        divided = only_user(node.outputs[0], graph)
        if divided is None or not divides_by(divided, top):
            return
        last = divided
    for slope in SLOPES:
        data = argument(line, {1: slope * top, 0: top / 2})
        if data is not None:
            attributes = {"alpha": slope, "beta": 0.5}
            take_place(
                last.outputs[0], new_node(graph, last, "HardSigmoid", [data], name=last.name, attributes=attributes)
            )
            graph.remove(last, safe=True)
            return


def clamped(value: ir.Value | None) -> tuple[ir.Value, float, float] | None:
    """Return (v, low, high) where a value is clip(v, low, high), in one clamp or in two."""
    low, high = -math.inf, math.inf
    for _ in range(2):
        node = value.producer() if value is not None else None
        if node is None or not is_op(node, "Clip", "Relu") or node.inputs[0] is None:
            break
        bounds = (0.0, math.inf) if node.op_type == "Relu" else _bounds(node)
        if bounds is None or bounds[0] > high or bounds[1] < low:
            return None
        low, high, value = max(low, bounds[0]), min(high, bounds[1]), node.inputs[0]
    return None if value is None or math.inf in (-low, high) else (value, low, high)


def divides_by(node: ir.Node, divisor: float) -> bool:
    """Return whether a node divides one value by a number."""
    if is_op(node, "Div"):
        return is_scalar(node.inputs[1], divisor)
    return is_op(node, "Mul") and any(is_scalar(v, 1 / divisor) for v in node.inputs)


def _bounds(node: ir.Node) -> tuple[float, float] | None:
    found = []
    for port, missing in ((1, -math.inf), (2, math.inf)):
        given = operand(node, port)
        number = missing if given is None else scalar(given)
        if number is None:
            return None
        found.append(number)
    return found[0], found[1]
