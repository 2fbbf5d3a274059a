"""Attentions as exporters write them: one factor of the scores, and no search for NaN after a Softmax."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import constant, is_op, new_constant, new_node, scalar, take_place

MASKING = ("Add", "Where", "Cast", "Expand", "Reshape", "Slice", "Unsqueeze")
"""Ops between a Softmax and the number that masks its scores."""


def factor_of_queries(graph: ir.Graph, node: ir.Node) -> None:
    """Write (a · c) x (b · d) as (a · cd) x b: exporters divide the factor of the scores between queries and keys.

    Then the product reads keys as a cache holds them, and no step scales all earlier keys again.
    """
    if not is_op(node, "MatMul"):
        return
    queries, own = _scaled(node.inputs[0])
    keys, factor = _scaled(node.inputs[1])
    if queries is None or keys is None or own is None or factor is None:
        return
    number = np.float32(np.float64(own) * np.float64(factor))
    if not np.isfinite(number) or not number:
        return
    held = new_constant(graph, f"{node.name}_factor", np.asarray(number))
    scaled = new_node(graph, node, "Mul", [queries, held], name=f"{node.name}/factor")
    node.replace_input_with(0, scaled)
    node.replace_input_with(1, keys)


def unguarded_softmax(graph: ir.Graph, node: ir.Node) -> None:
    """Write Where(IsNaN(p), c, p) as p, if a Softmax made p, and mask with float32's lowest number instead of -inf.

    Then no row is NaN: a row that is masked as a whole has equal shares, and c before.
    """
    value = node.inputs[2] if is_op(node, "Where") and len(node.inputs) > 2 else None
    asked = node.inputs[0].producer() if value is not None and node.inputs[0] is not None else None
    if value is None or not is_op(asked, "IsNaN") or constant(node.inputs[1]) is None:
        return
    assert asked is not None  # noqa: S101  (is_op has looked)
    if asked.inputs[0] is not value or not is_op(value.producer(), "Softmax") or value in graph.outputs:
        return
    for mask, port in _infinite(value.producer()):
        lowest = new_constant(graph, f"{mask.name}_lowest", np.asarray(np.finfo(np.float32).min))
        mask.replace_input_with(port, lowest)
    take_place(node.outputs[0], value)
    graph.remove(node, safe=True)


def _infinite(softmax: ir.Node | None) -> list[tuple[ir.Node, int]]:
    """Return the nodes before a Softmax, and their ports, that read -inf as a number."""
    pending, seen, found = [softmax], set[ir.Node](), []
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        found += [(node, port) for port, v in enumerate(node.inputs) if scalar(v) == -np.inf]
        pending += [v.producer() for v in node.inputs if v is not None] if is_op(node, "Softmax", *MASKING) else []
    return found


def _scaled(value: ir.Value | None) -> tuple[ir.Value | None, float | None]:
    """Return the operand that a Mul scales by a number, and the number; None for what is no such result."""
    maker = value.producer() if value is not None else None
    if maker is None or not is_op(maker, "Mul"):
        return None, None
    for port in (0, 1):
        number, data = maker.inputs[port], maker.inputs[1 - port]
        found = scalar(number)
        if found is not None and number is not None and len(number.shape or ()) < 2 and constant(data) is None:
            return data, found
    return None, None
