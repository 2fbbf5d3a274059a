"""Bound ranges where functions level off: a Sigmoid gives the same integer for all large inputs.

A rare background far below zero would otherwise stretch the scale of logits.
"""

from __future__ import annotations

from quantpipe.graph.view import Graph
from quantpipe.oprules import rule_of
from quantpipe.types import Range, ScaleGroup


def reach_of(graph: Graph, group: ScaleGroup) -> float | None:
    """Return the magnitude beyond which no reader of a scale group's tensors gives another result.

    None where something else reads one of them: an op without such a bound, an output of the model, or a sub-graph.
    """
    inside, found = set(group.tensors), 0.0
    if not inside.isdisjoint(graph.output_names):
        return None
    for tensor in group.tensors:
        for node, port in graph.consumers.get(tensor, ()):
            rule = rule_of(node)
            if rule is not None and rule.keeps_scale(None) and inside.issuperset(node.outputs):
                continue
            if rule is None or rule.reach is None or port not in rule.data_ports(node):
                return None
            found = max(found, rule.reach(node, group.widest))
    return found or None


def within_reach(found: Range, reach: float | None) -> Range:
    """Return a range cut off at a magnitude; a range that ends there or before it stays."""
    if reach is None:
        return found
    return Range(max(found.low, -reach), min(found.high, reach))
