"""Say what ops do with the channels of one tensor.

The tables name the layers that can take a change of channels into their constants, and the ops that let it pass. A
change of channels is T' = (T - offset) / factor with factor > 0, one of each per channel. The layer that makes T
divides its rows and shifts its bias. The layers that read T multiply their columns and add the effect of the offset, so
the function of the network stays as it is. Accuracy recovery changes channels so that they quantize better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from quantpipe.arrays import Array
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.scores import VIEWS


class ColumnForm(Protocol):
    """Apply changes of input channels to an op's weight. `values` have one entry per input channel."""

    axis: int
    """Where the channels of the input are; negative from behind."""

    def weight_axis(self, node: Node) -> int | None:
        """Return the weight's axis of the input channels; None if a row of the weight does not see all of them."""

    def magnitudes(self, node: Node, weight: Array, channels: int) -> Array:
        """Return the largest |w| that each input channel is multiplied by.

        Args:
            node: the layer.
            weight: its weight.
            channels: how many input channels there are.

        Returns:
            `[channels]`.
        """

    def scaled(self, node: Node, weight: Array, values: Array) -> Array:
        """Return the weight with the columns of each input channel multiplied.

        Args:
            node: the layer.
            weight: its weight.
            values: a factor per input channel, `[channels]`.

        Returns:
            The weight, in its own shape.
        """

    def response(self, node: Node, weight: Array, values: Array) -> Array:
        """Return the op's response to a constant input of these values, one number per output channel.

        Args:
            node: the layer.
            weight: its weight.
            values: the constant of each input channel, `[channels]`.

        Returns:
            `[O]`.
        """


class ConvColumns:
    """Convolutions of any group count, weight `[O, I / groups, *kernel]`."""

    axis = 1

    def weight_axis(self, node: Node) -> int | None:
        """Return 1, the axis of input channels, or None for grouped convolutions."""
        return 1 if int(node.attr("group", 1)) == 1 else None

    def magnitudes(self, node: Node, weight: Array, channels: int) -> Array:
        """Return the largest |w| that each input channel is multiplied by, `[channels]`."""
        grouped = self._grouped(node, weight)
        return np.asarray(np.abs(grouped).max(axis=(1, 3), initial=0.0).reshape(-1))

    def scaled(self, node: Node, weight: Array, values: Array) -> Array:
        """Return the weight with the columns of each input channel multiplied by `values` `[channels]`."""
        grouped = self._grouped(node, weight)
        return np.asarray((grouped * values.reshape(len(grouped), 1, -1, 1)).reshape(weight.shape))

    def response(self, node: Node, weight: Array, values: Array) -> Array:
        """Return the response to constant inputs `values` `[channels]` per output channel `[O]`, without padding."""
        grouped = self._grouped(node, weight)
        return np.asarray(np.einsum("goik,gi->go", grouped, values.reshape(len(grouped), -1)).reshape(-1))

    def _grouped(self, node: Node, weight: Array) -> Array:
        """`[G, O / G, I / G, kernel]`."""
        groups = int(node.attr("group", 1))
        return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)


class DenseColumns:
    """Gemm and MatMul by a constant matrix: input channels are its rows, or its columns where it is transposed."""

    axis = -1

    def weight_axis(self, node: Node) -> int | None:
        """Return the axis of input features: 0, or 1 where the matrix is transposed."""
        return 1 if node.attr("transB", 0) else 0

    def magnitudes(self, node: Node, weight: Array, channels: int) -> Array:
        """Return the largest |w| that each input feature is multiplied by, `[channels]`."""
        return np.asarray(np.abs(self._turned(node, weight)).max(axis=1, initial=0.0))

    def scaled(self, node: Node, weight: Array, values: Array) -> Array:
        """Return the weight with the row of each input feature multiplied by `values` `[channels]`."""
        return np.asarray(self._turned(node, self._turned(node, weight) * values[:, None]))

    def response(self, node: Node, weight: Array, values: Array) -> Array:
        """Return the response to constant inputs `values` `[channels]` per output feature `[O]`."""
        return np.asarray(values @ self._turned(node, weight))

    def _turned(self, node: Node, weight: Array) -> Array:
        return weight.T if node.attr("transB", 0) else weight


COLUMNS: Mapping[str, ColumnForm] = {"Conv": ConvColumns(), "Gemm": DenseColumns(), "MatMul": DenseColumns()}
"""Layers whose weight can take up a change of their input's channels."""


def takes_offsets(node: Node) -> bool:
    """Return whether a constant added to the input reaches every output whole.

    It does not where the op pads with zeros, since those zeros would have to be the constant.
    """
    return not any(node.attr("pads", [0])) and node.attr("auto_pad", "NOTSET") in ("NOTSET", "VALID")


@dataclass(frozen=True)
class ChannelPassthrough:
    """Describe an op that works on each channel alone: a change of channels before it equals the same change after it.

    `offsets`: whether offsets pass, too. `repeats`: how many channels of the result each channel becomes (0: the op
    mixes channels here). `anywhere`: whether channels may lie along any axis; else they have to be the second.
    `linear`: whether it does the same linear thing to each channel, so that mixtures of channels pass, too. `slopes`:
    the port of a constant that may have one number for each channel.
    """

    offsets: Callable[[Node], bool] = takes_offsets
    repeats: Callable[[Node, Graph], int] = lambda node, graph: 1
    anywhere: bool = False
    linear: bool = False
    slopes: int | None = None


def _flattened(node: Node, graph: Graph) -> int:
    """Return the factor of [N, C, …] -> [N, C·…]: features per channel; any other shape mixes channels."""
    before, after = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
    if node.inputs[0] in graph.varying or len(after) != 2 or len(before) < 2 or before[0] != after[0]:
        return 0
    return after[1] // before[1]


_PLACES = ChannelPassthrough(linear=True)
_VIEW = ChannelPassthrough(offsets=lambda node: True, repeats=_flattened, linear=True)
_SLOPES = ChannelPassthrough(offsets=lambda node: False, anywhere=True)  # f(a·x) = a·f(x) for a > 0

PASSAGES: Mapping[str, ChannelPassthrough] = {
    "Identity": ChannelPassthrough(offsets=lambda node: True, anywhere=True, linear=True),
    "MaxPool": ChannelPassthrough(offsets=lambda node: True),
    "GlobalMaxPool": ChannelPassthrough(offsets=lambda node: True),
    "AveragePool": _PLACES,
    "GlobalAveragePool": _PLACES,
    "Flatten": _VIEW,
    "Reshape": _VIEW,
    "Squeeze": _VIEW,
    "LeakyRelu": _SLOPES,
    "PRelu": replace(_SLOPES, slopes=1),
}
"""Ops that let a change of channels along axis 1 pass. Clamps do, too, with bounds per channel (by their family)."""


@dataclass(frozen=True)
class Affine:
    """Describe an op that ends with a gain and an offset per channel.

    `gain`, `offset`: their ports (None: absent); `axis`: the axis of the channels, negative from the end. `rows`: it
    divides each row of channels by its size, so that a rotation of the channels passes. `centres`: it subtracts their
    mean first, and then only rotations that keep the mean pass.
    """

    gain: int
    offset: int | None
    axis: int
    rows: bool = False
    centres: bool = False


AFFINE: Mapping[str, Affine] = {
    "LayerNormalization": Affine(1, 2, -1, rows=True, centres=True),
    "RMSNormalization": Affine(1, None, -1, rows=True),
    "InstanceNormalization": Affine(1, 2, 1),
    "BatchNormalization": Affine(1, 2, 1),
}
"""Ops that end with a gain and an offset per channel. They are as good as a layer for making a changed tensor, wherever
they run."""


CLAMP, MAX, MIN = "Clip", "Max", "Min"
"""What a clamp becomes whose limits change: for all channels alike, or (the last two) with a constant per channel."""


def keeps_rows(node: Node, graph: Graph) -> bool:
    """Return whether a node leaves channels along the last axis where they are, and does the same to each of them.

    Such nodes lay rows flat or put them back, choose or repeat some, or average over them.
    """
    if node.op not in (*ROW_AXES, *VIEWS, *REPEATS):  # others may leave their first output out, as an LSTM does
        return False
    before, after = graph.shapes[node.inputs[0]], graph.shapes[node.outputs[0]]
    if not before or before[-1:] != after[-1:]:
        return False
    return node.op not in ROW_AXES or _spares_last(node, graph, len(before))


REPEATS = ("Expand",)
"""Ops that repeat rows."""

TARGET_SHAPES: Mapping[str, int] = {"Reshape": 1, "Expand": 1}
"""Ops that are told the shape of their result, and the port that tells them."""


@dataclass(frozen=True)
class RowAxes:
    """Hold where an op on whole rows declares its axes: an attribute, or a constant at a port."""

    attribute: str
    port: int | None = None
    default: int | None = None


ROW_AXES: Mapping[str, RowAxes] = {
    "Gather": RowAxes("axis", default=0),
    "Slice": RowAxes("", port=3),
    "ReduceMean": RowAxes("axes", port=1),
}
"""Ops that choose rows, or average over them."""


def _spares_last(node: Node, graph: Graph, rank: int) -> bool:
    how = ROW_AXES[node.op]
    axes = node.attr(how.attribute, how.default) if how.attribute else None
    if (
        axes is None
        and how.port is not None
        and how.port < len(node.inputs)
        and graph.is_constant(node.inputs[how.port])
    ):
        axes = graph.constant(node.inputs[how.port])
    return axes is not None and all(int(axis) % rank != rank - 1 for axis in np.atleast_1d(axes))
