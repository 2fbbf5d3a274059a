"""Tell from a graph which parts of an output are quantities of their own: boxes and scores that one Concat joins.

A squared error over such an output is the error of its largest part. A detector whose boxes go up to 640 and whose
scores go up to 1 may lose every score, and the output is still 40 dB from the float model's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantpipe.arrays import Array
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.masks import JOINING
from quantpipe.oprules.rule import Family
from quantpipe.oprules.scores import VIEWS, axis_before
from quantpipe.oprules.table import rule_of
from quantpipe.types import Outputs


@dataclass(frozen=True)
class Part:
    """Elements `first` to `last` - 1 along one axis of an output that has `size` there. `tensor` is what holds them."""

    tensor: str
    axis: int
    first: int
    last: int
    size: int

    def of(self, outputs: Outputs) -> Outputs | None:
        """Return the part of an output over several samples; None if some sample has another size there."""
        if isinstance(outputs, tuple):
            rows = [self._cut(row, self.axis - 1) for row in outputs]
            return None if any(row is None for row in rows) else tuple(row for row in rows if row is not None)
        return self._cut(outputs, self.axis)

    def _cut(self, array: Array, axis: int) -> Array | None:
        if array.ndim <= axis or array.shape[axis] != self.size:
            return None
        return array[(slice(None),) * axis + (slice(self.first, self.last),)]


@dataclass(frozen=True)
class _Piece:
    """A tensor that fills a stretch of an axis, and the op that computes it."""

    tensor: str
    made_by: str
    size: int


def parts_of(graph: Graph, output: str) -> tuple[Part, ...]:
    """Return the parts of an output that different ops compute, along the first axis that has such; none of one piece.

    Pieces that the same op computes are one quantity (the levels of a pyramid, say). The samples' axis is passed over.
    """
    rank = len(graph.shapes.get(output, ()))
    for axis in range(1, rank):
        pieces = _merged(piece for piece in _pieces(graph, output, axis) if piece.size)  # a cache may begin empty
        if len(pieces) > 1:
            size, first, found = sum(piece.size for piece in pieces), 0, []
            for piece in pieces:
                found.append(Part(piece.tensor, axis, first, first + piece.size, size))
                first += piece.size
            return tuple(found)
    return ()


def _pieces(graph: Graph, tensor: str, axis: int) -> tuple[_Piece, ...]:
    """Return the pieces of an axis of a tensor, in order."""
    whole, here = tensor, axis
    while (node := graph.producers.get(tensor)) is not None:
        if node.op in JOINING:
            branches = [t for t in node.inputs if t]
            if int(node.attr("axis", 0)) % max(len(graph.shapes[tensor]), 1) == axis:
                return tuple(piece for branch in branches for piece in _pieces(graph, branch, axis))
            pieces = _alike([_pieces(graph, branch, axis) for branch in branches])
            return pieces if len(pieces) > 1 else _one(graph, whole, here)
        before = _axis_before(graph, node, axis)
        if before is None:
            break
        tensor, axis = node.inputs[0], before
    return _one(graph, whole, here)


def _one(graph: Graph, tensor: str, axis: int) -> tuple[_Piece, ...]:
    shape = graph.shapes.get(tensor, ())
    return (_Piece(tensor, _made_by(graph, tensor), int(shape[axis] or 0)),) if axis < len(shape) else ()


def _alike(branches: Sequence[tuple[_Piece, ...]]) -> tuple[_Piece, ...]:
    """Return the pieces of the first branch, where all are divided alike."""
    forms = {tuple((piece.made_by, piece.size) for piece in branch) for branch in branches}
    return branches[0] if len(forms) == 1 else ()


def _merged(pieces: Iterable[_Piece]) -> list[_Piece]:
    found: list[_Piece] = []
    for piece in pieces:
        last = found[-1] if found else None
        if last is not None and last.made_by == piece.made_by:
            found[-1] = _Piece(last.tensor, last.made_by, last.size + piece.size)
        else:
            found.append(piece)
    return found


def _made_by(graph: Graph, tensor: str) -> str:
    """Return the op before all moves of values."""
    while (node := graph.producers.get(tensor)) is not None:
        rule = rule_of(node)
        if rule is None or rule.family is not Family.MOVE:
            return node.op
        tensor = node.inputs[0]
    return ""


def _axis_before(graph: Graph, node: Node, axis: int) -> int | None:
    """Return the input axis of a move for this axis of its result, where all of it is moved."""
    if node.op in VIEWS:
        shapes = [graph.shapes.get(t, ())[: axis + 1] for t in (node.inputs[0], node.outputs[0])]
        if all(shapes) and shapes[0] == shapes[1] and None not in shapes[0]:
            return axis
    return axis_before(graph, node, axis)
