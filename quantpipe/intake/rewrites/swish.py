"""x · sigmoid(a·x), written out in two or three nodes, is the op Swish: a function of one value, so one table.

Only where the hardware file declares Swish: any other device has a sigmoid and a product, or neither.
"""

from __future__ import annotations

import onnx_ir as ir

from quantpipe.graph.edit import is_op, new_node, only_user, scalar, take_place


def swish(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the Swish that ends in this Mul of x by its gate."""
    if not is_op(node, "Mul"):
        return
    for port in (0, 1):
        data, gate = node.inputs[1 - port], node.inputs[port]
        sigmoid = gate.producer() if gate is not None else None
        if data is None or gate is None or not is_op(sigmoid, "Sigmoid") or only_user(gate, graph) is not node:
            continue
        assert sigmoid is not None  # noqa: S101  (is_op has looked)
        inside = sigmoid.inputs[0]
        alpha, done = 1.0, [node, sigmoid]
        if inside is not data:
            scaled = inside.producer() if inside is not None else None
            factor = _factor(scaled, data)
            if inside is None or scaled is None or factor is None or only_user(inside, graph) is not sigmoid:
                continue
            alpha, done = factor, [*done, scaled]
        made = new_node(graph, node, "Swish", [data], name=node.name, attributes={"alpha": alpha})
        take_place(node.outputs[0], made)
        graph.remove(done, safe=True)
        return


def _factor(node: ir.Node | None, data: ir.Value) -> float | None:
    """Return the constant that a Mul scales x by; None where it is no such Mul."""
    if node is None or not is_op(node, "Mul"):
        return None
    for port in (0, 1):
        if node.inputs[port] is data and (value := node.inputs[1 - port]) is not None:
            return scalar(value)
    return None
