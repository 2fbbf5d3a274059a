"""Sparse constants of TensorFlow Lite files as dense arrays.

A file stores the elements in some order of axes, with axes of blocks after them. Each level of that order is dense (it
has a size), or it lists the places that exist (compressed sparse rows). The format is described next to the table
SparsityParameters of TensorFlow Lite's schema.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DENSE = 0
"""DimensionType.DENSE of the schema; the other type is SPARSE_CSR."""


def dense_array(sparsity: Any, values: NDArray[Any], shape: tuple[int, ...], vectors: dict[int, Any]) -> NDArray[Any]:
    """Return the dense array `shape` of the stored values; `vectors` has the schema's tables of indices by their type.

    Raises ValueError where the description contradicts itself.
    """
    order, blocked = (_whole(v) for v in (sparsity.TraversalOrderAsNumpy(), sparsity.BlockMapAsNumpy()))
    levels, rank = sparsity.DimMetadataLength(), len(shape)
    expected = rank + blocked.size
    if levels != expected or sorted(order.tolist()) != list(range(expected)):
        raise ValueError(f"its order of axes is {order.tolist()}, of {rank} axes and {blocked.size} blocks")
    if len(set(blocked.tolist())) < blocked.size or np.any((blocked < 0) | (blocked >= rank)):
        raise ValueError(f"its blocks are of the axes {blocked.tolist()}, of {rank}")
    tables = {int(axis): sparsity.DimMetadata(level) for level, axis in enumerate(order)}
    blocks = {int(axis): tables[rank + n].DenseSize() for n, axis in enumerate(blocked)}
    sizes = [size // max(blocks.get(axis, 1), 1) for axis, size in enumerate(shape)]
    if any(block < 1 or shape[axis] % block for axis, block in blocks.items()):
        raise ValueError(f"its blocks have the sizes {list(blocks.values())}, its shape is {list(shape)}")
    places, count = dict[int, NDArray[np.int64]](), 1
    for axis in map(int, order):
        size = sizes[axis] if axis < rank else blocks[int(blocked[axis - rank])]
        parents, found = _level(tables[axis], count, size, vectors)
        places = {held: place[parents] for held, place in places.items()} | {axis: found}
        count = found.size
    if count != values.size:
        raise ValueError(f"it describes {count} elements and stores {values.size}")
    for number, axis in enumerate(map(int, blocked)):
        places[axis] = places[axis] * blocks[axis] + places[rank + number]
    made = np.zeros(shape, values.dtype)
    made[tuple(places[axis] for axis in range(rank))] = values
    return made


def _level(table: Any, count: int, size: int, vectors: dict[int, Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return, for each place of a level, its place in the level before and its index along the axis."""
    if table.Format() == DENSE:
        if table.DenseSize() != size:
            raise ValueError(f"a dense axis of {size} has the size {table.DenseSize()}")
        return np.repeat(np.arange(count), size), np.tile(np.arange(size), count)
    kinds = ((table.ArraySegmentsType(), table.ArraySegments()), (table.ArrayIndicesType(), table.ArrayIndices()))
    ends, found = (_indices(vectors, kind, held) for kind, held in kinds)
    if ends.size != count + 1 or ends[0] or ends[-1] != found.size or np.any(np.diff(ends) < 0):
        raise ValueError(f"a sparse axis has {found.size} places in {ends.size - 1} parts, of {count}")
    parents = np.repeat(np.arange(count), np.diff(ends))
    if np.any((found < 0) | (found >= size)) or np.unique(parents * size + found).size < found.size:
        raise ValueError(f"a sparse axis of {size} has places beyond it, or twice")
    return parents, found


def _indices(vectors: dict[int, Any], kind: int, held: Any) -> NDArray[np.int64]:
    if kind not in vectors or held is None:
        raise ValueError(f"a sparse axis has indices of the type {kind}")
    table = vectors[kind]()
    table.Init(held.Bytes, held.Pos)
    return _whole(table.ValuesAsNumpy())


def _whole(vector: Any) -> NDArray[np.int64]:
    return vector.astype(np.int64) if isinstance(vector, np.ndarray) else np.zeros(0, np.int64)
