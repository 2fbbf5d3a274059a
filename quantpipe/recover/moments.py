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
    """Sums rows; the state has the size of one layer's moments."""

    def __init__(self, groups: int, width: int) -> None:
        self._hessian = np.zeros((groups, width, width))
        self._cross = np.zeros((groups, width, width))
        self._float = np.zeros((groups, width))
        self._quantized = np.zeros((groups, width))
        self._rows = 0

    def add(self, x: NDArray[Any], quantized: NDArray[Any]) -> None:
        """Include rows `[n, G, K]` of both inputs."""
        a = np.ascontiguousarray(np.moveaxis(x, 1, 0), dtype=np.float32)
        b = np.ascontiguousarray(np.moveaxis(quantized, 1, 0), dtype=np.float32)
        bt = b.transpose(0, 2, 1)
        self._hessian += bt @ b
        self._cross += a.transpose(0, 2, 1) @ b
        self._float += a.sum(axis=1, dtype=np.float64)
        self._quantized += b.sum(axis=1, dtype=np.float64)
        self._rows += len(x)

    def finish(self) -> Moments:
        n = max(self._rows, 1)
        mean_float, mean_quantized = self._float / n, self._quantized / n
        hessian = self._hessian / n - mean_quantized[:, :, None] * mean_quantized[:, None, :]
        cross = self._cross / n - mean_float[:, :, None] * mean_quantized[:, None, :]
        return Moments(hessian, cross, mean_float, mean_quantized, self._rows)
