"""The integers of a table of which rows are looked up: a scale, or a scale and an offset, for each row.

real = scale · q + offset. The scale is rounded up and the offset to the nearest number of the type that they are stored
in before the integers are made, so that the stored numbers and the integers belong together. Up to 6 bits the range of
a row is the best of 41 shares of it by squared error (as weights have it); with more it is the whole row.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.external_weights import file_array, row_blocks
from quantpipe.intmath import nearest_step
from quantpipe.types import GivenWeight, RowTable, TableLimits, TableNumbers, WeightTensor

Floats = NDArray[np.float32]

SHRINK = np.linspace(0.2, 1.0, 41)
SMALLEST = 2.0**-100
"""Of a number in float32: what is smaller is as good as zero, and some runtimes take it for that."""

FEW_BITS = 6
"""Up to so many bits a narrower range can have less error: it is looked for."""

BLOCK = 1 << 18
"""Values of a table that are worked on at once."""


def row_table(tensor: str, table: NDArray[Any], bits: int, limits: TableLimits, *, outside: bool = False) -> RowTable:
    """Return the integers of a table with the numbers of each row.

    `table`: the real values, `[R, …]` float32. `outside`: whether the integers go to a file of their own, as the table
    lies in one.
    """
    rows = table.reshape(len(table), -1)
    kind = np.dtype(np.uint8 if limits.offset else np.int8)
    values = file_array(rows.shape, kind) if outside else np.empty(rows.shape, kind)
    scale = np.empty(len(rows), np.float32)
    offset = np.zeros(len(rows), np.float32)
    for block in row_blocks(rows, BLOCK):
        part = np.asarray(rows[block], np.float32)
        scale[block], offset[block] = _grid(part, bits, limits)
        values[block] = _steps(part, scale[block], offset[block], bits, affine=limits.offset)
    return RowTable(
        tensor, values, scale, offset if limits.offset else None, bits, table.shape, limits.numbers, limits.layout
    )


def given_table(given: GivenWeight, limits: TableLimits) -> RowTable | None:
    """Return the table whose integers a quantized file gives, with its very scales, or None.

    It has none where the device stores tables in another way: less their zero points, the integers must fit int8.
    """
    grid, rows = given.grid, given.values.reshape(len(given.values), -1)
    beside = limits.numbers is TableNumbers.FLOAT32 and not limits.offset and 8 in limits.bits
    if not beside or given.block is not None or grid.scale.ndim > 1 or grid.axis not in (None, 0):
        return None
    least, most = np.iinfo(np.int8).min, np.iinfo(np.int8).max
    centred = rows.astype(np.int32) - (grid.zero if grid.single else grid.zero[:, None])
    if centred.size and (centred.min() < least or centred.max() > most):
        return None
    scale = np.broadcast_to(grid.scale, len(rows)).astype(np.float32)
    return RowTable(given.tensor, centred.astype(np.int8), scale, None, 8, given.values.shape)


def tied_table(tensor: str, weight: WeightTensor) -> RowTable:
    """Return the table that has the integers of a weight with a scale for each row, `[R, C]` or `[C, R]`."""
    values = weight.values if weight.axis == 0 else weight.values.T
    scale = np.broadcast_to(weight.scale, len(values)).astype(np.float32)
    return RowTable(tensor, values, scale, None, weight.dtype.bits, values.shape)


def real_rows(table: RowTable, rows: slice | NDArray[np.int64] = slice(None)) -> Floats:
    """Return real values of some rows as every form computes them, float32 `[…, C]`: the product, then the sum."""
    real: Floats = table.values[rows].astype(np.float32) * table.scale[rows][..., np.newaxis]
    return real if table.offset is None else real + table.offset[rows][..., np.newaxis]


def _grid(rows: Floats, bits: int, limits: TableLimits) -> tuple[Floats, Floats]:
    """Scale and offset `[R]` of the range with the smallest squared error."""
    wide = rows.astype(np.float64)
    low, high = wide.min(axis=1, initial=np.inf), wide.max(axis=1, initial=-np.inf)
    if not limits.offset:
        high = np.maximum(-low, high)
        low = -high
    shares = SHRINK[::-1] if bits <= FEW_BITS else np.ones(1)
    least = np.full(len(rows), np.inf)
    scale, offset = np.ones(len(rows), np.float32), np.zeros(len(rows), np.float32)
    for share in shares:
        own = _numbers(low, high, share, bits=bits, limits=limits)
        real = _steps(rows, *own, bits, affine=limits.offset) * own[0][:, None] + own[1][:, None]
        error = np.square(real.astype(np.float64) - rows).sum(axis=1)
        better = error < least
        least[better], scale[better], offset[better] = error[better], own[0][better], own[1][better]
    return scale, offset


def _numbers(
    low: NDArray[np.float64], high: NDArray[np.float64], share: float, *, bits: int, limits: TableLimits
) -> tuple[Floats, Floats]:
    """Scale and offset of a share of each row's range, as the type that they are stored in has them."""
    kind = np.float32 if limits.numbers is TableNumbers.FLOAT32 else np.float16
    if limits.offset:
        middle, half = low / 2 + high / 2, (high / 2 - low / 2) * share
        offset = np.where(np.abs(middle - half) < SMALLEST, 0.0, middle - half).astype(kind)
        steps = (2 * half) / ((1 << bits) - 1)
    else:
        offset = np.zeros(len(low), kind)
        steps = high * share / ((1 << (bits - 1)) - 1)
    scale = steps.astype(kind)
    scale = np.where(scale.astype(np.float64) < steps, np.nextafter(scale, kind(np.inf)), scale)
    tiny = np.nextafter(np.float16(0), np.float16(1)) if kind is np.float16 else np.float32(SMALLEST)
    scale = np.where(steps > 0, np.maximum(scale, tiny), kind(1))
    return scale.astype(np.float32), offset.astype(np.float32)


def _steps(rows: Floats, scale: Floats, offset: Floats, bits: int, *, affine: bool) -> Floats:
    """The integers of some rows, in float32: clip(rint((x - offset) / scale))."""
    most = (1 << bits) - 1 if affine else (1 << (bits - 1)) - 1
    apart = rows - offset[:, None] if affine else rows
    return nearest_step(apart / scale[:, None], 0 if affine else -most, most)
