"""A constant cast to the type of a float32 tensor is a constant: bodies of ONNX's functions (Swish) make numbers so."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import constant, is_op, new_constant


def cast_like(graph: ir.Graph, node: ir.Node) -> None:
    """Write a constant in float32 in the place of its CastLike."""
    if not is_op(node, "CastLike") or node.outputs[0] in graph.outputs:
        return
    value, like = constant(node.inputs[0]), node.inputs[1]
    if value is None or value.dtype.kind != "f" or like is None or like.dtype != ir.DataType.FLOAT:
        return
    found = new_constant(graph, f"{node.inputs[0].name}_float32", value.astype(np.float32))  # type: ignore[union-attr]
    node.outputs[0].replace_all_uses_with(found)
    graph.remove(node, safe=True)
