"""Find the decode tail of a detector: it follows the last layers and turns their results into boxes and scores.

It adds anchors, multiplies by strides, takes the expectation of a distribution over distances, and joins boxes of
several hundred with scores between 0 and 1. It multiplies next to nothing, and rounding there moves every box.
"""

from __future__ import annotations

from quantpipe.graph.view import Graph, Node
from quantpipe.hardware.cost import macs
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.scores import NORMALIZED

TAIL = "tail"
"""What the tail is called in tables and among choices: `float:tail`."""

AUTO, ALWAYS, NEVER = "auto", "always", "never"
"""What `annotate.float_tail` may be: left to measurements, in float, or in integers where the device has them."""

FOLLOWING = (Family.MOVE, Family.CLAMP)
"""Ops that run where what they read is."""


def tail_of(graph: Graph) -> frozenset[str]:
    """Return the nodes that no layer follows.

    A layer multiplies by weights of its own. One that reads a Softmax is none: it takes the expectation of a
    distribution (the distances of a "distribution focal loss"). What depends on no input is left out.
    """
    before: set[str] = set()
    for node in reversed(graph.nodes):
        readers = [reader for t in node.outputs for reader, _ in graph.consumers.get(t, ())]
        if _is_layer(node, graph) or any(reader.name in before for reader in readers):
            before.add(node.name)
    return frozenset(node.name for node in graph.nodes if node.name not in before)


def computes(node: Node) -> bool:
    """Return whether a node computes something, and does not only move or bound values."""
    rule = rule_of(node)
    return rule is not None and rule.family not in FOLLOWING


def _is_layer(node: Node, graph: Graph) -> bool:
    weighed = any(t and graph.is_constant(t) and len(graph.shapes.get(t, ())) > 1 for t in node.inputs)
    return weighed and macs(node, graph) > 0 and not _reads_distribution(node, graph)


def _reads_distribution(node: Node, graph: Graph) -> bool:
    maker = graph.producers.get(node.inputs[0])
    while maker is not None and (rule := rule_of(maker)) is not None and rule.family is Family.MOVE:
        maker = graph.producers.get(maker.inputs[0])
    return maker is not None and maker.op in NORMALIZED
