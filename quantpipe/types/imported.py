"""The import of a model that is quantized already: grids of tensors, integer weights, and the kept parts of them.

Files of this feature, all `imported.py`: `types`, `evaluate` (compares with the file), `report` (its sentence).
`intake/quantized` reads the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import along
from quantpipe.types.dtype import DType


class Keep(StrEnum):
    """Name what of a quantized model is kept.

    `all`: scales and integer weights. `scales`: scales, zero points and types of tensors and weights; recovery may move
    the integers of weights. `weights`: integer weights with their scales; tensors are calibrated and searched. `none`:
    only the float model of the file.
    """

    ALL = "all"
    SCALES = "scales"
    WEIGHTS = "weights"
    NONE = "none"

    @property
    def tensors(self) -> bool:
        """Return whether tensors keep their scales."""
        return self in (Keep.ALL, Keep.SCALES)

    @property
    def weights(self) -> bool:
        """Return whether weights keep their scales."""
        return self is not Keep.NONE

    @property
    def integers(self) -> bool:
        """Return whether the integers of weights stay as they are."""
        return self in (Keep.ALL, Keep.WEIGHTS)


@dataclass(frozen=True, eq=False)
class ImportedGrid:
    """State which real values a tensor's integers represent: real = scale · (q - zero), low <= q <= high.

    `scale`: float32, `()`, or `[C]` along `axis`. `zero`: int64 in the same shape.
    """

    scale: NDArray[np.float32]
    zero: NDArray[np.int64]
    dtype: DType
    low: int
    high: int
    axis: int | None = None

    @property
    def bits(self) -> int:
        """Return the minimum number of bits that holds all its integers, the sign bit included."""
        if self.low >= 0:
            return max(2, self.high.bit_length())
        return max(2, max(self.high, -self.low - 1).bit_length() + 1)

    @property
    def single(self) -> bool:
        """Return whether the whole tensor has one scale."""
        return self.scale.ndim == 0

    def same(self, other: ImportedGrid) -> bool:
        """Return whether two grids give the same integers the same real values."""
        return (
            self.scale.shape == other.scale.shape
            and bool(np.array_equal(self.scale, other.scale))
            and bool(np.array_equal(self.zero, other.zero))
            and self.dtype is other.dtype
        )


@dataclass(frozen=True, eq=False)
class GivenTensor:
    """Hold the grid of a tensor of the float model, and the names of the file's tensors that hold its integers."""

    tensor: str
    grid: ImportedGrid
    stored: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class GivenWeight:
    """Hold the integers of a constant of the float model.

    `values` are in the shape of the float constant. `block`: how many integers along the reduction share a scale, where
    that is neither a channel nor the tensor. The scales are then not in `grid`, whose own scale belongs to the first
    block.
    """

    tensor: str
    values: NDArray[Any] = field(repr=False)
    grid: ImportedGrid
    stored: str = ""
    block: int | None = None

    def centred(self) -> NDArray[np.int64]:
        """Return the integers less their zero points; of blocks with zero points of their own, the integers."""
        grid, values = self.grid, self.values.astype(np.int64)
        if grid.single or grid.scale.ndim > 1:
            return values - (grid.zero if grid.single else 0)
        return np.asarray(values - along(grid.zero, grid.axis or 0, values.ndim))


@dataclass(frozen=True, eq=False)
class Imported:
    """Hold the grids and integers of a quantized file.

    Attributes:
        forms: How its quantized part is written, such as `QDQ` or `QOperator`.
        tensors: The tensors with given grids, in graph order.
        weights: The constants with given integers, in graph order.
        dynamic: Tensors whose ranges the file computes from each sample.
        keep: Which of these parts are kept.
        lost: Tensors and constants that the clean-up of the float model removed, with the reasons.
        biases: The integers of biases `[C]`, by the names of the real constants.
        runnable: The file's own model as onnxruntime runs it; None in another process, and for external weights.
    """

    forms: tuple[str, ...]
    tensors: tuple[GivenTensor, ...]
    weights: tuple[GivenWeight, ...]
    dynamic: tuple[str, ...] = ()
    keep: Keep = Keep.ALL
    lost: Mapping[str, str] = field(default_factory=dict)
    runnable: Any = field(default=None, repr=False)
    biases: Mapping[str, NDArray[np.int64]] = field(default_factory=dict, repr=False)

    @cached_property
    def tensor(self) -> Mapping[str, GivenTensor]:
        """Return the given tensors by name."""
        return {t.tensor: t for t in self.tensors}

    @cached_property
    def weight(self) -> Mapping[str, GivenWeight]:
        """Return the given constants by name."""
        return {w.tensor: w for w in self.weights}

    @property
    def kept_tensors(self) -> Mapping[str, GivenTensor]:
        """Return the given tensors that keep their grids, by name."""
        return self.tensor if self.keep.tensors else {}

    @property
    def kept_weights(self) -> Mapping[str, GivenWeight]:
        """Return the given constants that keep their scales, by name."""
        return self.weight if self.keep.weights else {}
