"""Find nodes that keep a float function away from its pole: the sum in log(x + 1e-6) or 1 / (x + 1e-6), a lower bound.

In integers such a constant is less than half a step and rounds to 0, where the function is infinite; differences of
infinities are NaN, and no integer holds them. In float the function reads x + 1e-6 as in the float model.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.poles import KEEPS_ZERO, POLES

GUARD = "it keeps the input of a float function away from 0, where the function is infinite"


def is_guard(node: Node, graph: Graph, in_float: Callable[[Node], bool]) -> bool:
    """Return whether a node bounds the input of a float function that is infinite at 0, or adds a constant to it.

    `in_float`: whether a reader stays in float.
    """
    return _bounds(node, graph) and _reaches_pole(node, graph, in_float)


def _bounds(node: Node, graph: Graph) -> bool:
    rule = rule_of(node)
    if rule is not None and rule.family is Family.SUM:
        added = [graph.constant(t) for t in node.inputs if t and graph.is_constant(t)]
        return any(a.size and bool(np.all(a > 0)) for a in added)
    return rule is not None and rule.family is Family.CLAMP and rule.bounds(node, graph)[0] > 0


def _reaches_pole(node: Node, graph: Graph, in_float: Callable[[Node], bool]) -> bool:
    for reader, port in graph.consumers.get(node.outputs[0], ()):
        if POLES.get(reader.op) == port and in_float(reader):
            return True
        rule = rule_of(reader)
        moves = rule is not None and rule.family is Family.MOVE
        if (moves or (reader.op in KEEPS_ZERO and in_float(reader))) and _reaches_pole(reader, graph, in_float):
            return True
    return False
