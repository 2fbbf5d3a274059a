"""Additions that are left in float, since only float nodes read them and what they add comes as real numbers anyway.

Behind a dense layer whose kernel can give real numbers, an addition in integers would store the layer's result, the
other operand and the sum, only for a LayerNormalization to read all that as real numbers again. In float nothing is
stored in between, and nothing is converted that was not before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of


def real_sums(
    graph: Graph,
    integer: Collection[str],
    candidates: Collection[str],
    *,
    makers: Collection[str],
    moves: Collection[str],
) -> set[str]:
    """Return the additions that are real at no cost, chains of them included.

    Args:
        graph: The clean model.
        integer: The nodes that run in integers, as far as is decided.
        candidates: The additions among them that the device also runs in float.
        makers: The nodes among them that can give real numbers instead of stored ones.
        moves: Nodes that only move values, and may be on either side.

    Returns:
        Names of nodes, the greatest such set.
    """
    found = set(candidates)
    fixed = {*integer} - {*moves}

    def read_as_real(tensor: str) -> bool:
        readers = list(_readers(graph, tensor, moves))
        return bool(readers) and all(r is None or r.name in found or r.name not in fixed for r in readers)

    def comes_as_real(tensor: str) -> bool:
        maker = graph.producers.get(tensor)
        while maker is not None and maker.name in moves and read_as_real(tensor):
            tensor, maker = maker.inputs[0], graph.producers.get(maker.inputs[0])
        if maker is None or maker.name in found or maker.name not in integer:
            return True
        return maker.name in makers and read_as_real(tensor)

    def is_real(node: Node) -> bool:
        rule = rule_of(node)
        ports = rule.activations(node, graph) if rule is not None else ()
        operands = [node.inputs[port] for port in ports if not graph.is_constant(node.inputs[port])]
        return read_as_real(node.outputs[0]) and all(map(comes_as_real, operands))

    while left := {name for name in found if not is_real(graph.by_name[name])}:
        found -= left
    return found


def may_be_real(node: Node) -> bool:
    """Return whether a node is an addition."""
    rule = rule_of(node)
    return rule is not None and rule.family is Family.SUM


def _readers(graph: Graph, tensor: str, moves: Collection[str]) -> Iterator[Node | None]:
    """Who reads a tensor, behind nodes that only move it; None for what reads an output of the model."""
    if tensor in graph.output_names:
        yield None
    for reader, _ in graph.consumers.get(tensor, ()):
        if reader.name in moves:
            yield from _readers(graph, reader.outputs[0], moves)
        else:
            yield reader
