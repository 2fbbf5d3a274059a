"""Rounding, saturation and wrap against plain Python integers and fractions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from intmath_oracle import rounded

from quantpipe.intmath import Rounding, nearest_step, round_real, saturate, wrap
from quantpipe.types import DType

INTEGER_TYPES = [d for d in DType if not d.is_float]

halves = st.integers(-(2**33), 2**33).map(lambda n: n / 2)
reals = st.one_of(halves, st.floats(-1e15, 1e15), st.sampled_from([0.49999999999999994, -0.49999999999999994, -0.0]))


@given(reals, st.sampled_from(Rounding))
def test_round_real_is_exact(x: float, mode: Rounding) -> None:
    assert int(round_real(x, mode)) == rounded(Fraction(x), mode)


def test_the_modes_differ_at_halves_only_as_named() -> None:
    x = [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]
    assert round_real(x, Rounding.HALF_EVEN).tolist() == [-2, -2, 0, 0, 2, 2]
    assert round_real(x, Rounding.HALF_UP).tolist() == [-2, -1, 0, 1, 2, 3]
    assert round_real(x, Rounding.HALF_AWAY).tolist() == [-3, -2, -1, 1, 2, 3]
    assert round_real(x, Rounding.FLOOR).tolist() == [-3, -2, -1, 0, 1, 2]


@pytest.mark.parametrize("mode", Rounding)
def test_infinities_and_nan_pass_through(mode: Rounding) -> None:
    got = round_real([np.inf, -np.inf, np.nan], mode)
    assert got[0] == np.inf and got[1] == -np.inf and np.isnan(got[2])


@given(st.integers(-(2**40), 2**40), st.sampled_from(INTEGER_TYPES))
def test_saturate_and_wrap(x: int, dtype: DType) -> None:
    assert int(saturate(x, dtype)) == min(max(x, dtype.qmin), dtype.qmax)
    low_bits = x % 2**dtype.bits
    signed = low_bits - 2**dtype.bits if dtype.signed and low_bits >= 2 ** (dtype.bits - 1) else low_bits
    assert int(wrap(x, dtype)) == signed


@pytest.mark.parametrize("dtype", [d for d in INTEGER_TYPES if d.bits < 64])
def test_saturate_and_wrap_store_in_the_numpy_type(dtype: DType) -> None:
    x = np.asarray([[dtype.qmin - 1, dtype.qmin, 0], [1, dtype.qmax, dtype.qmax + 1]], dtype=np.int64)
    assert saturate(x, dtype).dtype == wrap(x, dtype).dtype == dtype.numpy
    assert saturate(x, dtype).tolist() == [[dtype.qmin, dtype.qmin, 0], [1, dtype.qmax, dtype.qmax]]
    assert wrap(x, dtype).tolist() == [[dtype.qmax, dtype.qmin, 0], [1, dtype.qmax, dtype.qmin]]


def test_int64_holds_every_integer_that_comes() -> None:
    x = np.asarray([-(2**63), -1, 0, 2**63 - 1], dtype=np.int64)
    assert wrap(x, DType.INT64).tolist() == saturate(x, DType.INT64).tolist() == x.tolist()


def test_integers_are_asked_for_where_they_are_meant() -> None:
    with pytest.raises(TypeError, match="integers expected"):
        saturate(np.asarray([1.5]), DType.INT8)


def test_nearest_step_rounds_to_even_and_clips_in_place() -> None:
    x = np.asarray([-9.0, -0.5, 0.5, 1.5, 9.0], dtype=np.float32)
    out = np.empty_like(x)
    assert nearest_step(x, -3, 4, out=out) is out
    assert out.tolist() == [-3, 0, 0, 2, 4]
