"""Names of nodes: every node has one, and nodes that a clean-up renamed get the user's names back."""

from __future__ import annotations

import onnx_ir as ir

from quantpipe.graph.view import Graph


def restore_names(cleaned: ir.Model, original: Graph) -> None:
    """Give nodes that a clean-up renamed the name of the user's node that does the same work.

    A fused node keeps its output tensor. The search walks up from the original producer of that tensor; the nearest
    node with the same op is the one that the user knows. A Conv with a folded BatchNormalization is still that Conv.
    Nodes of the body of a user's op are named after it ("NAME/OP_2") and stay so where one of them has its name.
    """
    names = {node.name for node in cleaned.graph}
    for node in cleaned.graph:
        owner = (node.name or "").rpartition("/")[0]
        inner = owner in original.by_name and (owner in names or node.outputs[0].name not in original.producers)
        if node.name in original.by_name or inner:
            continue
        source = original.producers.get(node.outputs[0].name or "")
        first = source
        while source is not None and source.op != node.op_type:
            source = next((original.producers[t] for t in source.inputs if t in original.producers), None)
        found = source or first
        if found is not None:
            node.name = found.name


def name_nodes(model: ir.Model) -> None:
    """Give every node a unique, non-empty name."""
    seen: set[str] = set()
    for number, node in enumerate(model.graph):
        name = node.name or f"{node.op_type}_{number}"
        while name in seen:
            name = f"{name}_{number}"
        node.name = name
        seen.add(name)
