"""Choose the order of axes in memory: ONNX puts channels second, TFLite's kernels want them last.

An order is a permutation: axis i in memory is axis `order[i]` of the ONNX tensor. A Transpose of the model then costs
nothing, since the same memory is its result in another order. A real one is written only where an operator needs an
order that the tensor does not have.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Order = tuple[int, ...]


def plain(rank: int) -> Order:
    """Return the order of ONNX itself."""
    return tuple(range(rank))


def channels_last(rank: int) -> Order:
    """Return the order in which axis 1 lies last."""
    return (0, *range(2, rank), 1) if rank > 2 else plain(rank)


def laid(shape: Sequence[int], order: Order) -> tuple[int, ...]:
    """Return a shape in memory order."""
    return tuple(shape[axis] for axis in order)


def turned(array: NDArray[Any], order: Order) -> NDArray[Any]:
    """Return an array in ONNX's order, any shape, in the order of the file's memory."""
    return np.ascontiguousarray(np.transpose(array, order)).reshape(laid(array.shape, order))


def place(axis: int, order: Order) -> int:
    """Return the position of an ONNX axis in memory; negative ones count from the end."""
    return order.index(axis % len(order))


def between(source: Order, target: Order) -> Order:
    """Return the permutation from one order to another."""
    return tuple(source.index(axis) for axis in target)


def behind_transpose(order: Order, permutation: Sequence[int]) -> Order:
    """Return the order in which a tensor's memory is also the memory of its transposition."""
    return tuple(tuple(permutation).index(axis) for axis in order)


def same_memory(shape: Sequence[int], first: Order, second: Order) -> bool:
    """Return whether two orders of a tensor are the same memory: they differ in axes of one element alone.

    The shape is in ONNX's order; its first axis, the samples', counts as more than one.
    """
    wide = [{axis for axis, size in enumerate(shape) if size != 1 or axis == 0}] * 2
    kept = [[axis for axis in order if axis in own] for order, own in zip((first, second), wide, strict=True)]
    return kept[0] == kept[1]


def channels_first(rank: int) -> Order:
    """Return the order in which the last axis lies second: the inverse of `channels_last`."""
    return (0, rank - 1, *range(1, rank - 1)) if rank > 2 else plain(rank)


def without_axes(order: Order, axes: Collection[int]) -> Order:
    """Return the order of a tensor that lost some axes, given in the numbers of the whole one."""
    left = [axis for axis in range(len(order)) if axis not in axes]
    return tuple(left.index(axis) for axis in order if axis not in axes)
