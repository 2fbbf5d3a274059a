"""Threshold estimators against brute force on raw samples and direct implementations of their definitions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from calibrate_samples import KINDS, samples, stats_of
from hypothesis import given
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
    Searched,
)
from quantpipe.calibrate.estimators.kl import best_bin, divergences
from quantpipe.calibrate.estimators.mse import expected_errors
from quantpipe.errors import ConfigError
from quantpipe.intmath import dequantize, quantize, scale_zero_point, signed_storage
from quantpipe.types import PowerOfTwo, Range, Symmetry, TensorSchema

SYMMETRIC = TensorSchema()
ASYMMETRIC = TensorSchema(symmetry=Symmetry.ASYMMETRIC)
UNSIGNED = TensorSchema(symmetry=Symmetry.SYMMETRIC_UNSIGNED)
ALL: tuple[Estimator, ...] = (
    MaxRange(),
    Power2Range(),
    Percentile(),
    MeanRange(),
    MovingAverage(),
    MSE(),
    KL(),
    Searched(),
)
SCHEMAS = tuple(
    TensorSchema(symmetry=s, power_of_two=p, denominator=d)
    for s in Symmetry
    for p, d in ((PowerOfTwo.NONE, "max"), (PowerOfTwo.UP, "range"), (PowerOfTwo.NEAREST, "max"))
)


def error(data: NDArray[np.float32], range_: Range, bits: int, schema: TensorSchema) -> float:
    """Mean squared error of really quantizing the raw samples."""
    dtype = signed_storage(bits)
    scale, zero, qmin, qmax = scale_zero_point(range_, bits, dtype, schema)
    back = dequantize(quantize(data, scale, zero, qmin=qmin, qmax=qmax, dtype=dtype), scale, zero)
    return float(np.mean((data.astype(np.float64) - back) ** 2))


# --- what all of them promise ---------------------------------------------------------------------------------------


@pytest.mark.sliced(8)
@pytest.mark.parametrize("estimator", ALL, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("kind", KINDS)
def test_ranges_have_the_schemas_form(estimator: Estimator, schema: TensorSchema, kind: str) -> None:
    data = samples(kind, 4000)
    stats = stats_of(*np.array_split(data, 4))
    range_ = estimator(stats, 8, schema)
    assert 0 < range_.threshold < np.inf
    if schema.symmetry is Symmetry.ASYMMETRIC:
        assert min(0.0, stats.minimum) <= range_.low and range_.high <= max(0.0, stats.maximum)
    elif schema.symmetry is Symmetry.SYMMETRIC_UNSIGNED and stats.minimum >= 0:
        assert range_.low == 0.0
    else:
        assert range_.low == -range_.high
    if not isinstance(estimator, Power2Range):
        assert range_.threshold <= stats.absolute_maximum
    assert np.isfinite(error(data, range_, 8, schema))


@pytest.mark.sliced(8)
@pytest.mark.parametrize("estimator", ALL, ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("schema", SCHEMAS)
@pytest.mark.parametrize("constant", [0.0, 3.0, -3.0, 1e-30])
def test_constant_tensors(estimator: Estimator, schema: TensorSchema, constant: float) -> None:
    data = np.full((5, 7), constant, np.float32)
    range_ = estimator(stats_of(data, data), 8, schema)
    scale, *_ = scale_zero_point(range_, 8, signed_storage(8), schema)
    if constant == 0.0:
        power2 = isinstance(estimator, Power2Range) and schema.symmetry is not Symmetry.ASYMMETRIC
        assert range_.threshold == (1.0 if power2 else 0.0)
        assert power2 or scale == 1.0
        return
    assert range_.threshold > 0.0
    # One step off at worst; a scale rounded to the nearest power of two may be too small by sqrt(2).
    cut = (1 - 0.5**0.5) * abs(constant) if schema.power_of_two is PowerOfTwo.NEAREST else 0.0
    assert error(data, range_, 8, schema) <= (float(scale) + cut) ** 2 * 1.01


@pytest.mark.parametrize("estimator", ALL, ids=lambda e: type(e).__name__)
def test_no_finite_value_is_a_range_of_nothing(estimator: Estimator) -> None:
    assert estimator(stats_of(np.full(3, np.nan, np.float32)), 8, ASYMMETRIC) == Range(0, 0)


# --- extremes -------------------------------------------------------------------------------------------------------


def test_max_range() -> None:
    stats = stats_of(np.asarray([-1.0, 3.0], np.float32))
    assert MaxRange()(stats, 8, SYMMETRIC) == Range(-3, 3)
    assert MaxRange()(stats, 8, ASYMMETRIC) == Range(-1, 3)


@given(st.floats(2**-100, 2.0**100, width=32))
def test_power2_range_is_the_next_power(x: float) -> None:
    threshold = Power2Range()(stats_of(np.asarray([x, -x], np.float32)), 8, SYMMETRIC).threshold
    assert threshold / 2 < x <= threshold and np.frexp(threshold)[0] == 0.5


def test_mean_range_averages_batches() -> None:
    stats = stats_of(np.asarray([-1.0, 3.0], np.float32), np.asarray([-2.0, 9.0], np.float32))
    assert MeanRange()(stats, 8, SYMMETRIC) == Range(-6, 6)
    assert MeanRange()(stats, 8, ASYMMETRIC) == Range(-1.5, 6)


# --- percentile -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [50.0, 90.0, 99.0, 99.9, 99.99, 100.0])
def test_percentile_is_numpys_within_a_bin(kind: str, p: float) -> None:
    data = samples(kind)
    stats = stats_of(*np.array_split(data, 5))
    bin_ = 2 * stats.limit / len(stats.histogram) * 1.001

    def near(ours: float, values: NDArray[np.float32], percent: float) -> bool:
        # Between two samples any value is a percentile.
        low, high = (float(np.percentile(values, percent, method=m)) for m in ("lower", "higher"))  # type: ignore[call-overload]
        return low - bin_ <= ours <= high + bin_

    assert near(Percentile(p)(stats, 8, SYMMETRIC).threshold, np.abs(data), p)
    range_ = Percentile(p)(stats, 8, ASYMMETRIC)
    if stats.minimum >= 0:
        assert range_.low == 0 and near(range_.high, data, p)
    elif stats.maximum <= 0:
        assert range_.high == 0 and near(range_.low, data, 100 - p)
    else:
        assert near(range_.high, data, 50 + p / 2) and near(range_.low, data, 50 - p / 2)


@pytest.mark.parametrize("schema", [SYMMETRIC, ASYMMETRIC, UNSIGNED])
@pytest.mark.parametrize("kind", KINDS)
def test_percentile_grows_with_p_up_to_the_maximum(schema: TensorSchema, kind: str) -> None:
    stats = stats_of(samples(kind))
    ranges = [Percentile(p)(stats, 8, schema) for p in (1, 10, 50, 90, 99, 99.9, 100)]
    assert all(a.low >= b.low and a.high <= b.high for a, b in pairwise(ranges))
    assert ranges[-1] == MaxRange()(stats, 8, schema)


def test_percentile_of_mostly_zeros_keeps_a_bin() -> None:
    data = np.zeros(100000, np.float32)
    data[0] = 4.0
    assert Percentile(99.9)(stats_of(data), 8, ASYMMETRIC).high == pytest.approx(4.0 / 2048)


@pytest.mark.parametrize("p", [0.0, -1.0, 100.1])
def test_percentile_refuses_nonsense(p: float) -> None:
    with pytest.raises(ConfigError):
        Percentile(p)


# --- mse ------------------------------------------------------------------------------------------------------------


def test_expected_error_is_the_integral() -> None:
    rng = np.random.default_rng(1)
    counts, edges = rng.integers(0, 50, 40), np.linspace(-2.0, 3.0, 41)
    scale, least, greatest = np.asarray([0.3, 0.05, 1.7]), np.asarray([-3, -8, -1]), np.asarray([3, 7, 0])
    got = expected_errors(counts, edges, scale, least, greatest=greatest)
    fine = (np.arange(20000) + 0.5) / 20000
    for j in range(3):
        x = edges[:-1, None] + np.diff(edges)[:, None] * fine[None, :]
        q = np.clip(np.rint(x / scale[j]), least[j], greatest[j])
        direct = (((x - q * scale[j]) ** 2).mean(axis=1) * counts).sum() / counts.sum()
        assert got[j] == pytest.approx(direct, rel=1e-5)


@pytest.mark.sliced(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("schema", [SYMMETRIC, TensorSchema(denominator="range"), ASYMMETRIC, UNSIGNED])
def test_mse_is_near_brute_force_over_raw_samples(kind: str, bits: int, schema: TensorSchema) -> None:
    data = samples(kind, 5000)
    stats = stats_of(*np.array_split(data, 5))
    chosen = MSE()(stats, bits, schema)
    widest = MaxRange()(stats, bits, schema)
    shares = np.linspace(0.01, 1.0, 150)
    one_free = widest.low == 0 or widest.high == 0 or schema.symmetry is not Symmetry.ASYMMETRIC
    if one_free:
        candidates = [Range(widest.low * f, widest.high * f) for f in shares]
    else:
        candidates = [Range(widest.low * f, widest.high * g) for f in shares[::8] for g in shares[::8]]
    best = min(error(data, r, bits, schema) for r in candidates)
    # Ranges one bin apart have errors at most this far apart: d(rms) <= one bin.
    bin_ = 2 * stats.limit / len(stats.histogram)
    assert error(data, chosen, bits, schema) ** 0.5 <= best**0.5 * 1.02 + bin_


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schema", [SYMMETRIC, ASYMMETRIC, UNSIGNED])
def test_mse_beats_or_equals_the_full_range(kind: str, schema: TensorSchema) -> None:
    data = samples(kind)
    stats = stats_of(data)
    for bits in (2, 4, 8):
        ours, full = (error(data, e(stats, bits, schema), bits, schema) for e in (MSE(), MaxRange()))
        assert ours <= full * 1.01


@pytest.mark.parametrize("kind", KINDS)
def test_mse_threshold_grows_with_bits(kind: str) -> None:
    stats = stats_of(samples(kind))
    thresholds = [MSE()(stats, bits, SYMMETRIC).threshold for bits in range(2, 13)]
    step = 2.0 ** (1 / MSE().per_octave)
    assert all(0 < t <= stats.absolute_maximum for t in thresholds)
    assert all(b >= a / step for a, b in pairwise(thresholds))


@pytest.mark.sliced(6)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("power", [PowerOfTwo.UP, PowerOfTwo.NEAREST, PowerOfTwo.SEARCH])
@pytest.mark.parametrize("symmetry", Symmetry)
def test_mse_picks_the_best_power_of_two(kind: str, power: PowerOfTwo, symmetry: Symmetry) -> None:
    data = samples(kind)
    stats = stats_of(data)
    for bits in (3, 4, 8):
        schema = TensorSchema(symmetry=symmetry, denominator="range", power_of_two=power)
        chosen, widest = MSE()(stats, bits, schema), MaxRange()(stats, bits, schema)
        errors = [error(data, Range(widest.low / 2**j, widest.high / 2**j), bits, schema) for j in range(6)]
        bin_ = 2 * stats.limit / len(stats.histogram)
        assert error(data, chosen, bits, schema) ** 0.5 <= min(errors) ** 0.5 * 1.01 + bin_ / 4


def test_mse_leaves_out_a_single_outlier_at_low_precision() -> None:
    stats = stats_of(samples("outlier"))
    assert MSE()(stats, 4, SYMMETRIC).threshold < 10 and MSE()(stats, 8, SYMMETRIC).threshold > 5


# --- kl -------------------------------------------------------------------------------------------------------------


def direct_best_bin(counts: list[float], levels: int, stride: int) -> int | None:
    """The definition with loops: clip, merge, spread, smooth, compare."""
    used = max((i + 1 for i, c in enumerate(counts) if c), default=0)
    if used <= levels:
        return None
    bins = [counts[1], *counts[1:used]]
    best: tuple[float, int] | None = None
    for i in range(used, levels - 1, -stride):
        groups: list[list[int]] = [[] for _ in range(levels)]
        for j in range(i):
            groups[j * levels // i].append(j)
        q = [0.0] * i
        for group in groups:
            filled = [j for j in group if bins[j]]
            for j in filled:
                q[j] = sum(bins[k] for k in group) / len(filled)
        p = [float(b) for b in bins[:i]]
        p[-1] += sum(bins[i:])
        if not any(q):
            continue
        smoothed = []
        for d in (p, q):
            empty = sum(1 for v in d if v == 0)
            d = [1e-4 if v == 0 else v - 1e-4 * empty / (i - empty) for v in d]
            smoothed.append([v / sum(d) for v in d])
        distance = sum(a * np.log(a / b) for a, b in zip(*smoothed, strict=True))
        if best is None or distance < best[0] - 1e-12:
            best = (distance, i)
    return best[1] if best else None


@given(st.lists(st.integers(0, 60), min_size=12, max_size=48), st.sampled_from([2, 4, 8]), st.sampled_from([1, 3]))
def test_kl_is_the_direct_definition(counts: list[int], levels: int, stride: int) -> None:
    ours = best_bin(np.asarray(counts, dtype=np.float64), levels, stride)
    direct = direct_best_bin([float(c) for c in counts], levels, stride)
    assert ours == direct or _tied(counts, levels, ours, direct)


def _tied(counts: list[int], levels: int, a: int | None, b: int | None) -> bool:
    """Sums in another order may settle an exact tie the other way."""
    if a is None or b is None:
        return False
    bins = np.trim_zeros(np.asarray(counts, dtype=np.float64), "b")
    bins[0] = bins[1]
    first, second = divergences(bins, np.asarray([a, b]), levels)
    return bool(abs(first - second) < 1e-9)


def test_kl_clips_outliers_and_keeps_bounded_data() -> None:
    outlier = stats_of(samples("outlier", 200000))
    assert KL()(outlier, 8, SYMMETRIC).threshold < 10
    uniform = stats_of(samples("uniform", 200000))
    assert KL()(uniform, 8, SYMMETRIC).threshold > 0.95


def test_kl_is_max_range_where_the_histogram_is_too_coarse() -> None:
    stats = stats_of(samples("laplace"))
    assert KL()(stats, 12, SYMMETRIC) == MaxRange()(stats, 12, SYMMETRIC)
    with pytest.raises(ConfigError):
        KL(stride=0)
