"""mse: the clip range with the minimum expected squared quantization error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Floats
from quantpipe.calibrate.estimators.legal import legal_range, mirrored
from quantpipe.calibrate.histogram import borders
from quantpipe.errors import ConfigError
from quantpipe.intmath import nearest_step, scales_zero_points, signed_storage
from quantpipe.types import PowerOfTwo, Range, TensorSchema, TensorStats


@dataclass(frozen=True)
class MSE:
    """argmin over clip ranges of E[(x - Q(x))²], x distributed as the histogram, Q with the scale the schema gives.

    Candidates are the observed range shrunk by 2^(-i/per_octave), then `refine` equal steps on either side of the best
    one. Ranges with two free ends shrink both together first, then each end alone. When scales are powers of two the
    candidates are the observed range divided by 2 from 0 to 5 times, thus successive exponents (Vitis `search`). Ties
    go to the wider range. The shrinking of ranges is MQBench's MSEObserver. The expectation is exact for piecewise
    uniform densities, so its accuracy depends on how narrow the bins are compared with the quantization step.
    """

    needs_histogram: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = False

    per_octave: int = 8
    octaves: int = 8
    refine: int = 8

    def __post_init__(self) -> None:
        if min(self.per_octave, self.octaves, self.refine) < 1:
            raise ConfigError("mse needs per_octave, octaves and refine of 1 or more")

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range with the minimum squared error among shrunken ones, by the histogram."""
        low, high = min(stats.minimum, 0.0), max(stats.maximum, 0.0)
        if stats.count == 0 or low == high:
            return legal_range(low, high, stats, schema)
        both_free = low < 0.0 < high and not mirrored(stats, schema)
        if mirrored(stats, schema):
            low, high = -stats.absolute_maximum, stats.absolute_maximum
        best = _Search(stats, bits, schema, low, high=high)
        if schema.power_of_two is not PowerOfTwo.NONE:
            halved = 0.5 ** np.arange(6.0)
            return legal_range(*best(low * halved, high * halved), stats, schema)
        coarse, fine = self._shares()
        a, b = best(low * coarse, high * coarse)
        if both_free:
            # Each line keeps the best so far among its candidates, so the error never grows.
            a, b = best(np.full_like(coarse, a), high * coarse)
            a, b = best(low * coarse, np.full_like(coarse, b))
            a, b = best(np.full_like(fine, a), b * fine)
            a, b = best(a * fine, np.full_like(fine, b))
        else:
            a, b = best(a * fine, b * fine)
        return legal_range(a, b, stats, schema)

    def _shares(self) -> tuple[Floats, Floats]:
        """Return coarse shares of the observed range, and fine shares around a coarse candidate; both fall."""
        ratio = 2.0 ** (1.0 / self.per_octave)
        coarse = ratio ** -np.arange(self.per_octave * self.octaves + 1.0)
        above = np.linspace(ratio, 1.0, self.refine + 1)
        return coarse, np.concatenate([above, np.linspace(1.0, 1.0 / ratio, self.refine + 1)[1:]])


class _Search:
    """Pick the candidate with the minimum expected error among `[J]` ranges, cut to the tensor's observed range."""

    def __init__(self, stats: TensorStats, bits: int, schema: TensorSchema, low: float, *, high: float) -> None:
        self._bits, self._schema, self._low, self._high = bits, schema, low, high
        self._counts, self._edges = occupied(stats)
        self._regular = len(self._counts) > 2 and not narrow_bins(self._edges).any()

    def __call__(self, lows: Floats, highs: Floats) -> tuple[float, float]:
        lows, highs = np.maximum(lows, self._low), np.minimum(highs, self._high)
        dtype = signed_storage(self._bits)
        scale, zero, qmin, qmax = scales_zero_points(lows, highs, self._bits, dtype, schema=self._schema)
        # The cost is that of the integers or that of the bins, whichever are fewer.
        few = qmax - qmin < len(self._counts) and self._regular
        errors = (errors_by_integer if few else expected_errors)(
            self._counts, self._edges, scale.astype(np.float64), qmin - zero, greatest=qmax - zero
        )
        best = int(np.argmin(errors))  # the first of equals is the widest
        return float(lows[best]), float(highs[best])


def occupied(stats: TensorStats) -> tuple[NDArray[np.int64], Floats]:
    """Return counts `[n]` and borders `[n+1]` of the histogram's occupied part, its ends cut to the exact extremes."""
    filled = np.flatnonzero(stats.histogram)
    first, last = int(filled[0]), int(filled[-1])
    edges = borders(stats.limit, len(stats.histogram))[first : last + 2]
    edges[0], edges[-1] = max(edges[0], stats.minimum), min(edges[-1], stats.maximum)
    return stats.histogram[first : last + 1], edges


def expected_errors(
    counts: NDArray[np.int64], edges: Floats, scale: Floats, least: NDArray[np.int64], *, greatest: NDArray[np.int64]
) -> Floats:
    """Return the mean of (x - s·k(x))², k(x) = clip(rint(x/s), `least`, `greatest`), for `[J]` candidates.

    x is uniform inside each bin `[edges[i], edges[i+1]]`, so the mean over a bin is (F(b) - F(a))/(b - a). The
    antiderivative F(x) = s³·(k/12 + u³/3), u = x/s - k, is continuous and covers rounding and clipping at once.

    `counts` are `[n]`, `edges` `[n+1]` in real units, and `scale`, `least` and `greatest` `[J]`; errors are in real
    units squared.
    """
    s = scale[:, None]
    below, above = least[:, None].astype(np.float64), greatest[:, None].astype(np.float64)
    steps = edges[None, :] / s
    whole = nearest_step(steps, below, above)
    steps -= whole
    steps *= steps * steps
    steps *= 4.0
    steps += whole
    integrals = np.diff(steps, axis=1) / 12.0  # in units of s³
    widths = np.diff(edges) / s  # in units of s
    # A bin of no width is a constant tensor or an extreme that lies on a border: its error is that of the point.
    narrow = narrow_bins(edges)
    if narrow.any():
        points = (edges[1:][narrow])[None, :] / s
        integrals[:, narrow] = (points - nearest_step(points, below, above)) ** 2
        widths[:, narrow] = 1.0
    integrals /= widths
    return np.asarray((integrals @ counts.astype(np.float64)) * scale**2 / max(int(counts.sum()), 1))


def errors_by_integer(
    counts: NDArray[np.int64], edges: Floats, scale: Floats, least: NDArray[np.int64], *, greatest: NDArray[np.int64]
) -> Floats:
    """Return the errors of `expected_errors`, at a cost of J·(`greatest` - `least`) instead of J·n.

    It needs more than two bins, and no narrow one. Let H(t) = E[max(t - x, 0)], with the borders t_k = (k + 1/2)·s
    between integers. Then summation by parts gives E[(x - s·k(x))²] = E[(x - s·k_max)²] - 2·s·sum_k H(t_k). Here k runs
    from `least` to k_max - 1, and k_max is `greatest`. H is quadratic in each bin. The inner edges are equally spaced;
    the outer ones may be nearer. Arguments are as in `expected_errors`.
    """
    total, below, density = float(counts.sum()), np.cumsum(counts) - counts, counts / np.diff(edges)
    middles = (edges[1:] + edges[:-1]) / 2
    mean = float(counts @ middles) / total
    # E[(x - m)²]: the spread of the bins' middles, and of each uniform bin around its own.
    variance = float(counts @ ((middles - mean) ** 2 + np.diff(edges) ** 2 / 12)) / total
    at_edges = np.concatenate([[0.0], np.cumsum(below * np.diff(edges) + counts * np.diff(edges) / 2)])
    span = int((greatest - least).max())
    borders_ = (least[:, None] + np.arange(span) + 0.5) * scale[:, None]
    inside = np.clip(borders_, edges[0], edges[-1])
    spacing = (edges[-2] - edges[1]) / (len(counts) - 2)
    bin_ = np.clip((inside - edges[1]) / spacing + 1.0, 0.0, len(counts) - 1.0).astype(np.int64)
    distance = inside - edges[bin_]
    h = (
        at_edges[bin_]
        + distance * (below[bin_] + distance * (density[bin_] / 2))
        + total * (borders_ - inside) * (borders_ > inside)
    )
    top = scale * greatest
    return np.asarray(variance + (mean - top) ** 2 - 2.0 * scale * h.sum(axis=1) / total)


def narrow_bins(edges: Floats) -> NDArray[np.bool_]:
    """Return which bins `[n]` of borders `[n+1]` have no width.

    They belong to a constant tensor, or to an extreme that is exactly on a border.
    """
    return np.asarray(np.diff(edges) <= 1e-9 * np.abs(edges[1:]))
