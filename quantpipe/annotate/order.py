"""One order of nodes for each graph, whatever the order in the file: by depth, then by name."""

from __future__ import annotations

from dataclasses import replace

from quantpipe.graph.view import Graph


def in_canonical_order(graph: Graph) -> Graph:
    """Return the same graph with its nodes sorted by (longest path from an input, name).

    This is an execution order.
    """
    depth: dict[str, int] = {}
    ranks = {}
    for node in graph.nodes:
        rank = max((depth.get(t, 0) for t in (*node.inputs, *node.captured)), default=0)
        ranks[node.name] = rank
        depth |= {t: rank + 1 for t in node.outputs if t}
    return replace(graph, nodes=tuple(sorted(graph.nodes, key=lambda n: (ranks[n.name], n.name))))
