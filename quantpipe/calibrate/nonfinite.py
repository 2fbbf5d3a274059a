"""Word the messages about tensors that hold NaN or infinities, for which no range can be made."""

from __future__ import annotations

from quantpipe.graph.view import Graph

NO_RANGE = "so that no range can represent it"


def around(graph: Graph, tensor: str) -> str:
    """Return the override that keeps the nodes that make and read a tensor in float."""
    maker = graph.producers.get(tensor)
    nodes = [*([] if maker is None else [maker.name]), *(node.name for node, _ in graph.consumers.get(tensor, ()))]
    return f"annotate.float_nodes=[{','.join(dict.fromkeys(nodes))}]"
