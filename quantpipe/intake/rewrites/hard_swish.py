"""x · clip(x + 3, 0, 6) / 6, written out in several nodes, is the op HardSwish: one rounding in place of four."""

from __future__ import annotations

import math

import onnx_ir as ir

from quantpipe.graph.edit import CLOSE, attribute, is_op, new_node, only_user, take_place
from quantpipe.intake.rewrites.hard_sigmoid import clamped, divides_by
from quantpipe.intake.rewrites.polynomial import argument


def hard_swish(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the HardSwish that ends in this Mul of x by its gate.

    The forms are (x·clip(x + 3, 0, 6))/6, (x/6)·clip(x + 3, 0, 6), and x·HardSigmoid(x; 1/6, 1/2). `hard_sigmoid` makes
    the last one of x·(clip(x + 3, 0, 6)/6).
    """
    if not is_op(node, "Mul") or len(node.inputs) != 2:
        return
    for port in (0, 1):
        factor, gate = node.inputs[1 - port], node.inputs[port]
        if factor is None or gate is None:
            continue
        if _is_hard_sigmoid(gate.producer(), factor):
            _replace(graph, node, factor, [node])
            return
        data = _gated(gate)
        if data is None:
            continue
        divided = only_user(node.outputs[0], graph)
        if factor is data and divided is not None and divides_by(divided, 6.0):
            _replace(graph, divided, data, [divided, node])
            return
        if argument(factor, {1: 1 / 6}) is data:
            _replace(graph, node, data, [node])
            return


def _replace(graph: ir.Graph, last: ir.Node, data: ir.Value, removed: list[ir.Node]) -> None:
    take_place(last.outputs[0], new_node(graph, last, "HardSwish", [data], name=last.name))
    graph.remove(removed, safe=True)


def _is_hard_sigmoid(node: ir.Node | None, data: ir.Value) -> bool:
    if node is None or not is_op(node, "HardSigmoid") or node.inputs[0] is not data:
        return False
    slope, offset = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return math.isclose(slope, 1 / 6, rel_tol=CLOSE) and math.isclose(offset, 0.5, rel_tol=1e-6)


def _gated(value: ir.Value) -> ir.Value | None:
    """Return x where a value is clip(x + 3, 0, 6), else None."""
    found = clamped(value)
    return argument(found[0], {1: 1.0, 0: 3.0}) if found is not None and found[1:] == (0.0, 6.0) else None
