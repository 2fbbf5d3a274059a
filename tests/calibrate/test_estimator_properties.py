"""What must hold of every threshold: bounds, monotony, and brute force on small histograms, for 2 to 16 bits."""

from __future__ import annotations

import dataclasses
from itertools import pairwise

import numpy as np
import pytest
from calibrate_samples import KINDS, samples, stats_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantpipe.calibrate.estimators import (
    KL,
    MSE,
    Estimator,
    MaxRange,
    MeanRange,
    MovingAverage,
    Percentile,
    Power2Range,
)
from quantpipe.calibrate.estimators.mse import errors_by_integer, expected_errors, narrow_bins, occupied
from quantpipe.intmath import scale_zero_point, signed_storage
from quantpipe.types import PowerOfTwo, Symmetry, TensorSchema, TensorStats

SCHEMAS = [TensorSchema(symmetry=s, power_of_two=p) for s in Symmetry for p in (PowerOfTwo.NONE, PowerOfTwo.UP)]
ESTIMATORS: tuple[Estimator, ...] = (
    MaxRange(),
    Power2Range(),
    MeanRange(),
    MovingAverage(0.1),
    Percentile(99.0),
    MSE(),
    KL(),
)
HALF = 16
small = st.lists(st.integers(0, 40), min_size=2 * HALF, max_size=2 * HALF).filter(any)
values = st.one_of(
    st.floats(-8, 8, width=32),
    st.sampled_from([0.0, 1e-45, -1e-38, 1e30, -3e37, 1.0]),
)


def stats_from(counts: list[int], limit: float = 2.0) -> TensorStats:
    """Statistics of a small histogram whose extremes fill their bins."""
    histogram = np.asarray(counts, dtype=np.int64)
    filled = np.flatnonzero(histogram)
    edges = np.arange(-HALF, HALF + 1) * (limit / HALF)
    low, high = float(edges[filled[0]]), float(edges[filled[-1] + 1])
    return TensorStats("t", int(histogram.sum()), low, high, 0.0, 1.0, low, high, limit, histogram)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(values, min_size=1, max_size=40), min_size=1, max_size=3),
    st.sampled_from(SCHEMAS),
    st.integers(2, 16),
)
@example([[6.5], [6.5]], SCHEMAS[0], 2)  # a moving average of equal values
def test_ranges_lie_inside_the_data_and_have_a_scale(
    batches: list[list[float]], schema: TensorSchema, bits: int
) -> None:
    stats = stats_of(*(np.asarray(b, np.float32) for b in batches))
    for estimator in ESTIMATORS:
        range_ = estimator(stats, bits, schema)
        most = stats.absolute_maximum
        if isinstance(estimator, Power2Range):
            most = 2 * most or 1.0  # nothing but zeros may get a range of 1
        assert -most <= range_.low <= 0.0 <= range_.high <= most
        average = isinstance(estimator, MeanRange | MovingAverage)
        assert average or stats.absolute_maximum == 0.0 or range_.threshold > 0.0
        scale, zero, qmin, qmax = scale_zero_point(range_, bits, signed_storage(bits), schema)
        assert np.isfinite(scale) and scale > 0 and qmin <= zero <= qmax


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("symmetry", Symmetry)
def test_mse_clips_no_more_when_it_has_more_bits(kind: str, symmetry: Symmetry) -> None:
    stats = stats_of(samples(kind))
    ranges = [MSE()(stats, bits, TensorSchema(symmetry=symmetry)) for bits in range(2, 17)]
    step = 2.0 ** (1 / MSE().per_octave)  # candidates of two searches may lie this far apart
    for fewer, more in pairwise(ranges):
        assert more.threshold >= fewer.threshold / step
    assert ranges[-1].threshold >= 0.99 * stats.absolute_maximum


@given(small, st.floats(1, 100), st.floats(1, 100))
def test_percentile_grows_with_the_percentage(counts: list[int], p: float, q: float) -> None:
    stats = stats_from(counts)
    for symmetry in Symmetry:
        schema = TensorSchema(symmetry=symmetry)
        less, more = Percentile(min(p, q))(stats, 8, schema), Percentile(max(p, q))(stats, 8, schema)
        assert more.low <= less.low + 1e-12 and less.high <= more.high + 1e-12


def quantized(x: NDArray[np.float64], low: float, high: float, bits: int) -> NDArray[np.float64]:
    """Asymmetric quantization, written out."""
    s = np.float64(np.float32((high - low) / (2**bits - 1)))
    z = np.clip(np.round(-(2 ** (bits - 1)) - low / s), -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    q = np.clip(np.round(x / s) + z, -(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return np.asarray((q - z) * s)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 40), min_size=HALF, max_size=HALF).filter(any), st.integers(2, 4), st.booleans())
@example([0, 0, 0, 0, 0, 0, 0, 1, 0, 38, 40, 33, 40, 40, 0, 7], 3, False)  # two valleys, eight steps of an octave apart
def test_mse_of_one_sided_data_is_brute_force(counts: list[int], bits: int, negative: bool) -> None:
    """All values of a bin stand for it; every candidate range is tried by really quantizing them.

    None of the coarse candidates is better than what is found. Between them lie ranges that are: a jagged histogram and
    few integers make the error jagged, and only the valley of the best coarse candidate is looked into.
    """
    zeros = [0] * HALF
    stats = stats_from([*counts[::-1], *zeros] if negative else [*zeros, *counts])
    edges = np.arange(HALF + 1) * (2.0 / HALF)
    x = (edges[:-1, None] + np.diff(edges)[:, None] * ((np.arange(64) + 0.5) / 64)).reshape(-1)
    weight = np.repeat(np.asarray(counts, dtype=np.float64), 64)

    def error(far: float) -> float:
        low, high = (-far, 0.0) if negative else (0.0, far)
        return float(weight @ (quantized(-x if negative else x, low, high, bits) - (-x if negative else x)) ** 2)

    found = MSE()(stats, bits, TensorSchema(symmetry=Symmetry.ASYMMETRIC))
    assert (found.high if negative else found.low) == 0.0
    near = 1e-3 * weight.sum() * (2.0 / HALF) ** 2  # 64 points stand for a bin
    coarse = min(error(stats.absolute_maximum * 2.0 ** (-i / 8)) for i in range(65))
    assert error(found.threshold) <= coarse * (1.0 + 1e-3) + near
    best = min(error(stats.absolute_maximum * share) for share in np.linspace(0.02, 1.0, 150))
    assert error(found.threshold) <= best * 1.15 + near


@settings(deadline=None)
@given(
    small.filter(lambda c: np.count_nonzero(c) > 3),
    st.integers(2, 5),
    st.floats(0.02, 3.0),
    st.integers(-12, 12),
)
def test_both_forms_of_the_expected_error_agree(counts: list[int], bits: int, scale: float, zero: int) -> None:
    stats = stats_from(counts)
    inner = dataclasses.replace(stats, minimum=stats.minimum + 0.01, maximum=stats.maximum - 0.02)
    occupied_counts, edges = occupied(inner)
    if narrow_bins(edges).any():
        return
    half = 1 << (bits - 1)
    arguments = (occupied_counts, edges, np.asarray([scale]), np.asarray([-half - zero]))
    greatest = np.asarray([half - 1 - zero])
    expected = expected_errors(*arguments, greatest=greatest)
    assert errors_by_integer(*arguments, greatest=greatest) == pytest.approx(expected, rel=1e-9, abs=1e-13)


def kl_on_raw_samples(data: NDArray[np.float32], bins: int, limit: float, levels: int, stride: int) -> float:
    """The threshold with the least KL, from the samples themselves, with loops and without a shared line."""
    magnitudes = np.abs(data.astype(np.float64))
    counts = np.bincount(np.minimum((magnitudes / limit * bins).astype(int), bins - 1), minlength=bins).astype(float)
    used = int(np.flatnonzero(counts)[-1]) + 1
    counts = counts[:used]
    counts[0] = counts[1]
    best, threshold = np.inf, limit
    for i in range(used, levels - 1, -stride):
        p = counts[:i].copy()
        p[-1] += counts[i:].sum()
        q = np.zeros(i)
        start = 0
        for k in range(levels):
            end = next(j for j in range(start, i + 1) if j == i or j * levels // i > k)
            part = counts[start:end]
            if part.any():
                q[start:end][part > 0] = part.sum() / np.count_nonzero(part)
            start = end
        for d in (p, q):
            empty = d == 0
            if empty.any() and not empty.all():
                d[~empty] -= 1e-4 * np.count_nonzero(empty) / np.count_nonzero(~empty)
                d[empty] = 1e-4
        if not (p > 0).all() or not (q > 0).all():
            continue
        distance = float(np.sum(p / p.sum() * np.log(p / p.sum() / (q / q.sum()))))
        if distance < best:
            best, threshold = distance, i * limit / bins
    return min(threshold, float(magnitudes.max()))


@pytest.mark.parametrize("kind", ["normal", "laplace", "relu", "swish", "outlier"])
@pytest.mark.parametrize("bits", [4, 8])
def test_kl_is_a_direct_implementation_on_raw_samples_within_a_bin(kind: str, bits: int) -> None:
    data = samples(kind, 50000)
    stats = stats_of(*np.array_split(data, 3))
    bins = len(stats.histogram) // 2
    ours = KL(stride=8)(stats, bits, TensorSchema()).threshold
    direct = kl_on_raw_samples(data, bins, stats.limit, 1 << (bits - 1), 8)
    assert ours == pytest.approx(direct, abs=stats.limit / bins * 1.001)


def test_kl_gives_negative_data_all_integers_where_the_schema_does() -> None:
    data = samples("relu", 50000)
    schema = TensorSchema(symmetry=Symmetry.ASYMMETRIC)
    plus, minus = KL()(stats_of(data), 6, schema), KL()(stats_of(-data), 6, schema)
    assert minus.high == 0.0 and minus.threshold == pytest.approx(plus.threshold, rel=0.01)


@pytest.mark.parametrize("bits", [10, 11, 12, 16])
@pytest.mark.parametrize("kind", ["laplace", "normal"])
def test_kl_does_not_clip_what_its_bins_cannot_resolve(kind: str, bits: int) -> None:
    stats = stats_of(samples(kind))
    assert KL()(stats, bits, TensorSchema()) == MaxRange()(stats, bits, TensorSchema())
