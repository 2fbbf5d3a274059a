"""Digits against plain Python integers, and sums of them against sums of the numbers."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.arrays import EXACT_FLOAT32
from quantpipe.errors import HardwareError
from quantpipe.simulate.digit_sums import Digits, _splits, digits_for
from quantpipe.types import DType, WeightTensor


def weight_of(values: np.ndarray, dtype: DType, zero: int | list[int] = 0) -> WeightTensor:
    """Weights whose zero points are one for all, or one per row."""
    axis = 0 if isinstance(zero, list) else None
    scale = np.ones(len(zero) if isinstance(zero, list) else (), np.float32)
    return WeightTensor("w", values, scale, axis, dtype, dtype.bits, np.array(zero, np.int64))


def exact_sum(of_data: Digits, of_weight: Digits, x: np.ndarray, w: np.ndarray) -> int:
    """Σ x·w by digits, each sum of products in float32, where it must stay below EXACT_FLOAT32."""
    total = 0
    for i, xj in enumerate(of_data.of(x)):
        for k, wk in enumerate(of_weight.of(w)):
            part = np.float32(0)
            for a, b in zip(xj.astype(np.float32), wk.astype(np.float32), strict=True):
                part = np.float32(part + a * b)
                assert abs(float(part)) < EXACT_FLOAT32
            shift = of_data.bits * (of_data.count - 1 - i) + of_weight.bits * (of_weight.count - 1 - k)
            total += int(part) * 2**shift
    return total


@given(st.integers(1, 6), st.integers(1, 16), st.lists(st.integers(-65535, 65535), min_size=1, max_size=20))
def test_digits_add_up_and_stay_below_their_peak(count: int, bits: int, numbers: list[int]) -> None:
    digits = Digits(count, bits)
    if (count - 1) * bits > 30:
        return
    found = [d.tolist() for d in digits.of(np.array(numbers, np.int64))]
    assert len(found) == count
    for position, number in enumerate(numbers):
        parts = [f[position] for f in found]
        assert sum(p * 2 ** (bits * (count - 1 - i)) for i, p in enumerate(parts)) == number
        assert max(abs(p) for p in parts) <= digits.peak(max(abs(n) for n in numbers))


@given(st.integers(1, 1 << 17))
def test_more_digits_are_narrower(peak: int) -> None:
    peaks = [d.peak(peak) for d in _splits(peak)]
    assert peaks[0] == peak
    assert all(a >= b for a, b in itertools.pairwise(peaks))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_sums_of_digits_are_exact_in_float32(data: st.DataObject) -> None:
    """The worst signs, in the worst order, against Python's own integers."""
    terms = data.draw(st.sampled_from([1, 9, 150, 4000]))
    wide = data.draw(st.booleans())
    dtype, peak = (DType.INT16, 65535) if wide else (DType.INT8, data.draw(st.sampled_from([255, 65535])))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    values = rng.integers(dtype.qmin, dtype.qmax + 1, (2, terms)).astype(dtype.numpy)
    if data.draw(st.booleans()):
        values[:] = dtype.qmin
    of_data, of_weight = digits_for(weight_of(values, dtype), 0, peak, "node")
    x = np.where(values[0] < 0, -peak, peak).astype(np.int64)
    total = exact_sum(of_data, of_weight, x, values[0].astype(np.int64))
    assert total == sum(int(a) * int(b) for a, b in zip(x.tolist(), values[0].tolist(), strict=True))


def test_as_few_products_as_possible() -> None:
    small = weight_of(np.full((4, 9), 127, np.int8), DType.INT8)
    assert [d.count for d in digits_for(small, 0, 255, "n")] == [1, 1]
    assert sorted(d.count for d in digits_for(small, 0, 65535, "n")) == [1, 2]
    long = weight_of(np.full((1, 5000), 100, np.int8), DType.INT8)
    assert np.prod([d.count for d in digits_for(long, 0, 255, "n")]) == 2


def fewest_products(rows: list[list[int]], peak: int) -> int:
    """The same in plain Python integers, by trying all numbers and widths of digits."""

    def digits_of(number: int, count: int, bits: int) -> list[int]:
        found = []
        for place in range(count - 1, 0, -1):
            found.append(round(Fraction(number, 1 << (place * bits))))
            number -= found[-1] << (place * bits)
        return [*found, number]

    def reach(count: int, bits: int) -> int:
        split = [[digits_of(w, count, bits) for w in row] for row in rows]
        return max(sum(abs(w[place]) for w in row) for row in split for place in range(count))

    widths = [(1, 0), *itertools.product(range(2, 7), range(1, 17))]
    peaks = {w: max(abs(d) for d in [*digits_of(peak, *w), 1 << (w[1] - 1) if w[1] else 0]) for w in widths}
    reaches = {w: reach(*w) for w in widths}
    return min(d[0] * w[0] for d, w in itertools.product(widths, widths) if peaks[d] * reaches[w] < EXACT_FLOAT32)


@pytest.mark.sliced(72)
@pytest.mark.parametrize("peak", [255, 65535])
@pytest.mark.parametrize(
    ("dtype", "zero"),
    [
        (DType.INT4, 0),
        (DType.UINT8, 0),
        (DType.UINT8, 131),
        (DType.UINT8, [0, 255]),
        (DType.INT8, -128),
        (DType.INT16, 0),
        (DType.INT16, [-32768, 1000]),
        (DType.UINT16, 0),
        (DType.UINT16, 32768),
        (DType.UINT16, [65535, 7]),
    ],
)
def test_weights_with_zero_points(dtype: DType, zero: int | list[int], peak: int) -> None:
    """Sums and the number of products, both against plain Python integers."""
    rng = np.random.default_rng(1)
    terms = 600
    values = rng.integers(dtype.qmin, dtype.qmax + 1, (2, terms)).astype(dtype.numpy)
    values[:, :2] = dtype.qmin, dtype.qmax
    zeros = zero if isinstance(zero, list) else [zero, zero]
    rows = [[q - z for q in row] for row, z in zip(values.tolist(), zeros, strict=True)]
    of_data, of_weight = digits_for(weight_of(values, dtype, zero), 0, peak, "node")
    assert of_data.count * of_weight.count == fewest_products(rows, peak)
    for row in rows:
        signs = np.where(np.array(row) < 0, -peak, peak)
        assert exact_sum(of_data, of_weight, signs, np.array(row)) == sum(peak * abs(w) for w in row)


def test_channels_of_the_second_axis() -> None:
    columns = np.zeros((600, 3), np.int8)
    columns[:, 2] = 127
    found = [d.count for d in digits_for(weight_of(columns, DType.INT8), 1, 255, "n")]
    assert np.prod(found) == 2  # 600 · 127 · 255 is beyond 2^24
    assert [d.count for d in digits_for(weight_of(columns, DType.INT8), 0, 255, "n")] == [1, 1]  # 3 terms only


def test_sums_beyond_all_digits_are_refused() -> None:
    """Six digits of 65535 are at most 4 in magnitude: 2^22 weights of 1 reach 2^24."""
    huge = weight_of(np.broadcast_to(np.int8(1), (1, 1 << 22)), DType.INT8)
    with pytest.raises(HardwareError, match="up to 6 digits for data and weights they may reach"):
        digits_for(huge, 0, 65535, "node")
