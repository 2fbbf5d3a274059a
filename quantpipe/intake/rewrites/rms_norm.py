"""Write the nodes of x / √(mean(x²) + ε) · gain over the last axis as RMSNormalization (Zhang and Sennrich 2019).

Language models have it in several nodes: exporters know the op from opset 23 on. As one node it can be a single device
kernel. Then one tensor is rounded after it instead of six, among them x², whose range no 8 bits hold.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import is_op, new_constant, new_node, only_user, take_place
from quantpipe.intake.rewrites import rows


def rms_norm(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the normalization around this root of the mean square: Sqrt, or Pow with the exponent -1/2.

    The forms are x / root, x · (1 / root) and x · root^-1; the gain is multiplied with the result, or with the inverse
    root first, or is missing.
    """
    epsilon, data = _mean_square(node)
    width = data.shape[-1] if data is not None and data.shape is not None and len(data.shape) else None
    if data is None or not isinstance(width, int):
        return
    last, gain = _normalized(graph, node, data)
    if last is None:
        return
    product = only_user(last.outputs[0], graph)
    if gain is None and product is not None and is_op(product, "Mul"):
        gain = rows.vector(product, last.outputs[0], data)
        last = product if gain is not None else last
    scale = gain if gain is not None else new_constant(graph, f"{last.name}_gain", np.ones(width, np.float32))
    attributes = {"axis": -1, "epsilon": epsilon}
    made = new_node(
        graph, last, "RMSNormalization", [data, rows.flat(graph, scale)], name=last.name, attributes=attributes
    )
    take_place(last.outputs[0], made)


def _mean_square(node: ir.Node) -> tuple[float, ir.Value | None]:
    """Return (ε, x) where a node is the root of mean(x²) + ε, or one over it."""
    for epsilon, mean in rows.under_root(node):
        data = rows.squared(rows.averaged(mean))
        if data is not None and rows.centred(data) is None:  # of centred values it is a layer normalization
            return epsilon, data
    return 0.0, None


def _normalized(graph: ir.Graph, node: ir.Node, data: ir.Value) -> tuple[ir.Node | None, ir.Value | None]:
    """Return (the node whose result is x / root, or this times the gain, the gain if included)."""
    root = rows.seen(graph, node.outputs[0])
    user = only_user(root, graph)
    if user is None or not rows.is_column(root, data):
        return None, None
    if is_op(node, "Sqrt"):
        if is_op(user, "Div") and user.inputs[0] is data and user.inputs[1] is root:
            return user, None
        if not is_op(user, "Reciprocal") and not (is_op(user, "Div") and rows.number(user.inputs[0]) == 1.0):
            return None, None
        root = rows.seen(graph, user.outputs[0])
        user = only_user(root, graph)
    if user is None or not is_op(user, "Mul"):
        return None, None
    if rows.other(user, root) is data:
        return user, None
    gain = rows.vector(user, root, data)
    product = only_user(user.outputs[0], graph) if gain is not None else None
    if product is not None and is_op(product, "Mul") and rows.other(product, user.outputs[0]) is data:
        return product, gain
    return None, None
