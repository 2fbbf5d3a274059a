"""Write the nodes of x · (1 + erf(x / √2)) / 2 as the op Gelu: a function of one value, so one table.

The tanh form, x · (1 + tanh(√(2/π) · (x + 0.044715·x³))) / 2, becomes Gelu, too, in whatever order the products are
written.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from quantpipe.graph.edit import is_op, is_scalar, new_node, only_user, take_place
from quantpipe.intake.rewrites.polynomial import argument

SLOPE, CUBIC = math.sqrt(2 / math.pi), 0.044715
INSIDE = {
    "Erf": ({1: math.sqrt(0.5)}, {}),
    "Tanh": ({1: SLOPE, 3: SLOPE * CUBIC}, {"approximate": "tanh"}),
}
"""The polynomial of x that a function is taken of, and the attributes that Gelu then has."""


def gelu(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the Gelu around an Erf or Tanh by one node.

    The factors x and 1/2 may come in any order, and may be multiplied with each other first.
    """
    if not is_op(node, *INSIDE):
        return
    inside, attributes = INSIDE[node.op_type]
    data = argument(node.inputs[0], inside)
    if data is None:
        return
    add = only_user(node.outputs[0], graph)
    if not is_op(add, "Add") or add is None or not any(is_scalar(v, 1.0) for v in add.inputs):
        return
    last, done = add, [node, add]
    seen_data = seen_half = False
    while not (seen_data and seen_half):
        follower = only_user(last.outputs[0], graph)
        if follower is None or not is_op(follower, "Mul", "Div"):
            return
        other = follower.inputs[1] if follower.inputs[0] is last.outputs[0] else follower.inputs[0]
        if follower.op_type == "Div":
            half, whole = follower.inputs[0] is last.outputs[0] and is_scalar(other, 2.0), False
        else:
            half, whole = is_scalar(other, 0.5) or _is_half_of(other, data), other is data or _is_half_of(other, data)
        if not (half or whole) or (half and seen_half) or (whole and seen_data):
            return
        seen_half, seen_data = seen_half or half, seen_data or whole
        last = follower
        done.append(follower)
    take_place(last.outputs[0], new_node(graph, last, "Gelu", [data], name=last.name, attributes=attributes))
    graph.remove(done[::-1], safe=True)


def _is_half_of(value: ir.Value | None, data: ir.Value) -> bool:
    """Return whether a value is x / 2."""
    node = value.producer() if value is not None else None
    if node is None or not is_op(node, "Mul", "Div"):
        return False
    if node.op_type == "Div":
        return node.inputs[0] is data and is_scalar(node.inputs[1], 2.0)
    return any(node.inputs[p] is data and is_scalar(node.inputs[1 - p], 0.5) for p in (0, 1))
