"""1 / √x, written as a root and a quotient or reciprocal, is one function of one value, x^(-1/2): one table for two."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import is_op, new_constant, new_node, only_user, scalar, take_place


def rsqrt(graph: ir.Graph, node: ir.Node) -> None:
    """Replace the reciprocal of a root by a power."""
    if is_op(node, "Reciprocal"):
        root = node.inputs[0]
    elif is_op(node, "Div") and scalar(node.inputs[0]) == 1.0:
        root = node.inputs[1]
    else:
        return
    maker = root.producer() if root is not None else None
    if root is None or maker is None or not is_op(maker, "Sqrt") or only_user(root, graph) is not node:
        return
    power = new_constant(graph, f"{node.name}_power", np.asarray(-0.5, np.float32))
    made = new_node(graph, node, "Pow", [maker.inputs[0], power], name=node.name)
    take_place(node.outputs[0], made)
    graph.remove([node, maker], safe=True)
