"""Digits against plain Python integers, and sums of them against sums of the numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.errors import HardwareError
from quantpipe.simulate.digits import EXACT, Digits, _splits, digits_for
from quantpipe.types import DType, WeightTensor


def weight_of(values: np.ndarray, dtype: DType) -> WeightTensor:
    return WeightTensor("w", values, np.float32(1), None, dtype, dtype.bits, np.zeros((), np.int64))


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
    total = 0
    xs = [d.astype(np.float32) for d in of_data.of(x)]
    ws = [d.astype(np.float32) for d in of_weight.of(values[0].astype(np.int64))]
    for i, xj in enumerate(xs):
        for k, wk in enumerate(ws):
            part = np.float32(0)
            for a, b in zip(xj, wk, strict=True):
                part = np.float32(part + a * b)
                assert abs(float(part)) < EXACT
            shift = of_data.bits * (of_data.count - 1 - i) + of_weight.bits * (of_weight.count - 1 - k)
            total += int(part) * 2**shift
    assert total == sum(int(a) * int(b) for a, b in zip(x.tolist(), values[0].tolist(), strict=True))


def test_as_few_products_as_possible() -> None:
    small = weight_of(np.full((4, 9), 127, np.int8), DType.INT8)
    assert [d.count for d in digits_for(small, 0, 255, "n")] == [1, 1]
    assert sorted(d.count for d in digits_for(small, 0, 65535, "n")) == [1, 2]
    long = weight_of(np.full((1, 5000), 100, np.int8), DType.INT8)
    assert np.prod([d.count for d in digits_for(long, 0, 255, "n")]) == 2


def test_channels_of_the_second_axis() -> None:
    columns = np.zeros((600, 3), np.int8)
    columns[:, 2] = 127
    found = [d.count for d in digits_for(weight_of(columns, DType.INT8), 1, 255, "n")]
    assert np.prod(found) == 2  # 600 · 127 · 255 is beyond 2^24
    assert [d.count for d in digits_for(weight_of(columns, DType.INT8), 0, 255, "n")] == [1, 1]  # 3 terms only


def test_sums_beyond_all_digits_are_refused() -> None:
    huge = WeightTensor(
        "w", np.broadcast_to(np.int8(1), (1, 1 << 25)), np.float32(1), None, DType.INT8, 8, np.zeros((), np.int64)
    )
    with pytest.raises(HardwareError, match="float_nodes"):
        digits_for(huge, 0, 255, "node")
