"""Rounding a layer's weights so that its output error is small: E[(ŵ - w) H (ŵ - w)ᵀ] for several scales at once.

Shapes: targets `[G, O, K]`, scales `[S, G, O]`, minimum and maximum integers `[G, O]`, H `[G, K, K]`; integers and
errors come back per scale, `[S, G, O, K]` and `[S, G, O]`. Scales may belong to single weights, `[S, G, O, K]`, as in
blocks, and bounds likewise, `[G, O, K]`. Inside, columns stand first: `[K, G, S·O]`, all rows of weights at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Floats
from quantpipe.plan import rounded_pairs

Bounds = tuple[Floats, Floats]
Rounded = tuple[Floats, Floats]
BLOCK = 64
SWEEPS = 20

Rounding = Callable[[Floats, Floats, Bounds], Rounded]
"""(target, scales, minimum and maximum integers) -> integers, errors. Rows of weights do not see one another: any part
of them can be rounded by itself."""


@dataclass(frozen=True, eq=False)
class PairBound:
    """Limit the magnitudes of two weights of equal sign that a kernel multiplies next to each other.

    `order`: the columns `[K]` in the order of the kernel, `most`: the largest sum of two magnitudes.
    """

    order: NDArray[np.int64]
    most: int

    def nearest(self, steps: Floats, low: Floats, high: Floats) -> Floats:
        """Return the nearest integers `[…, K]` of weights in steps, of which no pair is beyond the limit."""
        found = np.empty_like(steps)
        ends = int(np.min(low)), int(np.max(high))
        found[..., self.order] = rounded_pairs(steps[..., self.order], *ends, self.most)
        return found

    def partners(self, order: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return for columns in another order `[G, K]` where there the other one of each pair is, `[K, G]`; else -1."""
        even = len(self.order) // 2 * 2
        other = np.full(len(self.order), -1)
        first, second = self.order[0:even:2], self.order[1:even:2]
        other[first], other[second] = second, first
        place = np.argsort(order, axis=1, kind="stable")
        wanted = other[order]
        return np.where(wanted < 0, -1, np.take_along_axis(place, np.maximum(wanted, 0), axis=1)).T

    def within(self, partner: Floats, low: Floats, high: Floats) -> Bounds:
        """Return the bounds of a weight whose partner has an integer already."""
        return (
            np.maximum(low, -self.most - np.minimum(partner, 0.0)),
            np.minimum(high, self.most - np.maximum(partner, 0.0)),
        )

    def shared(self, steps: Floats, partner: Floats) -> Floats:
        """Return weights in steps; pairs beyond the limit are moved to their share of it."""
        over = (steps * partner > 0) & (np.abs(steps + partner) > self.most)
        share = np.maximum(np.abs(steps) - np.abs(partner) + self.most, 0.0) / 2
        return np.where(over, np.sign(steps) * share, steps)


def nearest(hessian: Floats, pairs: PairBound | None = None) -> Rounding:
    """Return a rounding of each weight for itself.

    `hessian`: second moments of the input, `[G, K, K]` float64. `pairs`: what limits two weights together, or None.
    """

    def rounded(target: Floats, scales: Floats, bounds: Bounds) -> Rounded:
        each, (low, high) = _each(scales, 3), (_each(b, 2) for b in bounds)
        steps = target / each
        integers = intmath.nearest_step(steps, low, high) if pairs is None else pairs.nearest(steps, low, high)
        return integers, row_errors(integers * each - target, hessian)

    return rounded


def gptq(hessian: Floats, pairs: PairBound | None = None) -> Rounding:
    """Return a rounding column by column, in order of falling H_kk; each column takes in the errors of those before.

    With H = U D Uᵀ, U upper triangular with a diagonal of ones, the error of integers q is Σ_k D_k η_k², where η_k =
    w_k + Σ_{j<k} U_jk e_j - s·q_k and e = w - s·q. Rounding w_k + Σ_{j<k} U_jk e_j minimizes each η_k in turn:
    optimal brain quantization in a fixed order (GPTQ, Frantar et al. 2022), written with the factor of H itself instead
    of its inverse's (LDLQ, Chee et al. 2023, who prove the two equal).

    `hessian`: second moments of the input, `[G, K, K]` float64, positive definite. `pairs`: what limits two weights
    together, or None.
    """
    order = _falling(hessian)
    upper, weights = _factor(hessian, order)
    partners = None if pairs is None else pairs.partners(order)

    def rounded(target: Floats, scales: Floats, bounds: Bounds) -> Rounded:
        groups, outs, width = target.shape
        work, steps = _columns(target, order, len(scales)), _flat(scales, order)
        lows, highs = (_flat(np.broadcast_to(b, (len(scales), *b.shape)), order) for b in bounds)
        found, errors = np.zeros_like(work), np.empty_like(work)
        loss = np.zeros(work.shape[1:])
        for first in range(0, width, BLOCK):
            last = min(first + BLOCK, width)
            moved = work[first:last] + _carried(upper[:, :first, first:last], errors[:first])
            for k in range(first, last):
                here, (wide, low, high) = moved[k - first], (a[k % len(a)] for a in (steps, lows, highs))
                steps_here = here / wide
                if pairs is not None and partners is not None:
                    at = partners[k], np.arange(groups)
                    known, open_ = ((partners[k] >= 0) & (partners[k] < k))[:, None], (partners[k] > k)[:, None]
                    steps_here = np.where(open_, pairs.shared(steps_here, work[at] / wide), steps_here)
                    low, high = pairs.within(np.where(known, found[at], 0.0), low, high)
                found[k] = intmath.nearest_step(steps_here, low, high)
                real = found[k] * wide
                loss += weights[:, k, None] * (here - real) ** 2
                errors[k] = work[k] - real
                moved[k - first + 1 :] += upper[:, k, k + 1 : last].T[:, :, None] * errors[k]
        return _rows(found, order, len(scales), outs), _unflat(loss, len(scales), groups, outs)

    return rounded


def coordinate_descent(hessian: Floats, pairs: PairBound | None = None) -> Rounding:
    """Return a rounding that moves each weight in turn to the integer that is best while all others stay.

    It starts from the nearest integers and ends when none moves (at most `SWEEPS` times through). With e = w - s·q that
    is q_k + (e H)_k / (s·H_kk), rounded.

    `hessian`: second moments of the input, `[G, K, K]` float64. `pairs`: what limits two weights together, or None.
    """
    order = _falling(hessian)
    ordered = _ordered(hessian, order)
    diagonal = np.einsum("gkk->gk", ordered)
    partners = None if pairs is None else pairs.partners(order)

    def rounded(target: Floats, scales: Floats, bounds: Bounds) -> Rounded:
        groups, outs, width = target.shape
        work, steps = _columns(target, order, len(scales)), _flat(scales, order)
        lows, highs = (_flat(np.broadcast_to(b, (len(scales), *b.shape)), order) for b in bounds)
        if pairs is None:
            found = intmath.nearest_step(work / steps, lows, highs)
        else:
            found = _flat(pairs.nearest(target / _each(scales, 3), bounds[0], bounds[1]), order)
        for _ in range(SWEEPS):
            before = found.copy()
            pull = _carried(ordered, work - found * steps)
            for first in range(0, width, BLOCK):
                last = min(first + BLOCK, width)
                here, old = pull[first:last], found[first:last].copy()
                for k in range(first, last):
                    each, (wide, low, high) = diagonal[:, k, None], (a[k % len(a)] for a in (steps, lows, highs))
                    if pairs is not None and partners is not None:
                        other = np.where((partners[k] >= 0)[:, None], found[partners[k], np.arange(groups)], 0.0)
                        low, high = pairs.within(other, low, high)
                    best = intmath.nearest_step(found[k] + here[k - first] / (wide * each), low, high)
                    moved = np.where(_gains(best - found[k], here[k - first], wide, each), best, found[k])
                    step = (moved - found[k]) * wide
                    found[k] = moved
                    here[k - first + 1 :] -= ordered[:, k, k + 1 : last].T[:, :, None] * step
                part = steps[first:last] if len(steps) > 1 else steps
                pull[last:] -= _carried(ordered[:, first:last, last:], (found[first:last] - old) * part)
            if np.array_equal(found, before):
                break
        real = _rows(found * steps, order, len(scales), outs)
        return _rows(found, order, len(scales), outs), row_errors(real - target, hessian)

    return rounded


ROUNDINGS: dict[str, Callable[[Floats, PairBound | None], Rounding]] = {
    "nearest": nearest,
    "gptq": gptq,
    "coordinate_descent": coordinate_descent,
}
"""(H, limit of pairs) -> rounding: what follows from H alone is made once, for all rows."""


def row_errors(difference: Floats, hessian: Floats) -> Floats:
    """Return d H dᵀ per row of weights, the expected squared error of one output.

    `difference`: d = ŵ - w, `[…, G, O, K]`. `hessian`: H, `[G, K, K]`. Returns the errors `[…, G, O]`.
    """
    return np.asarray(np.einsum("...gok,...gok->...go", difference @ hessian, difference))


def undamped(errors: Floats, difference: Floats, damping: Floats) -> Floats:
    """Return errors `[G, O]` by H from those by H + damping · I, without another product by H.

    `difference`: d = ŵ - w, `[G, O, K]`. `damping`: one amount per group, `[G]`.
    """
    added = damping[:, None] * np.einsum("gok,gok->go", difference, difference)
    return np.asarray(np.maximum(errors - added, 0.0))


def _each(values: Floats, axes: int) -> Floats:
    """Numbers of rows of weights, with an axis for the weights; single weights' numbers as they are."""
    return values if values.ndim > axes else values[..., None]


def _gains(steps: Floats, pull: Floats, scale: Floats, diagonal: Floats) -> NDArray[np.bool_]:
    """Return whether moving by `steps` lowers the error by more than float64 can be wrong about.

    Otherwise two weights could trade places for ever.
    """
    move = steps * scale
    change = move * (move * diagonal - 2 * pull)
    return np.asarray(change < -1e-12 * diagonal * scale**2)


def _falling(hessian: Floats) -> NDArray[np.int64]:
    """Columns in order of falling H_kk, `[G, K]`."""
    return np.argsort(-np.einsum("gkk->gk", hessian), axis=1, kind="stable")


def _factor(hessian: Floats, order: NDArray[np.int64]) -> tuple[Floats, Floats]:
    """(U, D) of H = U D Uᵀ in an order of columns: Cholesky from the last column to the first."""
    backwards = np.ascontiguousarray(order[:, ::-1])
    lower = np.linalg.cholesky(_ordered(hessian, backwards))
    upper = lower[:, ::-1, ::-1]
    roots = np.einsum("gkk->gk", upper)
    return upper / roots[:, None, :], roots**2


def _ordered(hessian: Floats, order: NDArray[np.int64]) -> Floats:
    return hessian[np.arange(len(hessian))[:, None, None], order[:, :, None], order[:, None, :]]


def _carried(factor: Floats, errors: Floats) -> Floats:
    """Σ_j factor[g, j, k] · errors[j, g, r] -> `[k, g, r]`."""
    if len(factor) == 1:
        return np.asarray(factor[0].T @ errors[:, 0])[:, None]
    return np.ascontiguousarray((factor.transpose(0, 2, 1) @ errors.transpose(1, 0, 2)).transpose(1, 0, 2))


def _columns(target: Floats, order: NDArray[np.int64], count: int) -> Floats:
    """`[G, O, K]` -> `[K, G, S·O]` in order."""
    columns = target.transpose(2, 0, 1)[order.T, np.arange(len(target)), :]
    return np.tile(columns, (1, 1, count))


def _rows(columns: Floats, order: NDArray[np.int64], count: int, outs: int) -> Floats:
    """The inverse: `[K, G, S·O]` -> `[S, G, O, K]`."""
    width, groups = columns.shape[:2]
    found = np.empty((width, groups, count * outs))
    found[order.T, np.arange(groups), :] = columns
    return np.ascontiguousarray(found.reshape(width, groups, count, outs).transpose(2, 1, 3, 0))


def _flat(values: Floats, order: NDArray[np.int64]) -> Floats:
    """`[S, G, O]` -> `[1, G, S·O]`; of single weights, `[S, G, O, K]` -> `[K, G, S·O]` in order."""
    if values.ndim == 4:
        return np.concatenate([_columns(part, order, 1) for part in values], axis=2)
    return np.ascontiguousarray(values.transpose(1, 0, 2)).reshape(1, values.shape[1], -1)


def _unflat(values: Floats, count: int, groups: int, outs: int) -> Floats:
    return np.ascontiguousarray(values.reshape(groups, count, outs).transpose(1, 0, 2))
