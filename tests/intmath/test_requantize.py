"""The three requantize kinds against plain Python integers, with int32 extremes and every tie."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from intmath_oracle import rounded

from quantpipe.errors import DataError, HardwareError
from quantpipe.intmath import (
    Rounding,
    narrow_multiplier,
    quantize_multiplier,
    requantize_fixed_point,
    requantize_float,
    requantize_shift,
)

LEAST, GREATEST = -(2**31), 2**31 - 1

accumulators = st.one_of(st.integers(LEAST, GREATEST), st.integers(-300, 300), st.sampled_from([LEAST, GREATEST, 0]))
LEAST_WIDE, GREATEST_WIDE = (-(2**62), 2**62)


def clip(x: int, low: int, high: int) -> int:
    return min(max(x, low), high)


@given(accumulators, st.floats(2**-40, 4, width=32), st.integers(-128, 127), st.sampled_from(Rounding))
def test_float_multiplier(acc: int, multiplier: float, zero: int, mode: Rounding) -> None:
    product = float(np.float32(acc) * np.float32(multiplier))
    expected = clip(rounded(Fraction(product), mode) + zero, -128, 127)
    assert int(requantize_float(acc, multiplier, zero, qmin=-128, qmax=127, rounding=mode)) == expected


@given(st.integers(-(2**22), 2**22), st.integers(0, 20))
def test_float_multiplier_is_exact_for_small_accumulators_and_powers_of_two(acc: int, shift: int) -> None:
    got = int(requantize_float(acc, 2.0**-shift, 0, qmin=LEAST_WIDE, qmax=GREATEST_WIDE))
    assert got == round(Fraction(acc, 2**shift))


@given(accumulators, st.integers(-20, 62), st.integers(-128, 127), st.sampled_from(Rounding))
def test_shift(acc: int, shift: int, zero: int, mode: Rounding) -> None:
    exact = Fraction(acc) / Fraction(2) ** shift
    got = int(requantize_shift(acc, shift, zero, qmin=LEAST_WIDE, qmax=GREATEST_WIDE, rounding=mode))
    assert got == rounded(exact, mode) + zero


@given(accumulators, st.integers(1, 31))
def test_shift_is_the_written_formula(acc: int, n: int) -> None:
    assert int(requantize_shift(acc, n, 3, qmin=-128, qmax=127)) == clip(((acc + 2 ** (n - 1)) >> n) + 3, -128, 127)


def test_ties_of_a_shift() -> None:
    acc = np.arange(-6, 7)
    got = {
        mode: requantize_shift(acc, 2, 0, qmin=LEAST_WIDE, qmax=GREATEST_WIDE, rounding=mode).tolist()
        for mode in Rounding
    }
    assert got == {m: [rounded(Fraction(int(a), 4), m) for a in acc] for m in Rounding}


def doubling_high_multiply(a: int, b: int) -> int:
    """gemmlowp fixedpoint.h, in unbounded integers; `//` floors, so C's division is written by sign."""
    if a == b == LEAST:
        return GREATEST
    nudged = a * b + (2**30 if a * b >= 0 else 1 - 2**30)
    return nudged // 2**31 if nudged >= 0 else -(-nudged // 2**31)


def divide_by_power(x: int, exponent: int) -> int:
    mask = 2**exponent - 1
    return (x >> exponent) + ((x & mask) > (mask >> 1) + (x < 0))


multipliers = st.one_of(st.integers(2**30, GREATEST), st.integers(LEAST, GREATEST), st.just(0))


@given(accumulators, multipliers, st.integers(-31, 30), st.integers(-128, 127))
def test_double_rounding_is_gemmlowps(acc: int, m: int, shift: int, zero: int) -> None:
    left = clip(acc << max(shift, 0), LEAST, GREATEST)
    expected = divide_by_power(doubling_high_multiply(left, m), max(-shift, 0)) + zero
    assert int(requantize_fixed_point(acc, (m, shift), zero, qmin=LEAST_WIDE, qmax=GREATEST_WIDE)) == expected
    assert int(requantize_fixed_point(acc, (m, shift), zero, qmin=-128, qmax=127)) == clip(expected, -128, 127)


@given(accumulators, multipliers, st.integers(-31, 30), st.integers(-128, 127))
def test_single_rounding_rounds_once_half_up(acc: int, m: int, shift: int, zero: int) -> None:
    exact = Fraction(acc * m) / 2 ** (31 - shift)
    expected = clip(rounded(exact, Rounding.HALF_UP), LEAST, GREATEST) + zero
    assert (
        int(requantize_fixed_point(acc, (m, shift), zero, qmin=LEAST_WIDE, qmax=GREATEST_WIDE, rounding="single"))
        == expected
    )


@given(st.integers(2**29, GREATEST), st.integers(2, 31))
def test_fewer_bits_of_a_multiplier_are_its_nearest(m: int, bits: int) -> None:
    exact = rounded(Fraction(m, 2 ** (31 - bits)), Rounding.HALF_UP)
    assert int(narrow_multiplier(m, bits)) == min(exact, 2**bits - 1)


def test_fifteen_bits_are_those_of_tensorflow_lite() -> None:
    """MultiplyByQuantizedMultiplier of 64-bit sums in kernels/internal/common.h."""
    for m in (2**30, 0x7FFEFFFF, 0x7FFF0000, 0x7FFF7FFF, 0x7FFF8000, GREATEST):
        assert int(narrow_multiplier(m, 15)) == (0x7FFF if m >= 0x7FFF0000 else (m + (1 << 15)) >> 16)


@given(st.floats(2**-31, 2**29))
def test_quantize_multiplier_is_normalized_and_close(m: float) -> None:
    q31, shift = quantize_multiplier(m)
    assert 2**30 <= q31 < 2**31 and -31 <= shift <= 30
    assert abs(Fraction(q31) * Fraction(2) ** (shift - 31) / Fraction(m) - 1) <= Fraction(1, 2**31)


def test_quantize_multiplier_at_its_ends() -> None:
    assert quantize_multiplier(0.0) == (0, 0)
    assert quantize_multiplier(1.0) == (2**30, 1)
    assert quantize_multiplier(0.5) == (2**30, 0)
    assert quantize_multiplier(1.0 - 2**-40) == (2**30, 1)  # rounds up to 2^31 and is normalized again
    assert quantize_multiplier(2.0**-40) == (0, 0)
    for bad in (-1.0, float("nan"), float("inf"), 2.0**30):
        with pytest.raises(DataError):
            quantize_multiplier(bad)


@given(accumulators, st.floats(2**-20, 0.99))
def test_fixed_point_follows_the_real_product(acc: int, m: float) -> None:
    q31, shift = quantize_multiplier(m)
    exact = Fraction(acc) * Fraction(m)
    for kind, slack in (("double", 2), ("single", 1)):
        got = int(requantize_fixed_point(acc, (q31, shift), 0, qmin=LEAST_WIDE, qmax=GREATEST_WIDE, rounding=kind))  # type: ignore[arg-type]
        assert abs(got - exact) <= slack + abs(exact) * Fraction(1, 2**30)


def test_per_channel_multipliers_and_shifts() -> None:
    rng = np.random.default_rng(3)
    acc = rng.integers(-(2**20), 2**20, (2, 4, 3, 3)).astype(np.int32)
    real = rng.uniform(1e-4, 0.1, 4)
    pairs = [quantize_multiplier(m) for m in real]
    m, shift = np.asarray([p[0] for p in pairs]), np.asarray([p[1] for p in pairs])
    whole = {
        "float": requantize_float(acc, real, 1, qmin=-128, qmax=127, axis=1),
        "shift": requantize_shift(acc, [3, 0, -2, 12], 1, qmin=-128, qmax=127, axis=1),
        "fixed": requantize_fixed_point(acc, (m, shift), 1, qmin=-128, qmax=127, axis=1),
    }
    for c in range(4):
        part = acc[:, c]
        np.testing.assert_array_equal(whole["float"][:, c], requantize_float(part, real[c], 1, qmin=-128, qmax=127))
        np.testing.assert_array_equal(
            whole["shift"][:, c], requantize_shift(part, [3, 0, -2, 12][c], 1, qmin=-128, qmax=127)
        )
        np.testing.assert_array_equal(
            whole["fixed"][:, c], requantize_fixed_point(part, (int(m[c]), int(shift[c])), 1, qmin=-128, qmax=127)
        )


def test_illegal_shifts_are_refused() -> None:
    with pytest.raises(HardwareError, match="legal"):
        requantize_shift(1, 63, 0, qmin=-128, qmax=127)
    with pytest.raises(HardwareError, match="legal"):
        requantize_fixed_point(1, (2**30, 31), 0, qmin=-128, qmax=127)
    with pytest.raises(HardwareError, match=r"shift of -32\.\.-32"):
        requantize_fixed_point(1, (2**30, -32), 0, qmin=-128, qmax=127)
    for shift in (30, -31):  # the ends of what is legal
        requantize_fixed_point(1, (2**30, shift), 0, qmin=-128, qmax=127)
    with pytest.raises(HardwareError, match="'single'"):
        requantize_fixed_point(1, (2**30, 0), 0, qmin=-128, qmax=127, rounding="triple")  # type: ignore[arg-type]
