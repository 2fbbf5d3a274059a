"""Divide a graph into blocks that are trained one after the other: between tensors that everything passes."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from quantpipe.graph.view import Graph, Node


@dataclass(frozen=True, eq=False)
class TrainingBlock:
    """Hold nodes in order, the tensors that they read from before, and the tensors that they are judged by."""

    nodes: tuple[Node, ...]
    sources: tuple[str, ...]
    targets: tuple[str, ...]


def blocks_of(graph: Graph, learned: Collection[str], fused: Collection[str] = ()) -> tuple[TrainingBlock, ...]:
    """Return the blocks of a graph, each with at least one node whose weight is learned.

    A block ends where one float tensor is all that later nodes read. Residual blocks are whole for this
    reason. `learned` and `fused` are nodes; no block begins with a fused one.
    """
    last = {t: i for i, node in enumerate(graph.nodes) for t in (*node.inputs, *node.captured) if t}
    found: list[TrainingBlock] = []
    nodes: list[Node] = []
    live = {name for name in graph.input_names if name in last}
    sources = tuple(live)
    for index, node in enumerate(graph.nodes):
        nodes.append(node)
        live = {t for t in (*live, *node.outputs) if last.get(t, -1) > index}
        real = [t for t in live if graph.dtypes.get(t, "float32").startswith("float") and t not in graph.input_names]
        ended = len(real) == 1 and any(n.name in learned for n in nodes)
        last_one = index + 1 == len(graph.nodes)
        if last_one or (ended and graph.nodes[index + 1].name not in fused):
            made = {t for n in nodes for t in n.outputs}
            ends = tuple(dict.fromkeys((*real, *(o.name for o in graph.outputs if o.name in made))))
            found.append(TrainingBlock(tuple(nodes), sources, ends))
            nodes, sources = [], tuple(live)
    if len(found) > 1 and not any(n.name in learned for n in found[-1].nodes):
        rest, before = found.pop(), found.pop()
        found.append(TrainingBlock((*before.nodes, *rest.nodes), before.sources, rest.targets))
    return tuple(found)
