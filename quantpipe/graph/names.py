"""Names of nodes: every node has one, and nodes that a clean-up renamed get that of the user's node back."""

from __future__ import annotations

import onnx_ir as ir

from quantpipe.graph.view import Graph


def restore_names(cleaned: ir.Model, original: Graph) -> None:
    """Give nodes that a clean-up renamed the name of the user's node that does the same work.

    A fused node keeps its output tensor; walking up from the original producer of that tensor, the nearest node with
    the same op is the one the user knows (a Conv that swallowed its BatchNormalization is still that Conv).
    """
    for node in cleaned.graph:
        if node.name in original.by_name:
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
