"""Second moments of a layer's input, in the float model (x) and in the quantized one (x̂), streamed over sampled rows.

Per group: H = E[x̂ᵀx̂], C = E[xᵀx̂], both centred on their own means. Memory is that of one layer: 2·G·K² float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Moments:
    """`hessian`, `cross` `[G, K, K]`; `mean_float`, `mean_quantized` `[G, K]`; `rows` is how many samples they are
    from."""

    hessian: Floats = field(repr=False)
    cross: Floats = field(repr=False)
    mean_float: Floats = field(repr=False)
    mean_quantized: Floats = field(repr=False)
    rows: int

    @property
    def about_zero(self) -> Moments:
        """H = E[x̂ᵀx̂] and C = E[xᵀx̂], means included; what a layer without bias has to go by."""
        column, row = self.mean_float[:, :, None], self.mean_quantized[:, None, :]
        hessian = self.hessian + self.mean_quantized[:, :, None] * row
        return replace(self, hessian=hessian, cross=self.cross + column * row)


class MomentCollector:
    """Sums rows, as they differ from the first batch's mean: large means cost no precision, constants leave exactly
    0. The state has the size of one layer's moments. `cross=False` leaves C out (it is then H's zeros).

    Products of one batch are made in float32 by one thread each, so that the sums do not depend on the machine; `pool`
    shares the products among threads.
    """

    def __init__(self, groups: int, width: int, cross: bool = True, pool: ThreadPoolExecutor | None = None) -> None:
        self._hessian = np.zeros((groups, width, width))
        self._cross = np.zeros((groups, width, width) if cross else (groups, 0, 0))
        self._float = np.zeros((groups, width))
        self._quantized = np.zeros((groups, width))
        self._rows = 0
        self._center_float: Rows = np.zeros((groups, width, 1), np.float32)
        self._center_quantized: Rows = np.zeros((groups, width, 1), np.float32)
        self._map: Callable[..., Iterable[Any]] = pool.map if pool is not None else map

    def add(self, x: NDArray[Any], quantized: NDArray[Any]) -> None:
        """Include rows `[G, K, n]` of both inputs."""
        count = x.shape[2]
        if not count:
            return
        if not self._rows:
            self._center_float = x.mean(axis=2, keepdims=True, dtype=np.float64).astype(np.float32)
            self._center_quantized = quantized.mean(axis=2, keepdims=True, dtype=np.float64).astype(np.float32)
        pairs = ((x, self._center_float, self._float), (quantized, self._center_quantized, self._quantized))
        a, b = self._map(_centred, *zip(*pairs, strict=True))
        products = [(self._hessian, b, b)] + [(self._cross, a, b)] * bool(self._cross.size)
        parts = [part for product in products for part in _halves(*product)]
        list(self._map(_accumulate, *zip(*parts, strict=True)))
        self._rows += count

    def finish(self) -> Moments:
        n = max(self._rows, 1)
        mean_float, mean_quantized = self._float / n, self._quantized / n
        hessian = self._hessian / n - mean_quantized[:, :, None] * mean_quantized[:, None, :]
        cross = np.zeros_like(hessian)
        if self._cross.size:
            cross = self._cross / n - mean_float[:, :, None] * mean_quantized[:, None, :]
        return Moments(
            hessian,
            cross,
            mean_float + self._center_float[:, :, 0],
            mean_quantized + self._center_quantized[:, :, 0],
            self._rows,
        )


def _centred(rows: NDArray[Any], center: Rows, total: Floats) -> Rows:
    """Rows less their centre; adds their sum to `total`."""
    found = rows - center
    total += found.sum(axis=2, dtype=np.float64)
    return found


def _halves(total: Floats, a: Rows, b: Rows) -> list[tuple[Floats, Rows, Rows]]:
    """A sum of products in two independent parts: by groups, or by rows of the one group."""
    groups, width = total.shape[:2]
    if groups > 1:
        return [(total[part], a[part], b[part]) for part in (slice(0, groups // 2), slice(groups // 2, None))]
    return [(total[:, part], a[:, part], b) for part in (slice(0, width // 2), slice(width // 2, None))]


def _accumulate(total: Floats, a: Rows, b: Rows) -> None:
    total += a @ b.transpose(0, 2, 1)
