"""x · clip(x + 3, 0, 6) / 6, written out in several nodes, is the op HardSwish: one rounding in place of four."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from quantpipe.graph.rewrites.tools import attribute, constant, is_op, new_node, only_user, scalar, take_place


def hard_swish(graph: ir.Graph, node: ir.Node) -> None:
    """Starts at the Mul of x by its gate: (x·clip(x + 3, 0, 6))/6, or x·HardSigmoid(x; 1/6, 1/2)."""
    if not is_op(node, "Mul") or len(node.inputs) != 2:
        return
    for port in (0, 1):
        data, gate = node.inputs[1 - port], node.inputs[port]
        if data is None or gate is None or gate.producer() is None:
            continue
        if _is_hard_sigmoid(gate.producer(), data):
            _replace(graph, node, data, [node])
            return
        sixth = _divided(graph, node)
        if sixth is not None and _is_clipped(gate.producer(), data):
            _replace(graph, sixth, data, [sixth, node])
            return
        inner = gate.producer()
        if inner is not None and _by_sixth(inner) and _is_clipped(_data_of(inner), data):
            _replace(graph, node, data, [node])
            return


def _replace(graph: ir.Graph, last: ir.Node, data: ir.Value, removed: list[ir.Node]) -> None:
    take_place(last.outputs[0], new_node(graph, last, "HardSwish", [data], last.name))
    graph.remove(removed, safe=True)


def _is_hard_sigmoid(node: ir.Node | None, data: ir.Value) -> bool:
    if node is None or not is_op(node, "HardSigmoid") or node.inputs[0] is not data:
        return False
    slope, offset = attribute(node, "alpha", 0.2), attribute(node, "beta", 0.5)
    return math.isclose(slope, 1 / 6, rel_tol=1e-4) and math.isclose(offset, 0.5, rel_tol=1e-6)


def _is_clipped(node: ir.Node | None, data: ir.Value) -> bool:
    """clip(x + 3, 0, 6)."""
    if node is None or not is_op(node, "Clip") or len(node.inputs) != 3:
        return False
    if scalar(node.inputs[1]) != 0.0 or scalar(node.inputs[2]) != 6.0 or node.inputs[0] is None:
        return False
    add = node.inputs[0].producer()
    if add is None or not is_op(add, "Add"):
        return False
    return any(add.inputs[p] is data and _all(add.inputs[1 - p], 3.0) for p in (0, 1))


def _divided(graph: ir.Graph, node: ir.Node) -> ir.Node | None:
    """The node behind that divides by six."""
    follower = only_user(node.outputs[0], graph)
    return follower if follower is not None and _by_sixth(follower) else None


def _by_sixth(node: ir.Node) -> bool:
    if is_op(node, "Div"):
        return _all(node.inputs[1], 6.0)
    return is_op(node, "Mul") and any(_all(v, 1 / 6) for v in node.inputs)


def _data_of(node: ir.Node) -> ir.Node | None:
    data = next((v for v in node.inputs if v is not None and v.const_value is None), None)
    return data.producer() if data is not None else None


def _all(value: ir.Value | None, wanted: float) -> bool:
    array = constant(value)
    return array is not None and array.size == 1 and bool(np.isclose(array.reshape(()), wanted, rtol=1e-5))
