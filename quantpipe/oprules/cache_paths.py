"""Find the caches of a decoder: inputs that new keys or values are joined to, and that leave as outputs.

A path of ops that move values leads from the input to the output. A Concat on it joins the past with the new positions;
a Slice after it makes a ring of fixed length, which forgets its oldest positions. A ScatterND, ScatterElements or
TensorScatter on it writes the new positions into a cache of fixed length. An attention multiplies the result, directly
or after moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.masks import JOINING, OF_SHAPES, WRITING
from quantpipe.oprules.rule import Family
from quantpipe.oprules.scores import is_normalized
from quantpipe.oprules.table import rule_of

GROWING = (*JOINING, *WRITING)
"""Ops by which a cache takes new positions."""


@dataclass(frozen=True)
class FoundCache:
    """State an input and the output that continues it, and the nodes between them in order.

    `keys`: whether an attention compares queries with it, rather than adding it up.
    """

    past: str
    present: str
    nodes: tuple[str, ...]
    keys: bool


def caches_of(graph: Graph) -> tuple[FoundCache, ...]:
    """Return the caches of a decoder in the order of the model's inputs; none of other models."""
    found = []
    taken: set[str] = set()
    for port in graph.inputs:
        if port.dtype != "float32" or len(port.shape) < 2:
            continue
        for present, nodes in _paths(graph, port.name):
            products = list(_products(graph, nodes))
            if present not in taken and products:
                values = all(is_normalized(graph, node.inputs[1 - place]) for node, place in products)
                found.append(FoundCache(port.name, present, tuple(n.name for n in nodes), not values))
                taken.add(present)
                break
    return tuple(found)


def other_readers(graph: Graph, cache: FoundCache) -> list[str]:
    """Return the nodes next to its path that read the values of a cache's input."""
    readers = (node for node, _ in graph.consumers.get(cache.past, ()))
    return [n.name for n in readers if n.name != cache.nodes[0] and n.op not in OF_SHAPES]


def is_static(graph: Graph, cache: FoundCache) -> bool:
    """Return whether a cache leaves with as many positions as it came with."""
    return graph.shapes[cache.past] == graph.shapes[cache.present]


def _paths(graph: Graph, past: str) -> Iterator[tuple[str, tuple[Node, ...]]]:
    """Yield the outputs to which moves lead from an input, with the nodes between; one of these joins values."""
    pending: list[tuple[str, tuple[Node, ...]]] = [(past, ())]
    seen = {past}
    while pending:
        tensor, way = pending.pop(0)
        if tensor in graph.output_names and any(n.op in GROWING for n in way):
            yield tensor, way
        for node, place in graph.consumers.get(tensor, ()):
            rule, result = rule_of(node), node.outputs[0]
            if rule is None or rule.family is not Family.MOVE or place not in rule.data_ports(node) or result in seen:
                continue
            seen.add(result)
            pending.append((result, (*way, node)))


def _products(graph: Graph, way: tuple[Node, ...]) -> Iterator[tuple[Node, int]]:
    """Yield the products of two activations that read what a path makes from its join on, with the port of each."""
    first = next(i for i, node in enumerate(way) if node.op in GROWING)
    pending = [node.outputs[0] for node in way[first:]]
    seen = set(pending)
    while pending:
        for node, place in graph.consumers.get(pending.pop(), ()):
            rule = rule_of(node)
            if rule is None:
                continue
            if rule.matrix is not None and rule.weight is not None and rule.weight_of(node, graph) is None:
                yield node, place
            elif rule.family is Family.MOVE and place in rule.data_ports(node) and node.outputs[0] not in seen:
                seen.add(node.outputs[0])
                pending.append(node.outputs[0])
