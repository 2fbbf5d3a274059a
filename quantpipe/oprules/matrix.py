"""How an accumulating op reads its data as a matrix product: rows of inputs against a matrix of weights, per group.

out[n, g, o] = Σ_k rows[n, g, k] · weight[g, o, k]. Accuracy recovery works on this form and needs nothing else of an
op.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Graph, Node

Array = NDArray[Any]


class MatrixForm(Protocol):
    """One op's form. Shapes: rows `[n, G, K]`, weight matrix `[G, O, K]`."""

    def rows(
        self, node: Node, graph: Graph, arrays: Sequence[Array], count: int, rng: np.random.Generator
    ) -> list[Array]:
        """`count` sampled rows of each of several tensors that stand at the same place (float and quantized input)."""
        ...

    def matrix(self, node: Node, weight: Array) -> Array: ...

    def weight(self, node: Node, matrix: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of `matrix`."""
        ...


class ConvForm:
    """Convolutions of any group count: the row of an output position holds the input patch under the kernel."""

    def rows(
        self, node: Node, graph: Graph, arrays: Sequence[Array], count: int, rng: np.random.Generator
    ) -> list[Array]:
        kernel = graph.shapes[node.inputs[1]][2:]
        groups = int(node.attr("group", 1))
        rank = len(kernel)
        strides = node.attr("strides", [1] * rank)
        dilations = node.attr("dilations", [1] * rank)
        size = arrays[0].shape[2:]
        begin, out = _placement(node, size, kernel, strides, dilations)
        total = arrays[0].shape[0] * int(np.prod(out))
        picks = rng.choice(total, size=min(count, total), replace=False)
        sample, *place = np.unravel_index(picks, (arrays[0].shape[0], *out))
        taps = list(np.ndindex(*kernel))
        found = [np.zeros((len(picks), a.shape[1], len(taps)), a.dtype) for a in arrays]
        for number, tap in enumerate(taps):
            at = [p * s - b + t * d for p, s, b, t, d in zip(place, strides, begin, tap, dilations, strict=True)]
            inside = np.logical_and.reduce([(i >= 0) & (i < n) for i, n in zip(at, size, strict=True)])
            index = tuple(i[inside] for i in at)
            for rows, array in zip(found, arrays, strict=True):
                rows[inside, :, number] = array[(sample[inside], slice(None), *index)]
        return [rows.reshape(len(picks), groups, -1) for rows in found]

    def matrix(self, node: Node, weight: Array) -> Array:
        groups = int(node.attr("group", 1))
        return weight.reshape(groups, weight.shape[0] // groups, -1)

    def weight(self, node: Node, matrix: Array, shape: tuple[int, ...]) -> Array:
        return matrix.reshape(shape)


class DenseForm:
    """Gemm and MatMul by a constant matrix: every leading axis counts rows."""

    def rows(
        self, node: Node, graph: Graph, arrays: Sequence[Array], count: int, rng: np.random.Generator
    ) -> list[Array]:
        flat = [a.reshape(-1, 1, a.shape[-1]) for a in arrays]
        picks = rng.choice(len(flat[0]), size=min(count, len(flat[0])), replace=False)
        return [a[picks] for a in flat]

    def matrix(self, node: Node, weight: Array) -> Array:
        return (weight if node.attr("transB", 0) else weight.T)[np.newaxis]

    def weight(self, node: Node, matrix: Array, shape: tuple[int, ...]) -> Array:
        return np.ascontiguousarray(matrix[0] if node.attr("transB", 0) else matrix[0].T)


def _placement(
    node: Node, size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Leading pads and output size per spatial axis (ONNX: pads hold all begins, then all ends)."""
    rank = len(size)
    span = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    auto = node.attr("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        out = [-(-n // s) for n, s in zip(size, strides, strict=True)]
        pads = [max((o - 1) * s + k - n, 0) for o, s, k, n in zip(out, strides, span, size, strict=True)]
        return [p // 2 if auto == "SAME_UPPER" else p - p // 2 for p in pads], out
    given = node.attr("pads", [0] * (2 * rank)) if auto == "NOTSET" else [0] * (2 * rank)
    begin, end = given[:rank], given[rank:]
    out = [(n + b + e - k) // s + 1 for n, b, e, k, s in zip(size, begin, end, span, strides, strict=True)]
    return list(begin), out
