"""Second moments of a layer's input, in the float model (x) and in the quantized one (x̂), streamed over sampled rows.

Per group: H = E[x̂ᵀx̂], C = E[xᵀx̂], both centred on their own means. Memory is that of one layer: 2·G·K² float64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.float32]

SHARES = 4
"""Parts of a product of two: one that is made with itself takes as long as two of them."""


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
    0. The state has the size of one layer's moments. `cross=False` leaves C out (it is then zero).

    Products of one batch are made in float32 by one thread each, so that the sums do not depend on the machine; `pool`
    shares the products among threads.
    """

    def __init__(self, groups: int, width: int, cross: bool = True, pool: ThreadPoolExecutor | None = None) -> None:
        self._hessian = np.zeros((groups, width, width))
        self._cross = np.zeros_like(self._hessian) if cross else None
        self._sums = [np.zeros((groups, width)) for _ in range(2)]
        self._centers: list[Rows] = [np.zeros((groups, width, 1), np.float32) for _ in self._sums]
        self._rows = 0
        self._map: Callable[..., Iterable[Any]] = pool.map if pool is not None else map

    def add(self, quantized: Rows, x: Rows | None = None) -> None:
        """Include rows `[G, K, n]` of x̂ and x, which are overwritten; without x, x̂ is the float input itself."""
        if not quantized.shape[2]:
            return
        inputs = [rows for rows in (quantized, x) if rows is not None]
        if not self._rows:
            self._centers = [r.mean(axis=2, keepdims=True, dtype=np.float64).astype(np.float32) for r in inputs]
        list(self._map(_centre, inputs, self._centers, self._sums))
        products = _products(self._hessian, quantized, quantized)
        if x is not None and self._cross is not None:
            products += _products(self._cross, x, quantized)
        list(self._map(_accumulate, *zip(*products, strict=True)))
        self._rows += quantized.shape[2]

    def finish(self) -> Moments:
        n = max(self._rows, 1)
        off = [sums / n for sums in self._sums]
        means = [mean + center[:, :, 0] for mean, center in zip(off, self._centers, strict=False)]
        hessian = self._hessian / n - off[0][:, :, None] * off[0][:, None, :]
        cross = np.zeros_like(hessian)
        if self._cross is not None:
            cross = self._cross / n - off[1][:, :, None] * off[0][:, None, :]
        return Moments(hessian, cross, means[-1], means[0], self._rows)


def _centre(rows: Rows, center: Rows, total: Floats) -> None:
    """Take the centre off rows in place, and add what is left of their sum to `total`."""
    rows -= center
    total += rows.sum(axis=2)


def _products(total: Floats, a: Rows, b: Rows) -> list[tuple[Floats, Rows, Rows]]:
    """A sum of products in parts of about the same work, whichever threads take them. A product with itself is whole,
    as the library then makes half of it only."""
    groups, width = total.shape[:2]
    if groups > 1:
        cuts = [slice(0, groups // 2), slice(groups // 2, None)]
        return [(total[part], a[part], b[part]) for part in cuts]
    if a is b:
        return [(total, a, b)]
    edges = [width * i // SHARES for i in range(SHARES + 1)]
    cuts = [slice(*edge) for edge in pairwise(edges) if edge[0] < edge[1]]
    return [(total[:, part], a[:, part], b) for part in cuts]


def _accumulate(total: Floats, a: Rows, b: Rows) -> None:
    total += a @ b.transpose(0, 2, 1)
