"""Say which tensors around a node must have their channels mixed together for the node to do what it did.

An addition does the same to mixtures of channels as to channels, and so do ops that only move rows, join them, or
average over them: T' = M T before it is T' = M T after it. Nodes that act on single channels in different ways, or on
the axis of the channels itself, do not.
"""

from __future__ import annotations

from math import prod

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.channels import PASSAGES, keeps_rows
from quantpipe.oprules.rule import Family
from quantpipe.oprules.scores import VIEWS
from quantpipe.oprules.table import rule_of

Ends = tuple[tuple[str, int], ...]
"""Tensors, constants among them, and the axis of the channels in each."""
JOINING = frozenset({"Concat"})
TURNING = frozenset({"Transpose"})


def tied(node: Node, graph: Graph, tensor: str, axis: int) -> Ends | None:
    """Return all tensors of a node whose channels must be mixed like the channels of one of them, with their axes.

    None if the node does not treat mixtures of channels alike.
    """
    rule, result = rule_of(node), node.outputs[0]
    if not result:  # left out, as an LSTM's sequence is where its last state alone is read
        return None
    if rule is not None and rule.family is Family.SUM:
        return _added(node, graph, tensor, axis)
    if node.op in JOINING:
        joined = int(node.attr("axis", 0)) % len(graph.shapes[result])
        return None if joined == axis else tuple((end, axis) for end in (*node.inputs, result))
    data = node.inputs[0]
    if tensor in node.inputs[1:]:
        return None
    shapes = graph.shapes[data], graph.shapes[result]
    if axis == len(graph.shapes[tensor]) - 1 and keeps_rows(node, graph):
        return (data, len(shapes[0]) - 1), (result, len(shapes[1]) - 1)
    if node.op in TURNING:
        order = list(node.attr("perm") or reversed(range(len(shapes[0]))))
        return _pair(tensor, data, result, axis, other=order[axis] if tensor == result else order.index(axis))
    if node.op in VIEWS and (other := _viewed(*(shapes if tensor == data else shapes[::-1]), axis)) is not None:
        return _pair(tensor, data, result, axis, other=other)
    passage = PASSAGES.get(node.op)
    if passage is not None and passage.linear and passage.repeats(node, graph) == 1:
        place = axis if passage.anywhere else 1
        return (data, place), (result, place)
    return None


def _pair(tensor: str, data: str, result: str, axis: int, *, other: int) -> Ends:
    return ((data, axis), (result, other)) if tensor == data else ((data, other), (result, axis))


def _added(node: Node, graph: Graph, tensor: str, axis: int) -> Ends | None:
    """Return terms of one shape, or broadcast rows, whose channels are the last axis of each."""
    ends = (*node.inputs, *node.outputs)
    shapes = [graph.shapes[end] for end in ends]
    if len(set(shapes)) == 1:
        return tuple((end, axis) for end in ends)
    whole = graph.shapes[tensor]
    if axis != len(whole) - 1 or any(shape[-1:] != whole[-1:] for shape in shapes):
        return None
    return tuple((end, len(shape) - 1) for end, shape in zip(ends, shapes, strict=True))


def _viewed(here: tuple[int, ...], there: tuple[int, ...], axis: int) -> int | None:
    """Return an axis in another view of the same values; None if the view splits it."""
    before = prod(here[:axis])
    for place, size in enumerate(there):
        if size == here[axis] and prod(there[:place]) == before:
            return place
    return None
