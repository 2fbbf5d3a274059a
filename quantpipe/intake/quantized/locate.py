"""Find the given tensors and integers of a file in the cleaned float model.

The clean-up renames constants, transposes them and multiplies channels by what a BatchNormalization has. Integers go
along: a transposed weight has transposed integers, and a channel multiplied by g has its scale multiplied by |g|.
Tensors that it splits or joins otherwise lose their integers, and the report lists them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Graph
from quantpipe.intake.quantized.quantized_ops import RESHAPE
from quantpipe.intake.rewrites.dense import FLAT
from quantpipe.types import GivenWeight, Imported, ImportedGrid

GONE = "the clean-up of the float model has no such tensor left (it became part of another op)"
CHANGED = "the clean-up folded something into it that its integers do not follow"
CLOSE = 1e-5
"""Relative error of a weight that a BatchNormalization was folded into, in float32."""
LARGEST = 24
"""Ways to order the axes of a constant that are tried."""


def located(given: Imported, original: Graph, graph: Graph) -> Imported:
    """Return a file's grids and integers by the names of the cleaned model, with what is lost and why.

    `given` has the names of `original`, the float model before its clean-up.
    """
    known = {t for node in graph.nodes for t in node.outputs} | graph.input_names | set(graph.constant_names())
    lost: dict[str, str] = {}
    tensors = []
    for tensor in given.tensors:
        if tensor.tensor in known:
            tensors.append(tensor)
            if (flat := flat_view(tensor.tensor, graph)) is not None:
                tensors.append(replace(tensor, tensor=flat))
        elif not original.is_constant(tensor.tensor):
            lost[tensor.tensor] = GONE
    weights = {}
    for weight in given.weights:
        if weight.grid.dtype.bits > 16 or not original.consumers.get(weight.tensor):
            continue  # a bias is given by its integers alone, at the scale of the products
        found = _found(weight, original, graph)
        if found is None:
            lost[weight.tensor] = CHANGED
        else:
            weights[found.tensor] = found
    biases = {w.tensor: w.values.reshape(-1).astype(np.int64) for w in given.weights if _is_bias(w, original, graph)}
    return replace(given, tensors=tuple(tensors), weights=tuple(weights.values()), lost=lost, biases=biases)


def _is_bias(weight: GivenWeight, original: Graph, graph: Graph) -> bool:
    """Return whether the cleaned model has a constant of 32-bit integers as it was."""
    if weight.grid.dtype.bits <= 16 or not graph.is_constant(weight.tensor):
        return False
    return np.array_equal(original.constant(weight.tensor).reshape(-1), graph.constant(weight.tensor).reshape(-1))


def flat_view(tensor: str, graph: Graph) -> str | None:
    """Return the rows of a tensor as the clean-up laid them flat for a dense layer, or None: they have its grid."""
    readers = (node for node, port in graph.consumers.get(tensor, ()) if port == 0)
    return next((n.outputs[0] for n in readers if n.op == RESHAPE and n.outputs[0] == f"{tensor}{FLAT}"), None)


def _found(weight: GivenWeight, original: Graph, graph: Graph) -> GivenWeight | None:
    """Return the integers of the constant of the cleaned model that is made of a given one."""
    real = original.constant(weight.tensor)
    for name in _candidates(weight.tensor, original, graph):
        array = graph.constant(name)
        if array.size != real.size or array.dtype.kind != "f":
            continue
        for order in _orders(real, array):
            turned = _turned(weight, order, name)
            if np.array_equal(np.transpose(real, order), array):
                return turned
            if (scaled := _scaled(turned, np.transpose(real, order), array)) is not None:
                return scaled
    return None


def _candidates(name: str, original: Graph, graph: Graph) -> Iterator[str]:
    """Yield the constant of the same name, those that the same nodes read, then all of them."""
    tried: set[str] = set()
    names = {node.name for node, _ in original.consumers.get(name, ())}
    read = [t for n in names if n in graph.by_name for t in graph.by_name[n].inputs]
    for found in (name, *read, *graph.constant_names()):
        if found not in tried and graph.is_constant(found):
            tried.add(found)
            yield found


def _orders(real: NDArray[Any], array: NDArray[Any]) -> Iterator[tuple[int, ...]]:
    """Yield the orders of axes that give one array the shape of the other, that as it is first."""
    if real.ndim != array.ndim:
        return
    for order in itertools.islice(itertools.permutations(range(real.ndim)), LARGEST):
        if tuple(real.shape[a] for a in order) == array.shape:
            yield order


def _turned(weight: GivenWeight, order: tuple[int, ...], name: str) -> GivenWeight:
    grid = weight.grid
    if grid.axis is not None and not grid.single:
        grid = replace(grid, axis=order.index(grid.axis % len(order)))
        if grid.scale.ndim > 1:
            grid = replace(grid, scale=np.transpose(grid.scale, order), zero=np.transpose(grid.zero, order))
    return replace(weight, tensor=name, values=np.transpose(weight.values, order), grid=grid)


def _multiplied(weight: GivenWeight, real: NDArray[Any], array: NDArray[Any]) -> GivenWeight | None:
    """Return the integers of a weight that was multiplied by one positive number: they are the same."""
    largest = np.unravel_index(np.argmax(np.abs(real)), real.shape)
    factor = float(array[largest]) / float(real[largest]) if real[largest] else 0.0
    if factor <= 0 or not np.allclose(real * factor, array, rtol=CLOSE, atol=0):
        return None
    return replace(weight, grid=replace(weight.grid, scale=(weight.grid.scale * factor).astype(np.float32)))


def _scaled(weight: GivenWeight, real: NDArray[Any], array: NDArray[Any]) -> GivenWeight | None:
    """Return the integers of a weight whose output channels, along axis 0, were multiplied by a number each.

    A matrix is multiplied by one number (the alpha of a Gemm): its channels may lie along either axis.
    """
    grid = weight.grid
    if weight.block is None and array.ndim == 2:
        return _multiplied(weight, real, array)
    if weight.block is not None or array.ndim < 3 or (not grid.single and grid.axis != 0):
        return None
    count = len(array)
    zero = np.broadcast_to(grid.zero, count).astype(np.int64)
    along = (count, *[1] * (array.ndim - 1))
    centred = weight.values.astype(np.int64) - zero.reshape(along)
    whole, wanted = (a.reshape(count, -1).astype(np.float64) for a in (centred, array))
    squares = (whole * whole).sum(axis=1)
    step = (whole * wanted).sum(axis=1) / np.where(squares > 0, squares, 1.0)
    if np.any(np.abs(whole * step[:, None] - wanted).max(axis=1) > CLOSE * np.abs(wanted).max(axis=1)):
        return None
    values = centred * np.where(step < 0, -1, 1).reshape(along) + zero.reshape(along)
    if values.min() < grid.low or values.max() > grid.high:
        return None
    scale = np.where(step == 0, 1.0, np.abs(step)).astype(np.float32)
    made = ImportedGrid(scale, zero, grid.dtype, grid.low, grid.high, 0)
    return replace(weight, values=values.astype(weight.values.dtype), grid=made)
