"""kl: the threshold with the minimum divergence of the quantized from the clipped histogram (as in TensorRT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Floats
from quantpipe.calibrate.estimators.legal import legal_range, one_sided
from quantpipe.calibrate.histogram import magnitudes
from quantpipe.errors import ConfigError
from quantpipe.types import Range, TensorSchema, TensorStats

EPSILON = 1e-4
"""Counts given to empty bins before the logarithm (MXNet, TVM `_smooth_distribution`)."""

FINEST = 4
"""Histogram bins per integer below which the groups are so small that Q is P whatever the threshold."""

_LARGEST_SHARE = 0.05
"""Up to this much taken from each filled bin, the sums over bins are expanded in powers of it."""

_TERMS = 9
"""Terms of that expansion: the next one is below 0.05^9 / 72 = 3e-14 of a count."""


@dataclass(frozen=True)
class KL:
    """T = w·argmin_i KL(P_i || Q_i) over the histogram of |x| with bins of width w, i = L, L + stride, … to max|x|.

    P_i: the first i bins, with all counts beyond added to the last of them. Q_i: the first i bins (without the rest)
    merged into L equal groups, bin j into group floor(j·L/i), each group's count spread evenly over its non-empty bins.
    KL(P||Q) = sum p·log(p/q), both normalized after smoothing. L is the number of integers on the positive side:
    2^(b-1), or 2^b for data of one sign where the schema gives it all integers. The bin at zero takes its neighbour's
    count, because the zeros of a relu would outvote everything else. Asymmetric ranges of two signs are cut from [-T,
    T]. A histogram of no more than FINEST·L bins up to max|x| cannot distinguish thresholds: max|x| then (as Glow). T
    need not grow with the bits: the criterion compares the shapes of two distributions, not the errors of the values.
    Source: S. Migacz, 8-bit inference with TensorRT, GTC 2017; NVIDIA pytorch-quantization `calib/histogram.py`;
    smoothing: TVM `kl_divergence.py`.
    """

    needs_histogram: ClassVar[bool] = True
    needs_batches: ClassVar[bool] = False

    stride: int = 8

    def __post_init__(self) -> None:
        if self.stride < 1:
            raise ConfigError(f"kl stride={self.stride} is illegal; legal: 1 or more")

    def __call__(self, stats: TensorStats, bits: int, schema: TensorSchema) -> Range:
        """Return the range whose threshold gives the minimum divergence between real and quantized magnitudes."""
        counts = magnitudes(stats.histogram).astype(np.float64)
        width = stats.limit / len(counts)
        levels = 1 << (bits if one_sided(stats, schema) else bits - 1)
        filled = np.flatnonzero(counts)
        fine = len(filled) > 0 and int(filled[-1]) + 1 > FINEST * levels
        bin_ = best_bin(counts, levels, self.stride) if fine else None
        largest = stats.absolute_maximum
        threshold = largest if bin_ is None else min(bin_ * width, largest)
        return legal_range(-threshold if stats.minimum < 0.0 else 0.0, threshold, stats, schema)


def best_bin(counts: Floats, levels: int, stride: int) -> int | None:
    """Return the number of bins with the minimum divergence, the largest of equals; None if undecidable.

    `counts` are magnitudes per bin, `[n]`, for `levels` integers; `stride` is the distance of two candidates in bins.
    """
    filled = np.flatnonzero(counts)
    used = int(filled[-1]) + 1 if len(filled) else 0
    if used <= levels:
        return None
    bins = counts[:used].copy()
    bins[0] = bins[1]
    # Down from the full range, so that the full range is always tried and wins ties.
    candidates = np.arange(used, levels - 1, -stride)
    distances = divergences(bins, candidates, levels)
    best = int(np.argmin(distances))
    return int(candidates[best]) if np.isfinite(distances[best]) else None


def divergences(bins: Floats, candidates: NDArray[np.int64], levels: int) -> Floats:
    """Return KL(P_i || Q_i) in nats for the `[J]` numbers of kept bins i; infinite where it cannot be smoothed.

    `bins` `[n]` are integral counts, the last one not 0; levels <= i <= n. The sums over kept bins are differences of
    running sums, so the cost grows with the groups, not with the bins. Let a and b be the counts that smoothing takes
    from each filled bin of P and Q, with N and M their totals. With g groups of sum S, m filled bins and mean S/m in Q:
    KL = (sum (c - a)·log(c - a) - sum_g (S_g - a·m_g)·log(S_g/m_g - b)) / N + log(M/N), the last bin apart.
    """
    i = candidates
    filled = bins > 0.0
    total = float(bins.sum())
    sums, members = _running(bins), _running(filled.astype(np.float64))
    ends = -(-(np.arange(levels + 1) * i[:, None]) // levels)  # ceil: where the groups begin and end
    group, in_group = np.diff(sums[ends], axis=1), np.diff(members[ends], axis=1)
    kept, n_filled = sums[i], members[i]
    last = bins[i - 1] + total - kept  # P's last bin holds what lies beyond
    last_is_new = bins[i - 1] == 0.0  # filled in P, empty in Q
    n_empty = i - n_filled
    with np.errstate(divide="ignore", invalid="ignore"):
        a = EPSILON * (n_empty - last_is_new) / (n_filled + last_is_new)
        b = EPSILON * n_empty / n_filled
        mean = np.where(in_group > 0.0, group / in_group, np.inf)
        least = np.minimum.accumulate(np.where(filled, bins, np.inf))
        legal = (n_filled > 0) & (a < np.minimum(least[i - 2], last)) & (b < mean.min(axis=1))
        entropy = _smoothed_entropy(bins, i - 1, a) + (last - a) * np.log(last - a)
        # The last bin's own group counts P's mass there, not Q's.
        cross = np.where(in_group > 0.0, (group - a[:, None] * in_group) * np.log(mean - b[:, None]), 0.0).sum(axis=1)
        own = np.take_along_axis(mean, ((i - 1) * levels // i)[:, None], axis=1)[:, 0]
        cross += np.where(last_is_new, (last - a) * np.log(EPSILON), (last - bins[i - 1]) * np.log(own - b))
        # Bins that are empty in both have the same count there, and smoothing keeps the totals: N = total, M = kept.
        found = (entropy - cross) / total + np.log(kept / total)
    return np.where(legal, found, np.inf)


def _smoothed_entropy(bins: Floats, ends: NDArray[np.int64], a: Floats) -> Floats:
    """Sum of (c - a)·log(c - a) over the filled ones of the first `ends` bins, `[J]`, for the `[J]` shares a.

    (c - a)·log(c - a) = c·log c - a·(1 + log c) + sum over n > 1 of a^n·c^(1-n) / (n·(n - 1)).
    """
    filled = bins > 0.0
    c = np.where(filled, bins, 1.0)
    logs = np.where(filled, np.log(c), 0.0)
    found = _running(bins * logs)[ends] - a * (_running(filled.astype(np.float64)) + _running(logs))[ends]
    power = np.where(filled, 1.0, 0.0)
    for n in range(2, _TERMS):
        power = power / c
        found = found + a**n / (n * (n - 1)) * _running(power)[ends]
    for j in np.flatnonzero(a > _LARGEST_SHARE).tolist():  # few bins are filled then
        rest = bins[: ends[j]][filled[: ends[j]]] - a[j]
        found[j] = float((rest * np.log(rest)).sum()) if (rest > 0.0).all() else np.inf
    return found


def _running(values: Floats) -> Floats:
    """Return sums of the first 0, 1, … n values, `[n + 1]`."""
    return np.concatenate([[0.0], np.cumsum(values)])
