"""Find the ports where a node takes float16 instead of float32, by ONNX's own definition of its op."""

from __future__ import annotations

import onnx

from quantpipe.graph.view import Node

REAL, HALF = "tensor(float)", "tensor(float16)"


def half_ports(node: Node, opset: int) -> frozenset[int]:
    """Return the input ports of a node that take float16 when it computes in it; none where it cannot."""
    schema = _schema(node, opset)
    if schema is None:
        return frozenset()
    either = {c.type_param_str for c in schema.type_constraints if {REAL, HALF} <= {*c.allowed_type_strs}}
    typed = {p: schema.inputs[min(p, len(schema.inputs) - 1)].type_str for p, name in enumerate(node.inputs) if name}
    made = {schema.outputs[min(p, len(schema.outputs) - 1)].type_str for p, name in enumerate(node.outputs) if name}
    follow = {kind for kind in typed.values() if kind in either} & made
    return frozenset(p for p, kind in typed.items() if kind in follow)


def _schema(node: Node, opset: int) -> onnx.defs.OpSchema | None:
    if node.domain or node.has_body or not onnx.defs.has(node.op):
        return None
    try:
        return onnx.defs.get_schema(node.op, opset, "")
    except onnx.defs.SchemaError:
        return None
