"""kl: the threshold at which the quantized histogram differs least from the clipped one (TensorRT's calibration)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.estimators.legal import legal_range, one_sided
from quantpipe.calibrate.histogram import magnitudes
from quantpipe.errors import ConfigError
from quantpipe.types import Range, TensorSchema, TensorStats

EPSILON = 1e-4
"""Counts given to empty bins before the logarithm (MXNet, TVM `_smooth_distribution`)."""

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class KL:
    """T = w·argmin_i KL(P_i || Q_i) over the histogram of |x| with bins of width w, i = L, L + stride, … to max|x|.

    P_i: the first i bins, all that lies beyond added to the last of them. Q_i: the first i bins (without the rest)
    merged into L equal groups, bin j into group floor(j·L/i), each group's count spread evenly over its non-empty bins.
    KL(P||Q) = sum p·log(p/q), both normalized after smoothing. L is the number of integers on the positive side:
    2^(b-1), or 2^b for non-negative data where the schema gives it all integers. The bin at zero takes its neighbour's
    count, or the zeros of a relu would outvote everything else. Asymmetric ranges of two signs are cut from [-T, T].
    A histogram with no more than L bins up to max|x| cannot tell thresholds apart: max|x| then (as Glow).
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
        counts = magnitudes(stats.histogram).astype(np.float64)
        width = stats.limit / len(counts)
        levels = 1 << (bits if one_sided(stats, schema) else bits - 1)
        bin_ = best_bin(counts, levels, self.stride)
        largest = stats.absolute_maximum
        threshold = largest if bin_ is None else min(bin_ * width, largest)
        return legal_range(-threshold if stats.minimum < 0.0 else 0.0, threshold, stats, schema)


def best_bin(counts: Floats, levels: int, stride: int) -> int | None:
    """The number of bins i with the least divergence, the greatest of equals; None when nothing can be told."""
    filled = np.flatnonzero(counts)
    used = int(filled[-1]) + 1 if len(filled) else 0
    if used <= levels:
        return None
    bins = counts[:used].copy()
    bins[0] = bins[1]
    # Down from the full range, so that the full range is always tried and wins ties.
    candidates = np.arange(used, levels - 1, -stride)
    beyond = bins.sum() - np.cumsum(bins)
    distances = [divergence(bins[:i], float(beyond[i - 1]), levels) for i in candidates.tolist()]
    best = int(np.argmin(distances))
    return int(candidates[best]) if np.isfinite(distances[best]) else None


def divergence(kept: Floats, beyond: float, levels: int) -> float:
    """KL(P || Q) in nats of `[i]` kept bins and the count beyond them; infinite when no kept bin holds anything."""
    filled = kept > 0.0
    group = (np.arange(len(kept)) * levels) // len(kept)
    members = np.bincount(group, weights=filled, minlength=levels)
    sums = np.bincount(group, weights=kept, minlength=levels)
    quantized = np.where(filled, (sums / np.maximum(members, 1.0))[group], 0.0)
    reference = kept.copy()
    reference[-1] += beyond
    p, q = _smooth(reference), _smooth(quantized)
    if p is None or q is None:
        return float("inf")
    return float(np.sum(p * np.log(p / q)))


def _smooth(counts: Floats) -> Floats | None:
    """Normalized, with EPSILON in the empty bins, taken evenly from the others; None when it cannot be taken."""
    empty = counts == 0.0
    n_empty = int(np.count_nonzero(empty))
    n_filled = len(counts) - n_empty
    if n_filled == 0:
        return None
    share = EPSILON * n_empty / n_filled
    if share >= counts[~empty].min():
        return None
    smooth = np.where(empty, EPSILON, counts - share)
    return np.asarray(smooth / smooth.sum())
