"""Tell from a graph whether an output holds objects that the model has chosen itself, in place of a row per place."""

from __future__ import annotations

from quantpipe.graph.view import Graph

CHOOSING = ("NonMaxSuppression", "TopK")
"""Ops that choose among the boxes of a detector."""


def is_chosen(graph: Graph, output: str) -> bool:
    """Return whether an op that chooses stands somewhere before an output."""
    waiting, seen = [output], {output}
    while waiting:
        node = graph.producers.get(waiting.pop())
        if node is None:
            continue
        if node.op in CHOOSING:
            return True
        new = {tensor for tensor in node.inputs if tensor} - seen
        seen |= new
        waiting += new
    return False
