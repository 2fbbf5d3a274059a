"""Second moments of a layer's quantized input x̂, and of its wanted output y with them, streamed over sampled rows.

Per group: H = E[x̂ᵀx̂] and E[yᵀx̂] (W C, with C = E[xᵀx̂], where y = W x), both centred on their own means. Memory is that
of one layer: G·K² float64, and at most the greater of G·K² and G·O·K besides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Floats
from quantpipe.recover.reconstruct.shrinkage import uncertainty

Rows = NDArray[np.float32]

SHARES = 4
"""Parts of a product of two: one that is made with itself takes as long as two of them."""


@dataclass(frozen=True, eq=False)
class OutputMoments:
    """Hold moments of the wanted output y at the same rows, which is W x, or W x and a shortcut's error.

    `cross` `[G, O, K]` is E[yᵀx̂] about the means, `mean` `[G, O]` the mean of y.
    """

    cross: Floats = field(repr=False)
    mean: Floats


@dataclass(frozen=True, eq=False)
class Moments:
    """Hold moments of a layer's quantized input x̂ over `rows` rows.

    `hessian` is `[G, K, K]`, `mean` `[G, K]`; `uncertainty` is what the samples leave open of H, as a share of its mean
    diagonal. `output`: None where a layer answers for its own rounding alone.
    """

    hessian: Floats = field(repr=False)
    mean: Floats
    rows: int
    uncertainty: float = 0.0
    output: OutputMoments | None = None

    @property
    def about_zero(self) -> Moments:
        """Return both with the means included; what a layer without bias has to go by."""
        row = self.mean[:, None, :]
        hessian = self.hessian + self.mean[:, :, None] * row
        if self.output is None:
            return replace(self, hessian=hessian)
        cross = self.output.cross + self.output.mean[:, :, None] * row
        return replace(self, hessian=hessian, output=replace(self.output, cross=cross))


class MomentCollector:
    """Sum rows of a layer's input, as they differ from the first batch's mean.

    So large means cost no precision, and constants leave exactly 0. The state has the size of one layer's moments. The
    output counts where the float `weight` `[G, O, K]` is given; `shortcut`: and what it is added to.

    Products of one batch are made in float32 by one thread each, so that the sums do not depend on how many cores there
    are; `pool` shares the products among threads.
    """

    def __init__(
        self,
        groups: int,
        width: int,
        weight: Floats | None = None,
        pool: ThreadPoolExecutor | None = None,
        *,
        shortcut: bool = False,
    ) -> None:
        self._weight = weight
        projected = weight is not None and (shortcut or 2 * weight.shape[1] < width)
        self._projection = weight.astype(np.float32) if weight is not None and projected else None
        seen = [width] if weight is None else [width, width if self._projection is None else weight.shape[1]]
        self._products = [np.zeros((groups, size, width)) for size in seen]
        self._sums = [np.zeros((groups, size)) for size in seen]
        self._centers: list[Rows] = [np.zeros((groups, size, 1), np.float32) for size in seen]
        self._squares = np.zeros(groups)
        self._counts: list[int] = []
        self._map: Callable[..., Iterable[Any]] = pool.map if pool is not None else map

    def seen(self, x: Rows, shortcut: Rows | None = None) -> Rows:
        """Return what `add` takes of rows of the float input.

        It is the output where that is narrow, as W x and its product with x̂ are less work then than the product of x
        with x̂; else x.

        `x`: rows of the float input, `[G, K, n]`. `shortcut`: what the output is added to, `[G, O, n]`; the result is
        then the sum. Returns rows `[G, O, n]`, or x.
        """
        if self._projection is None:
            return x
        output = np.asarray(self._projection @ x)
        return output if shortcut is None else output + shortcut

    def add(self, quantized: Rows, seen: Rows | None = None, parts: int = 1) -> None:
        """Include rows of the quantized input, and what is `seen` of the float input. Both are overwritten.

        `quantized`: rows x̂, `[G, K, n]`, in the order of their samples. `seen`: what the method `seen` returns for the
        same rows.
        """
        if not quantized.shape[2]:
            return
        inputs = [rows for rows in (quantized, seen) if rows is not None]
        if not self._counts:
            self._centers = [r.mean(axis=2, keepdims=True, dtype=np.float64).astype(np.float32) for r in inputs]
        list(self._map(_centre, inputs, self._centers, self._sums))
        edges = [quantized.shape[2] * i // parts for i in range(parts + 1)]
        cuts = [slice(*edge) for edge in pairwise(edges) if edge[0] < edge[1]]
        jobs = _with_themselves(self._products[0], self._squares, quantized, cuts)
        if seen is not None:
            jobs += _with_others(self._products[1], seen, quantized)
        list(self._map(_call, jobs))
        self._counts += [cut.stop - cut.start for cut in cuts]

    def finish(self) -> Moments:
        """Return the moments of all rows that were added."""
        rows = sum(self._counts)
        n = max(rows, 1)
        off = [sums / n for sums in self._sums]
        means = [mean + center[:, :, 0] for mean, center in zip(off, self._centers, strict=True)]
        sums = zip(self._products, off, strict=True)
        found = [total / n - mean[:, :, None] * off[0][:, None, :] for total, mean in sums]
        unsure = uncertainty(found[0], self._products[0], self._squares, np.array(self._counts, np.int64))
        if self._weight is None:
            return Moments(found[0], means[0], rows, unsure)
        if self._projection is None:
            found[1], means[1] = self._weight @ found[1], np.einsum("gok,gk->go", self._weight, means[1])
        return Moments(found[0], means[0], rows, unsure, OutputMoments(found[1], means[1]))


def _centre(rows: Rows, center: Rows, total: Floats) -> None:
    """Take the centre off rows in place, and add the rest of their sum to `total`."""
    rows -= center
    total += rows.sum(axis=2)


Job = Callable[[], None]


def _call(job: Job) -> None:
    job()


def _with_themselves(total: Floats, squares: Floats, rows: Rows, cuts: list[slice]) -> list[Job]:
    """A product with itself is whole where there is one group, as the library then makes half of it only."""
    return [partial(_accumulate_own, total[g], squares[g], rows[g], cuts) for g in _halves(len(total))]


def _with_others(total: Floats, a: Rows, b: Rows) -> list[Job]:
    """A sum of products in parts of about the same work, whichever threads take them."""
    groups, height = total.shape[:2]
    if groups > 1:
        return [partial(_accumulate, total[g], a[g], b[g]) for g in _halves(groups)]
    edges = [height * i // SHARES for i in range(SHARES + 1)]
    cuts = [slice(*edge) for edge in pairwise(edges) if edge[0] < edge[1]]
    return [partial(_accumulate, total[:, cut], a[:, cut], b) for cut in cuts]


def _halves(groups: int) -> list[slice]:
    return [slice(0, groups // 2), slice(groups // 2, None)] if groups > 1 else [slice(None)]


def _accumulate(total: Floats, a: Rows, b: Rows) -> None:
    total += a @ b.transpose(0, 2, 1)


def _accumulate_own(total: Floats, squares: Floats, rows: Rows, cuts: list[slice]) -> None:
    """Part by part, with the square of what each part adds."""
    for cut in cuts:
        part = rows[:, :, cut]
        product = part @ part.transpose(0, 2, 1)
        total += product
        squares += np.einsum("gij,gij->g", product, product, dtype=np.float64)
