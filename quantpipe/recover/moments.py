"""Second moments of a layer's input, in the float model (x) and in the quantized one (x̂), streamed over sampled rows.

Per group: H = E[x̂ᵀx̂], C = E[xᵀx̂], both centred on their own means. Memory is that of one layer: 2·G·K² float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """`hessian`, `cross` `[G, K, K]`; `mean_float`, `mean_quantized` `[G, K]`; `rows` is how many samples they are
    from."""

    hessian: Floats = field(repr=False)
    cross: Floats = field(repr=False)
    mean_float: Floats = field(repr=False)
    mean_quantized: Floats = field(repr=False)
    rows: int


class MomentCollector:
    """Sums rows, as they differ from the first batch's mean: large means cost no precision, constants leave exactly
    0. The state has the size of one layer's moments."""

    def __init__(self, groups: int, width: int) -> None:
        self._hessian = np.zeros((groups, width, width))
        self._cross = np.zeros((groups, width, width))
        self._float = np.zeros((groups, width))
        self._quantized = np.zeros((groups, width))
        self._rows = 0
        self._center_float = np.zeros((groups, 1, width), np.float32)
        self._center_quantized = np.zeros((groups, 1, width), np.float32)

    def add(self, x: NDArray[Any], quantized: NDArray[Any]) -> None:
        """Include rows `[n, G, K]` of both inputs."""
        a = np.ascontiguousarray(np.moveaxis(x, 1, 0), dtype=np.float32)
        b = np.ascontiguousarray(np.moveaxis(quantized, 1, 0), dtype=np.float32)
        if not self._rows and len(x):
            self._center_float = a.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
            self._center_quantized = b.mean(axis=1, keepdims=True, dtype=np.float64).astype(np.float32)
        a, b = a - self._center_float, b - self._center_quantized
        self._hessian += b.transpose(0, 2, 1) @ b
        self._cross += a.transpose(0, 2, 1) @ b
        self._float += a.sum(axis=1, dtype=np.float64)
        self._quantized += b.sum(axis=1, dtype=np.float64)
        self._rows += len(x)

    def finish(self) -> Moments:
        n = max(self._rows, 1)
        mean_float, mean_quantized = self._float / n, self._quantized / n
        hessian = self._hessian / n - mean_quantized[:, :, None] * mean_quantized[:, None, :]
        cross = self._cross / n - mean_float[:, :, None] * mean_quantized[:, None, :]
        return Moments(
            hessian,
            cross,
            mean_float + self._center_float[:, 0],
            mean_quantized + self._center_quantized[:, 0],
            self._rows,
        )
