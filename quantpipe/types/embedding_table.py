"""Constant tables of which rows are looked up: what a device stores of them, which there are, and their integers.

Files of this feature, all `embedding_table.py`: `types`, `annotate` (decides), `lowering` (writes); numbers:
`plan/table_numbers.py`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.types.dtype import DType


class TableNumbers(StrEnum):
    """Name the type in which the scale and the offset of a row are stored."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"


WIDTHS = {TableNumbers.FLOAT32: 4, TableNumbers.FLOAT16: 2}
"""Bytes of a scale, or an offset."""


class TableLayout(StrEnum):
    """Name where the scale and the offset of a row lie.

    `beside`: in tensors of their own. `fused`: as bytes after the integers of the row (Glow's fused types, FBGEMM).
    """

    BESIDE = "beside"
    FUSED = "fused"


@dataclass(frozen=True)
class TableLimits:
    """State how a device stores tables of which rows are looked up (docs/hardware.md, tables).

    `bits`: the widths it reads, the preferred one first. `offset`: whether a row has an offset besides its scale.
    `numbers`: the type of both. `min_bytes`: tables of fewer bytes in float32 stay as they are.
    """

    bits: tuple[int, ...] = (8,)
    offset: bool = False
    numbers: TableNumbers = TableNumbers.FLOAT32
    layout: TableLayout = TableLayout.BESIDE
    min_bytes: int = 16384


@dataclass(frozen=True)
class TableSite:
    """Describe a constant table `[R, …]`, the nodes that look rows of it up, and the bits that it may have.

    `weight` is a weight with the same numbers and a scale for each row (tied embeddings), itself or transposed. The
    table then has the integers of this weight, and is stored once.
    """

    tensor: str
    nodes: tuple[str, ...]
    bits: tuple[int, ...]
    edges: tuple[str, ...] = ()
    weight: str | None = None


@dataclass(frozen=True, eq=False)
class RowTable:
    """Hold the integers of a table: real = scale · q + offset, in float32, the product rounded before the sum.

    `values` are q, `[R, C]`, int8 (no offset) or uint8; `scale` and `offset` are `[R]`, float32 numbers that the type
    `numbers` holds. `shape` is the shape of the float table.
    """

    tensor: str
    values: NDArray[Any] = field(repr=False)
    scale: NDArray[np.float32] = field(repr=False)
    offset: NDArray[np.float32] | None = field(repr=False)
    bits: int
    shape: tuple[int, ...]
    numbers: TableNumbers = TableNumbers.FLOAT32
    layout: TableLayout = TableLayout.BESIDE

    @property
    def dtype(self) -> DType:
        """Return the storage type of the integers."""
        if self.bits <= 4:
            return DType.INT4 if self.offset is None else DType.UINT4
        return DType.INT8 if self.offset is None else DType.UINT8

    @property
    def nbytes(self) -> int:
        """Return the bytes that the table takes: integers at their bits, scales and offsets at their type."""
        rows, columns = (int(size) for size in self.values.shape)
        numbers = 1 if self.offset is None else 2
        return rows * (-(-columns * self.dtype.bits // 8) + numbers * WIDTHS[self.numbers])

    @cached_property
    def digest(self) -> bytes:
        """Return a digest that is equal for equal numbers of one table."""
        names = repr((self.tensor, self.shape, self.bits, self.numbers, self.layout, self.offset is None))
        digest = hashlib.blake2b(names.encode(), digest_size=16)
        for numbers in (self.values, self.scale, self.offset):
            if numbers is not None:
                digest.update(np.ascontiguousarray(numbers).data)
        return digest.digest()
