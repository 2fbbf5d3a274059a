"""Express an accumulating op as a matrix product: rows of inputs times a matrix of weights, per group.

out[g, o, n] = Σ_k rows[g, k, n] · weight[g, o, k]. Accuracy recovery works on this form and needs nothing else of an
op.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.graph.same_pads import SAME, leading_pads, same_total
from quantpipe.graph.view import Graph, Node

Places = NDArray[np.int64]


class MatrixForm(Protocol):
    """One op's form. Shapes: rows `[G, K, n]`, weight matrix `[G, O, K]`."""

    def pick(self, node: Node, graph: Graph, shape: Sequence[int], count: int, *, rng: np.random.Generator) -> Rows:
        """Return `count` sampled rows of data of a shape (all of them where there are fewer).

        Args:
            node: the op.
            graph: the graph that it is in.
            shape: the data's shape.
            count: how many rows to take.
            rng: the source of chance.

        Returns:
            Where the rows lie, in the order of the data's samples.
        """

    def matrix(self, node: Node, weight: Array) -> Array:
        """Return the weight as the matrix `[G, O, K]`.

        Args:
            node: the op.
            weight: its weight in its own shape.

        Returns:
            `[G, O, K]`.
        """

    def weight(self, node: Node, matrix: Array, shape: tuple[int, ...]) -> Array:
        """Return the matrix in the weight's own shape: the inverse of `matrix`.

        Args:
            node: the op.
            matrix: `[G, O, K]`.
            shape: the weight's own shape.

        Returns:
            The weight.
        """


class Rows(Protocol):
    """Chosen places of a tensor, to be read from several that have its shape (float and quantized input)."""

    def read(self, array: Array, zero: int | float = 0) -> Array:
        """Return the chosen rows of the op's data.

        Args:
            array: a tensor in the shape of the data.
            zero: what stands where a window reaches beyond the data.

        Returns:
            `[G, K, n]` in the array's own type.
        """

    def read_output(self, array: Array) -> Array:
        """Return the values at the places of the rows in the op's output.

        Args:
            array: a tensor in the shape of the output.

        Returns:
            `[G, O, n]`.
        """


@dataclass(frozen=True, eq=False)
class WindowRows:
    """Hold the places of each chosen window's taps in its flattened map, `[T, n]`, for each sample of a batch.

    The place just after the end represents an element outside the map. `outputs`: the places of the windows' results in
    their maps, `[n]`.
    """

    groups: int
    places: tuple[Places, ...]
    outputs: tuple[Places, ...]

    def read(self, array: Array, zero: int | float = 0) -> Array:
        """Return the taps of the windows, `[G, K, n]` in the array's own type; taps outside the map are `zero`."""
        channels, size = array.shape[1], int(np.prod(array.shape[2:]))
        taps, count = len(self.places[0]), sum(p.shape[1] for p in self.places)
        found = np.empty((channels, taps, count), array.dtype)
        start = 0
        for sample, places in zip(array, self.places, strict=True):
            flat = sample.reshape(channels, size)
            if places.max(initial=0) >= size:
                flat = np.concatenate([flat, np.full((channels, 1), zero, array.dtype)], axis=1)
            stop = start + places.shape[1]
            found[:, :, start:stop] = np.take(flat, places, axis=1, mode="clip")
            start = stop
        return found.reshape(self.groups, -1, count)

    def read_output(self, array: Array) -> Array:
        """Return the windows' results, `[G, O, n]`, of an array `[N, C, *map]`."""
        channels = array.shape[1]
        parts = [a.reshape(channels, -1)[:, p] for a, p in zip(array, self.outputs, strict=True)]
        return np.concatenate(parts, axis=1).reshape(self.groups, channels // self.groups, -1)


@dataclass(frozen=True, eq=False)
class VectorRows:
    """Chosen vectors along the last axis."""

    picks: Places

    def read(self, array: Array, zero: int | float = 0) -> Array:
        """Return the chosen vectors as columns, `[1, K, n]`; `zero` is not needed."""
        return np.ascontiguousarray(array.reshape(-1, array.shape[-1])[self.picks].T)[np.newaxis]

    def read_output(self, array: Array) -> Array:
        """Return the chosen vectors of the op's output as columns, `[1, O, n]`."""
        return self.read(array)


def matrix_shape(form: MatrixForm, node: Node, shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Return `[G, O, K]` of a weight of this shape as a matrix; each matrix of a batch of weights is a group."""
    nothing: Array = np.broadcast_to(np.int8(0), shape)
    *groups, outs, width = form.matrix(node, nothing).shape
    return math.prod(groups), outs, width


class ConvForm:
    """Convolutions of any group count: the row of an output position holds the input patch under the kernel."""

    def pick(self, node: Node, graph: Graph, shape: Sequence[int], count: int, *, rng: np.random.Generator) -> Rows:
        """Return `count` sampled output positions, with the input patch of each (all if there are fewer).

        `shape` is the input's shape, `[N, C, *map]`.
        """
        window = _Window.of(node, graph)
        begin, out = window.placement(node, shape[2:])

        def source(p: Places, t: int, axis: int) -> tuple[Places, bool]:
            return p * window.strides[axis] - begin[axis] + t, True

        return _window_rows(window, shape[0], shape[2:], out, picks=_some(shape[0], out, count, rng), source=source)

    def matrix(self, node: Node, weight: Array) -> Array:
        """Return the weight `[O, I / G, *kernel]` as the matrix `[G, O / G, K]`."""
        groups = int(node.attr("group", 1))
        return weight.reshape(groups, weight.shape[0] // groups, -1)

    def weight(self, node: Node, matrix: Array, shape: tuple[int, ...]) -> Array:
        """Return the matrix in the weight's own shape."""
        return matrix.reshape(shape)


class TransposedForm:
    """Read a transposed convolution as a matrix product.

    The row of an output position holds, per tap, the input that the tap carries there, or zero where the stride leaves
    a gap.
    """

    def pick(self, node: Node, graph: Graph, shape: Sequence[int], count: int, *, rng: np.random.Generator) -> Rows:
        """Return `count` sampled output positions, with the inputs that reach each (all if there are fewer).

        `shape` is the input's shape, `[N, C, *map]`.
        """
        window = _Window.of(node, graph)
        begin, out = window.transposed_placement(node, shape[2:])

        def source(p: Places, t: int, axis: int) -> tuple[Places, NDArray[np.bool_]]:
            steps = p + begin[axis] - t
            return steps // window.strides[axis], steps % window.strides[axis] == 0

        return _window_rows(window, shape[0], shape[2:], out, picks=_some(shape[0], out, count, rng), source=source)

    def matrix(self, node: Node, weight: Array) -> Array:
        """Return the weight `[Cin, Cout/G, taps…]` as the matrix `[G, Cout/G, Cin/G · taps]`."""
        groups = int(node.attr("group", 1))
        parts = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
        return parts.transpose(0, 2, 1, 3).reshape(groups, weight.shape[1], -1)

    def weight(self, node: Node, matrix: Array, shape: tuple[int, ...]) -> Array:
        """Return the matrix in the weight's own shape `[Cin, Cout / G, taps…]`, contiguous."""
        groups = int(node.attr("group", 1))
        parts = matrix.reshape(groups, shape[1], shape[0] // groups, -1)
        return np.ascontiguousarray(parts.transpose(0, 2, 1, 3).reshape(shape))


class DenseForm:
    """Gemm and MatMul by a constant matrix: every leading axis counts rows."""

    def pick(self, node: Node, graph: Graph, shape: Sequence[int], count: int, *, rng: np.random.Generator) -> Rows:
        """Return `count` sampled vectors along the last axis (all if there are fewer).

        `shape` is the input's shape, `[..., K]`.
        """
        total = int(np.prod(shape[:-1]))
        return VectorRows(np.sort(rng.choice(total, size=min(count, total), replace=False)))

    def matrix(self, node: Node, weight: Array) -> Array:
        """Return the weight as the matrix `[1, O, K]`; of a batch of weights `[1, ..., O, K]`, of a vector O is 1."""
        turned = node.attr("transB", 0) or weight.ndim < 2
        matrix = np.atleast_2d(weight) if turned else np.swapaxes(weight, -1, -2)
        return matrix[np.newaxis]

    def weight(self, node: Node, matrix: Array, shape: tuple[int, ...]) -> Array:
        """Return the matrix `[1, O, K]` in the weight's own shape, contiguous."""
        return np.ascontiguousarray(matrix[0] if node.attr("transB", 0) else matrix[0].T)


@dataclass(frozen=True)
class _Window:
    """Attributes of a convolution, per spatial axis."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int

    @classmethod
    def of(cls, node: Node, graph: Graph) -> _Window:
        kernel = graph.shapes[node.inputs[1]][2:]
        ones = [1] * len(kernel)
        strides, dilations = node.attr("strides", ones), node.attr("dilations", ones)
        return cls(kernel, tuple(strides), tuple(dilations), int(node.attr("group", 1)))

    @property
    def span(self) -> list[int]:
        return [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True)]

    def placement(self, node: Node, size: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return leading pads and output size (ONNX: pads hold all begins, then all ends)."""
        auto, strides = node.attr("auto_pad", "NOTSET"), self.strides
        if auto in SAME:
            out = [-(-n // s) for n, s in zip(size, strides, strict=True)]
            pads = [same_total(n, s, k) for n, s, k in zip(size, strides, self.span, strict=True)]
            return leading_pads(pads, auto), out
        begin, end = self._pads(node)
        spans = zip(size, begin, end, self.span, strides, strict=True)
        return begin, [(n + b + e - k) // s + 1 for n, b, e, k, s in spans]

    def transposed_placement(self, node: Node, size: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return leading pads and output size of a transposed convolution, by the formulas in its ONNX spec."""
        auto = node.attr("auto_pad", "NOTSET")
        extra = node.attr("output_padding", [0] * len(size))
        full = [(n - 1) * s + x + k for n, s, x, k in zip(size, self.strides, extra, self.span, strict=True)]
        given = node.attr("output_shape", None)
        if given is None and auto not in SAME:
            begin, end = self._pads(node)
            return begin, [f - b - e for f, b, e in zip(full, begin, end, strict=True)]
        out = list(given[-len(size) :]) if given else [n * s for n, s in zip(size, self.strides, strict=True)]
        pads = [max(f - o, 0) for f, o in zip(full, out, strict=True)]
        return leading_pads(pads, auto), out

    def _pads(self, node: Node) -> tuple[list[int], list[int]]:
        rank = len(self.kernel)
        none = [0] * (2 * rank)
        given = node.attr("pads", none) if node.attr("auto_pad", "NOTSET") == "NOTSET" else none
        return list(given[:rank]), list(given[rank:])


Source = Callable[[Places, int, int], tuple[Places, NDArray[np.bool_] | bool]]
"""(output position, tap offset, axis) -> (input position, whether the tap meets one)."""


def _window_rows(
    window: _Window, samples: int, size: Sequence[int], out: Sequence[int], *, picks: Places, source: Source
) -> WindowRows:
    """`picks`: chosen places of the flattened output `[samples, *out]`."""
    beyond = int(np.prod(size))
    sample, *place = np.unravel_index(np.sort(picks), (samples, *out))
    taps = np.empty((int(np.prod(window.kernel)), len(picks)), np.int64)
    for row, tap in zip(taps, np.ndindex(*window.kernel), strict=True):
        flat, inside = np.zeros(len(picks), np.int64), np.ones(len(picks), bool)
        for axis, (p, t, d, n) in enumerate(zip(place, tap, window.dilations, size, strict=True)):
            at, there = source(p, t * d, axis)
            inside &= (at >= 0) & (at < n) & there
            flat = flat * n + at
        row[:] = np.where(inside, flat, beyond)
    cuts = np.searchsorted(sample, np.arange(1, samples))
    outputs = np.ravel_multi_index(tuple(place), tuple(out))
    return WindowRows(window.groups, tuple(np.split(taps, cuts, axis=1)), tuple(np.split(outputs, cuts)))


def _some(samples: int, out: Sequence[int], count: int, rng: np.random.Generator) -> Places:
    """Return places of the flattened output, all different."""
    total = samples * int(np.prod(out))
    return rng.choice(total, size=min(count, total), replace=False)
