"""Means over all positions of a map are global average pools."""

from __future__ import annotations

import onnx_ir as ir

from quantpipe.graph.edit import attribute, constant, is_op, new_node, rank, take_place


def spatial_mean(graph: ir.Graph, node: ir.Node) -> None:
    """Write a ReduceMean over the spatial axes, channels first or last, as GlobalAveragePool."""
    axes = rank(node.inputs[0]) if is_op(node, "ReduceMean") else None
    if axes is None or axes < 4:
        return  # of rank 3, the last axis may as well hold features (layer normalization)
    given = constant(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
    if given is None:
        return
    over = sorted(int(a) % axes for a in given)
    first, last = list(range(2, axes)), list(range(1, axes - 1))
    data, kept = node.inputs[0], bool(attribute(node, "keepdims", 1))
    if over == first:
        pooled = new_node(graph, node, "GlobalAveragePool", [data], name=node.name)
    elif over == last:
        moved = new_node(
            graph, node, "Transpose", [data], name=f"{node.name}_first", attributes={"perm": [0, axes - 1, *last]}
        )
        moved.name = f"{node.name}_moved"
        pooled = new_node(graph, node, "GlobalAveragePool", [moved], name=node.name)
    else:
        return
    if kept and over == last:
        pooled.name = f"{node.name}_pooled"
        pooled = new_node(
            graph, node, "Transpose", [pooled], name=f"{node.name}_last", attributes={"perm": [0, *first, 1]}
        )
    elif not kept:
        pooled.name = f"{node.name}_pooled"
        pooled = new_node(graph, node, "Flatten", [pooled], name=f"{node.name}_flat", attributes={"axis": 1})
    take_place(node.outputs[0], pooled)
    graph.remove(node, safe=True)
