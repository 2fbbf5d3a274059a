"""Tell from a graph whether a tensor holds class scores.

It does where a Softmax or LogSoftmax made it, or a Softmax, LogSoftmax or ArgMax reads it, over the last axis each,
with nothing but moves of values between.
"""

from __future__ import annotations

from quantpipe.graph.view import Graph, Node

NORMALIZED = ("Softmax", "LogSoftmax")
READERS = (*NORMALIZED, "ArgMax")
SAME_PLACE = ("Identity", "Cast", "Dropout")
VIEWS = ("Reshape", "Flatten", "Squeeze", "Unsqueeze")
"""Other shapes of the same values in the same order; the last axis is the same where its size is."""


def is_scores(graph: Graph, output: str) -> bool:
    """Return whether a tensor holds a value per class along its last axis."""
    last = len(graph.shapes.get(output, ())) - 1
    return _normalized(graph, output, last) or any(
        _scored_by(graph, node, port) for node, port in _readers(graph, output)
    )


def is_normalized(graph: Graph, output: str) -> bool:
    """Return whether a Softmax or LogSoftmax made a tensor, of a graph whose shapes need not be known."""
    node = graph.producers.get(output)
    while node is not None and node.op in (*SAME_PLACE, *VIEWS):
        node = graph.producers.get(node.inputs[0])
    return node is not None and node.op in NORMALIZED


def score_axis(graph: Graph, output: str) -> int | None:
    """Return the axis of a tensor that holds a value per class; None where the graph shows none.

    A Softmax or LogSoftmax over this axis made the tensor, or a Softmax, LogSoftmax or ArgMax over it reads the tensor.
    """
    for axis in reversed(range(1, len(graph.shapes.get(output, ())))):
        if _normalized(graph, output, axis):
            return axis
    for node, port in graph.consumers.get(output, ()):
        if node.op in READERS and port == 0:
            return _axis(node, graph, output) or None
    return None


def gives_class_numbers(graph: Graph, output: str) -> bool:
    """Return whether an ArgMax made a tensor, with nothing but moves of values after it."""
    node = graph.producers.get(output)
    while node is not None and node.op in (*SAME_PLACE, *VIEWS, "Transpose"):
        node = graph.producers.get(node.inputs[0])
    return node is not None and node.op == "ArgMax"


def _normalized(graph: Graph, tensor: str, axis: int) -> bool:
    """Return whether a normalization over an axis made it."""
    while axis >= 0 and (node := graph.producers.get(tensor)) is not None:
        if node.op in NORMALIZED:
            return _axis(node, graph, node.outputs[0]) == axis
        before = axis_before(graph, node, axis)
        if before is None:
            return False
        tensor, axis = node.inputs[0], before
    return False


def axis_before(graph: Graph, node: Node, axis: int) -> int | None:
    """Return which axis of a move's input is this one of its result; None for what is no such move."""
    if node.op in SAME_PLACE:
        return axis
    if node.op == "Transpose":
        order = node.attr("perm") or list(reversed(range(len(graph.shapes[node.outputs[0]]))))
        return int(order[axis])
    if node.op in VIEWS:
        shapes = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
        last = all(shapes) and axis == len(shapes[1]) - 1 and shapes[0][-1:] == shapes[1][-1:]
        return len(shapes[0]) - 1 if last else None
    return None


def _readers(graph: Graph, tensor: str) -> list[tuple[Node, int]]:
    """Return its readers, also after moves that keep the last axis."""
    found, pending = [], [tensor]
    while pending:
        for node, port in graph.consumers.get(pending.pop(), ()):
            last = len(graph.shapes.get(node.outputs[0], ())) - 1
            if node.op != "Transpose" and port == 0 and last >= 0 and axis_before(graph, node, last) is not None:
                pending.append(node.outputs[0])
            found.append((node, port))
    return found


def _scored_by(graph: Graph, node: Node, port: int) -> bool:
    """Return whether a node treats the last axis of its input as classes."""
    last = len(graph.shapes.get(node.inputs[port], ())) - 1 if port < len(node.inputs) else -1
    return node.op in READERS and last >= 0 and _axis(node, graph, node.inputs[port]) == last


def _axis(node: Node, graph: Graph, tensor: str) -> int:
    """Return the axis of a tensor that a node works along, from 0 on."""
    return int(node.attr("axis", 0 if node.op == "ArgMax" else -1)) % max(len(graph.shapes.get(tensor, ())), 1)
