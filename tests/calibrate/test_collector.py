"""The collector against NumPy on the whole data: exactness, widening grid, merging, bad values, constant memory."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from calibrate_samples import KINDS, samples, stats_of
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from quantpipe.calibrate import StatsCollector, merge
from quantpipe.calibrate.extremes import KEPT_BATCHES
from quantpipe.calibrate.histogram import BINS, CHUNK, HALF, SMALLEST_LIMIT, borders, coarsen, regrid

BIG = 2.0**100
values = st.one_of(
    st.floats(-BIG, BIG, width=32),
    st.floats(-10, 10, width=32),
    st.just(0.0),
    st.floats(-1, 1, width=32).map(lambda x: float(np.float32(x * 1e-30))),
)
batches_of = st.lists(
    hnp.arrays(np.float32, hnp.array_shapes(min_dims=1, max_dims=3, max_side=6), elements=values),
    min_size=1,
    max_size=5,
)


def check_scalars(stats: Any, data: NDArray[Any]) -> None:
    data = data.astype(np.float64)
    assert stats.count == data.size == stats.histogram.sum()
    assert (stats.minimum, stats.maximum) == (data.min(), data.max())
    scale = max(np.abs(data).max(), 1e-300)
    assert abs(stats.mean - data.mean()) <= 1e-12 * scale
    assert abs(stats.variance - data.var()) <= 1e-12 * scale * scale
    assert stats.histogram.dtype == np.int64 and (stats.histogram >= 0).all()


@given(batches_of)
def test_scalars_are_exact_and_every_value_is_counted(batches: list[NDArray[np.float32]]) -> None:
    stats = stats_of(*batches)
    check_scalars(stats, np.concatenate([b.reshape(-1) for b in batches]))
    assert stats.batch_minimum == pytest.approx(np.mean([float(b.min()) for b in batches], dtype=np.float64))
    assert stats.batch_maximum == pytest.approx(np.mean([float(b.max()) for b in batches], dtype=np.float64))
    assert stats.limit >= stats.absolute_maximum


def exact_counts(data: NDArray[Any], limit: float) -> NDArray[np.int64]:
    index = np.floor(data.astype(np.float64) / (limit / HALF)).astype(np.int64)
    return np.bincount(np.clip(index, -HALF, HALF - 1) + HALF, minlength=BINS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_histogram_is_numpys_up_to_values_on_borders(kind: str, dtype: type) -> None:
    data = samples(kind, 3 * CHUNK // 2).astype(dtype)
    stats = stats_of(*np.array_split(data, 7))
    ours, exact = np.cumsum(stats.histogram), np.cumsum(exact_counts(data, stats.limit))
    # float32 arithmetic may move values within 2^-12 of a bin of a border, never further.
    width = stats.limit / HALF
    edges = borders(stats.limit, BINS)[1:]
    near = np.abs(data[:, None].astype(np.float64) - edges[None, ours != exact]) <= width * 2**-12
    assert (np.abs(ours - exact)[ours != exact] <= near.sum(axis=0)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_a_grid_that_widened_counts_as_if_it_had_been_wide(kind: str) -> None:
    data = samples(kind)
    order = np.argsort(np.abs(data), kind="stable")
    grown = stats_of(*np.array_split(data[order], 50))
    # The same limit from the start: one value of that size first.
    wide = StatsCollector("t")
    wide.histogram.cover(grown.limit)
    wide.update(data, 0)
    exact = wide.finish().histogram
    # Only values equal to a former limit sit one bin lower: they were in its last bin.
    former = np.isin(np.abs(data), np.float32(grown.limit) * np.float32(2.0) ** -np.arange(1, 30))
    moved = np.abs(np.cumsum(grown.histogram) - np.cumsum(exact))
    assert moved.sum() <= np.count_nonzero(former)


@given(st.lists(st.integers(0, 1000), min_size=16, max_size=16), st.integers(0, 70))
def test_coarsen_merges_pairs_towards_zero(counts: list[int], doublings: int) -> None:
    expected = counts
    for _ in range(doublings):
        pairs = [a + b for a, b in zip(expected[::2], expected[1::2], strict=True)]
        expected = [0] * 4 + pairs + [0] * 4
    assert coarsen(np.asarray(counts), doublings).tolist() == expected


@given(st.lists(st.integers(0, 1000), min_size=32, max_size=32), st.floats(1, 50))
def test_regrid_keeps_totals_and_sides_and_moves_no_count_far(counts: list[int], ratio: float) -> None:
    old = np.asarray(counts)
    new = regrid(old, 1.0, ratio)
    assert new.sum() == old.sum() and new[16:].sum() == old[16:].sum() and (new >= 0).all()
    for i, edge in enumerate(borders(ratio, 32)):
        below = np.searchsorted(borders(1.0, 32), [edge - 1 / 16 - 1e-9, edge + 1 / 16 + 1e-9])
        assert old[: max(below[0] - 1, 0)].sum() <= new[:i].sum() <= old[: below[1]].sum()


def test_a_symmetric_tensor_has_a_symmetric_histogram() -> None:
    data = samples("normal")
    data = np.concatenate([data, -data])
    counts = stats_of(data).histogram
    np.testing.assert_array_equal(counts[HALF:], counts[:HALF][::-1])


@pytest.mark.program
@settings(deadline=None)
@given(batches_of, batches_of)
def test_merge_is_one_pass(first: list[NDArray[np.float32]], second: list[NDArray[np.float32]]) -> None:
    a, b = StatsCollector("t"), StatsCollector("t")
    for i, batch in enumerate(first):
        a.update(batch, i)
    for i, batch in enumerate(second):
        b.update(batch, i)
    before = a.finish()
    merged, whole = merge(a, b).finish(), stats_of(*first, *second)
    check_scalars(merged, np.concatenate([x.reshape(-1) for x in (*first, *second)]))
    np.testing.assert_array_equal(a.finish().histogram, before.histogram)
    assert merged.batch_minimum == pytest.approx(whole.batch_minimum)
    assert merged.batch_maximum == pytest.approx(whole.batch_maximum)
    # The sides of zero agree, but for values so small beside the limit that float32 loses their sign.
    data = np.concatenate([x.reshape(-1) for x in (*first, *second)])
    lost = np.count_nonzero((data != 0) & (np.abs(data.astype(np.float64)) < whole.limit * 1e-37))
    assert abs(merged.histogram[HALF:].sum() - whole.histogram[HALF:].sum()) <= lost
    # Positions agree within one bin of each grid.
    slack = (merged.limit + whole.limit) / HALF
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        ours, theirs = (
            borders(s.limit, BINS)[np.searchsorted(np.cumsum(s.histogram), np.ceil(share * s.count))]
            for s in (merged, whole)
        )
        assert abs(ours - theirs) <= slack * 1.001


def test_merging_grids_whose_ratio_is_a_power_of_two_is_exact() -> None:
    data = samples("normal")
    data[0], data[1] = 5.0, 20.0
    a, b = StatsCollector("t"), StatsCollector("t")
    a.update(data[np.abs(data) <= 5], 0)
    b.update(data, 0)
    whole = stats_of(np.append(data, data[np.abs(data) <= 5]))
    assert b.finish().limit == 4 * a.finish().limit
    # Exact, but for the one value that is a's limit and was in its last bin.
    moved = np.abs(np.cumsum(merge(a, b).finish().histogram) - np.cumsum(whole.histogram))
    assert moved.sum() <= 1


@pytest.mark.parametrize("zeros_first", [True, False])
def test_zeros_fit_every_grid(zeros_first: bool) -> None:
    parts = [np.zeros(5, np.float32), np.asarray([1e-6, -1e-6], np.float32)]
    stats = stats_of(*(parts if zeros_first else parts[::-1]))
    assert stats.limit == pytest.approx(1e-6)
    assert stats.histogram[HALF] == 5 and stats.histogram[-1] == 1 and stats.histogram[0] == 1


def test_all_zero_and_empty_and_scalar_tensors() -> None:
    zeros = stats_of(np.zeros((3, 4), np.float32))
    assert (zeros.limit, zeros.minimum, zeros.maximum, zeros.variance) == (1.0, 0.0, 0.0, 0.0)
    assert zeros.histogram[HALF] == 12
    empty = stats_of(np.zeros((3, 0), np.float32))
    assert (empty.count, empty.limit, empty.minimum, empty.batch_maximum) == (0, 1.0, 0.0, 0.0)
    scalar = stats_of(np.float32(-2.5))
    assert (scalar.count, scalar.minimum, scalar.histogram[0]) == (1, -2.5, 1)


@pytest.mark.parametrize("constant", [7.0, -7.0, 0.1])
def test_constant_tensors(constant: float) -> None:
    stats = stats_of(*[np.full((4, 9), constant, np.float32)] * 3)
    assert stats.minimum == stats.maximum == np.float32(constant)
    assert stats.variance == 0.0 and np.count_nonzero(stats.histogram) == 1


@pytest.mark.parametrize("extreme", [1e-45, 1e-40, 1e-38, 3.4e38])
def test_denormal_and_huge_values(extreme: float) -> None:
    data = np.asarray([extreme, -extreme / 2, 0, extreme], np.float32)
    with np.errstate(all="raise", under="ignore"):
        stats = stats_of(data[1:2], data)
    check_scalars(stats, np.append(data, data[1:2]))
    assert np.isfinite(stats.limit) and stats.limit >= SMALLEST_LIMIT


def test_denormals_then_huge() -> None:
    stats = stats_of(np.asarray([1e-45], np.float32), np.asarray([3.4e38], np.float32))
    assert np.isfinite(stats.limit) and stats.histogram[HALF] == 1 and stats.histogram.sum() == 2


def test_nonfinite_values_are_counted_apart_and_located() -> None:
    data = samples("normal", 600).reshape(6, 100)
    clean = stats_of(data[:2], np.delete(data[2:].reshape(-1), [150, 151]))
    bad = data.copy()
    bad[3, 50], bad[3, 51] = np.nan, np.inf
    collector = StatsCollector("t")
    collector.update(bad[:2], 10)
    assert collector.first_nonfinite is None
    collector.update(bad[2:], 12)
    stats = collector.finish()
    assert collector.first_nonfinite == 13 and stats.nonfinite == 2
    assert stats.count == clean.count and stats.variance == pytest.approx(clean.variance)
    np.testing.assert_array_equal(stats.histogram, clean.histogram)
    collector.update(np.full((1, 3), -np.inf, np.float32), 16)
    assert collector.first_nonfinite == 13 and collector.finish().nonfinite == 5


def test_float64_beyond_float32_is_not_finite() -> None:
    stats = stats_of(np.asarray([1e300, 1.0, -2.0]))
    assert (stats.nonfinite, stats.maximum, stats.count) == (1, 1.0, 2)


def test_nothing_finite_at_all() -> None:
    stats = stats_of(np.full((2, 2), np.nan, np.float32))
    assert (stats.count, stats.nonfinite, stats.limit, stats.mean) == (0, 4, 1.0, 0.0)


def test_the_array_is_not_changed_and_layout_does_not_matter() -> None:
    data = samples("normal", 6000).reshape(10, 20, 30)
    copy = data.copy()
    turned = stats_of(data.transpose(2, 0, 1))
    np.testing.assert_array_equal(data, copy)
    np.testing.assert_array_equal(turned.histogram, stats_of(data).histogram)
    assert stats_of(data.astype(np.float16)).count == stats_of((data * 10).astype(np.int8)).count == 6000


def test_state_does_not_grow_with_the_number_of_batches() -> None:
    collector, data = StatsCollector("t"), samples("normal", 64)
    for i in range(KEPT_BATCHES):
        collector.update(data, i)
    size = len(pickle.dumps(collector))
    for i in range(200):
        collector.update(data * (1 + i), i)
    # Only the digits of a few numbers may take more room.
    assert len(pickle.dumps(collector)) <= size + 64
    assert collector.histogram.counts.nbytes == 8 * BINS


@pytest.mark.parametrize(("shape", "most"), [((3, 6, 10), 7), ((2, 64, 7, 7), 500), ((4, 5), 100), ((2, 8), 1)])
def test_some_values_of_each_sample_are_counted_and_extremes_are_those_of_all(
    shape: tuple[int, ...], most: int
) -> None:
    rng = np.random.default_rng(0)
    data = rng.normal(size=shape).astype(np.float32)
    collector = StatsCollector("t", most=most)
    collector.update(data, 0)
    found = collector.finish()
    assert (found.minimum, found.maximum) == (data.min(), data.max())
    assert found.limit == np.abs(data).max()
    size = data[0].size
    stride = next(s for s in range(-(-size // most), 10**6) if all(size % p or s % p for p in range(2, size + 1)))
    taken = data.reshape(-1)[::stride]
    check_scalars(replace(found, minimum=taken.min(), maximum=taken.max()), taken)
    assert found.count <= max(shape[0] * most + 1, 1)
    if most * shape[0] > 3 * size // min(shape[1:]):  # enough of them: every channel is met
        places = np.arange(data.size)[::stride]
        assert {int(p) // (size // shape[1]) % shape[1] for p in places} == set(range(shape[1]))
