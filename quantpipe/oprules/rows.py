"""Facts of ops that are functions of whole rows: along which axes, over how many elements, with which parameters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.facts import LONGEST_SUM
from quantpipe.oprules.rule import Facts
from quantpipe.types import FunctionKind

REDUCTIONS = ("ReduceMean", "ReduceSum")

LONGEST_ROWS: Mapping[tuple[FunctionKind, str, int], int] = MappingProxyType(
    {(FunctionKind.TFLITE, "Softmax", 8): (1 << 12) - 1, (FunctionKind.TFLITE, "Softmax", 16): (1 << 16) + 2}
)
"""Form, op and bits of what it reads -> the elements of a row whose sum is below 2^31 for certain.

Each exponential is at most 1, which is 2^19 in Q12.19, and 2^15 - 1 in Q0.15.
"""


NEVER_ZERO = frozenset({(FunctionKind.TFLITE, "Softmax", 16)})
"""Forms, ops and bits whose smallest exponential is above 0 (exp(-10) in Q0.15 is 1): hidden elements are counted."""


@dataclass(frozen=True, eq=False)
class Normalization:
    """State what a normalization computes: (x - mean) / √(variance + epsilon) · gain + offset over `axes`.

    `count`: elements that a mean is taken over, 1 where a sum takes its place (a norm); `length`: elements of a row.
    `centred`: whether the mean is subtracted. `gain`, `offset`: float64, shaped to broadcast against the data, or None.
    """

    axes: tuple[int, ...]
    count: int
    length: int
    epsilon: float
    centred: bool
    gain: NDArray[np.float64] | None
    offset: NDArray[np.float64] | None


@dataclass(frozen=True)
class LocalResponse:
    """State what LRN computes: x / (bias + alpha / size · Σ x²)^exponent, the sum over `size` channels around x's."""

    size: int
    alpha: float
    exponent: float
    bias: float

    def window(self, channels: int) -> NDArray[np.int64]:
        """Return which channels the sum of each channel has: 0 or 1, `[channels, channels]`."""
        apart = np.arange(channels) - np.arange(channels)[:, None]
        return np.asarray((apart >= -((self.size - 1) // 2)) & (apart <= self.size // 2), np.int64)


RESPONSE_EXPONENTS = (0.25, 0.5, 0.75, 1.0)
"""Powers that integer square roots and products form."""


def row_axes(node: Node, graph: Graph) -> tuple[int, ...]:
    """Return the axes of one row, from 0 on: all from `axis` on for a normalization, else the one axis."""
    rank = len(graph.shapes[node.inputs[0]])
    if node.op == "InstanceNormalization":
        return tuple(range(2, rank))
    if node.op in REDUCTIONS:
        given = node.inputs[1] if len(node.inputs) > 1 else ""
        axes = graph.constant(given).reshape(-1).tolist() if given else node.attr("axes") or range(rank)
        return tuple(sorted(int(a) % rank for a in axes))
    axis = int(node.attr("axis", -1)) % rank
    return tuple(range(axis, rank)) if node.op in ("LayerNormalization", "RMSNormalization") else (axis,)


def row_count(node: Node, graph: Graph) -> int:
    """Return how many elements one row has."""
    shape = graph.shapes[node.inputs[0]]
    return prod(shape[a] for a in row_axes(node, graph))


def is_open_row(node: Node, graph: Graph) -> bool:
    """Return whether rows may have another length for another sample."""
    return any(graph.is_open(node.inputs[0], axis) for axis in row_axes(node, graph))


def longest_row(node: Node, graph: Graph, kind: FunctionKind | None = None, bits: int = 0) -> int:
    """Return how many elements a row has at most: where the model leaves that open, as many as its sums hold."""
    count = row_count(node, graph)
    if not is_open_row(node, graph):
        return count
    most = LONGEST_ROWS.get((kind, node.op, bits), LONGEST_SUM) if kind is not None else LONGEST_SUM
    return max(count, min(most, LONGEST_SUM))


def softmax_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a Softmax cannot run in integers, or None: its rows may have any length that its sums hold."""
    return "its input is constant" if graph.is_constant(node.inputs[0]) else None


def row_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a function of rows cannot run in integers, or None."""
    if graph.is_constant(node.inputs[0]):
        return "its input is constant"
    if is_open_row(node, graph):
        return "its rows may have another length for another sample, so its sums have no bound"
    if node.op == "LpNormalization" and int(node.attr("p", 2)) != 2:
        return "it divides by a sum of magnitudes (p = 1), of which no integer form is written"
    return None


def row_facts(node: Node, graph: Graph) -> Facts:
    """Return how many elements a row has, as `window`."""
    return {"window": row_count(node, graph)}


def reduce_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a mean or sum over axes cannot run in integers, or None."""
    axes = node.inputs[1] if len(node.inputs) > 1 else ""
    if axes and not graph.is_constant(axes):
        return "its axes are computed at run time"
    if not axes and not node.attr("axes") and node.attr("noop_with_empty_axes", 0):
        return "it names no axes and changes nothing"
    if row_refuses(node, graph) is None and 0 in row_axes(node, graph):
        return "it mixes the samples of a batch"
    return row_refuses(node, graph)


def is_mean(node: Node) -> bool:
    """Return whether a reduction divides by the number of elements."""
    return node.op == "ReduceMean"


def norm_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a layer or root-mean-square normalization cannot run in integers, or None."""
    if any(t and not graph.is_constant(t) for t in node.inputs[1:]):
        return "its gain or offset is computed at run time"
    if any(node.outputs[1:]):
        return "its mean or deviation is a result, too"
    return row_refuses(node, graph)


def instance_refuses(node: Node, graph: Graph) -> str | None:
    """Return why an instance normalization cannot run in integers, or None."""
    if any(not graph.is_constant(t) for t in node.inputs[1:]):
        return "its gain or offset is computed at run time"
    return row_refuses(node, graph)


def local_response(node: Node) -> LocalResponse:
    """Return the attributes of a local response normalization, ONNX's defaults for those that are missing."""
    given = [float(node.attr(name, value)) for name, value in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))]
    return LocalResponse(int(node.attr("size", 1)), *given)


def response_refuses(node: Node, graph: Graph) -> str | None:
    """Return why a local response normalization cannot run in integers, or None."""
    if graph.is_constant(node.inputs[0]):
        return "its input is constant"
    what = local_response(node)
    if what.exponent not in RESPONSE_EXPONENTS:
        return f"it raises to the power beta={what.exponent:g}; integer forms are written of 0.25, 0.5, 0.75 and 1"
    if what.bias <= 0 or what.alpha <= 0:
        return "its bias or alpha is not positive, so its quotient has no bound or is the input itself"
    return None


def normalization(node: Node, graph: Graph) -> Normalization:
    """Return the mathematical form of a normalization."""
    rank, axes = len(graph.shapes[node.inputs[0]]), row_axes(node, graph)
    instance = node.op == "InstanceNormalization"

    def parameter(port: int) -> NDArray[np.float64] | None:
        name = node.inputs[port] if port < len(node.inputs) else ""
        if not name:
            return None
        value = graph.constant(name).astype(np.float64)
        return value.reshape(-1, *[1] * (rank - 2)) if instance else value

    lp = node.op == "LpNormalization"
    return Normalization(
        axes,
        1 if lp else row_count(node, graph),
        row_count(node, graph),
        0.0 if lp else float(node.attr("epsilon", 1e-5)),
        node.op in ("LayerNormalization", "InstanceNormalization"),
        parameter(1),
        parameter(2),
    )
