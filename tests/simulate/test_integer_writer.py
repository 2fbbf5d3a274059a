"""Integer arithmetic written in ONNX ops, run by onnxruntime, against plain Python integers and fractions: operands on
ties, next to ties, and at the ends of int32."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe.graph.build import GraphBuilder
from quantpipe.graph.execute import Session
from quantpipe.intmath import quantize_multipliers, requantize_fixed_point
from quantpipe.lowering.integers import NARROW, WIDE, IntegerWriter, Width, round_real
from quantpipe.types import FixedPoint, FixedRounding, Rounding

LEAST, GREATEST = -(2**31), 2**31 - 1
Write = Callable[[IntegerWriter, ir.Value], ir.Value]


def run(values: np.ndarray[Any, Any], write: Write) -> list[float]:
    """Write a graph of one input, and run it."""
    builder = GraphBuilder("test", 17, 9)
    x = builder.input("x", values.dtype.name, values.shape)
    result = write(IntegerWriter(builder, lambda name, v: builder.constant(name, np.asarray(v))), x)
    result.type, result.shape = x.type, x.shape
    (found,) = Session(builder.build([result])).run({"x": values}).values()
    return list(found.reshape(-1).tolist())


def rounded(x: Fraction, mode: Rounding) -> int:
    """From the definition."""
    low = x.numerator // x.denominator
    rest = x - low
    if mode is Rounding.FLOOR or rest < Fraction(1, 2):
        return low
    if rest > Fraction(1, 2) or mode is Rounding.HALF_UP:
        return low + 1
    if mode is Rounding.HALF_EVEN:
        return low + low % 2
    return low + 1 if x > 0 else low


def around_ties(n: int, most: int) -> list[int]:
    """Integers whose n-th part is an integer, a tie, or next to one, and the ends."""
    half = 1 << max(n - 1, 0)
    found = {k * half + d for k in range(-9, 10) for d in (-1, 0, 1)} | {most, -most, most - half, half - most}
    return sorted(v for v in found if abs(v) <= most)


@pytest.mark.parametrize("mode", Rounding)
@pytest.mark.parametrize("n", [0, 1, 2, 7, 15, 23, 28])
def test_right_shifts_in_32_bits(n: int, mode: Rounding) -> None:
    check_shift(n, mode, NARROW, np.int32, (1 << 29) - 1)


@pytest.mark.parametrize("mode", Rounding)
@pytest.mark.parametrize("n", [0, 1, 2, 15, 31, 46, 60])
def test_right_shifts_in_64_bits(n: int, mode: Rounding) -> None:
    check_shift(n, mode, WIDE, np.int64, (1 << 61) - 1)


@pytest.mark.parametrize("mode", Rounding)
@pytest.mark.parametrize("n", [62, 63, 64, 107, 149])
def test_right_shifts_by_more_than_a_type_has(n: int, mode: Rounding) -> None:
    """Of values of 32 bits; onnxruntime's shift by 64 and more is whatever the CPU does."""
    values = [-(1 << 32), -7, -1, 0, 1, 7, 1 << 32]
    found = run(np.asarray(values, np.int64), lambda w, x: w.right_shift(x, n, mode, "s", width=WIDE))
    assert found == [rounded(Fraction(v, 1 << n), mode) for v in values]


def check_shift(n: int, mode: Rounding, width: Width, dtype: Any, most: int) -> None:
    values = around_ties(n, most)
    found = run(np.asarray(values, dtype), lambda w, x: w.right_shift(x, n, mode, "s", width=width))
    assert found == [rounded(Fraction(v, 1 << n), mode) for v in values]


@pytest.mark.parametrize("mode", Rounding)
def test_a_shift_per_channel_may_be_zero_in_some(mode: Rounding) -> None:
    counts = np.asarray([0, 1, 5]).reshape(1, 3, 1)
    values = np.arange(-40, 41).reshape(1, 1, -1).repeat(3, axis=1)
    found = run(values.astype(np.int64), lambda w, x: w.right_shift(x, counts, mode, "s", width=WIDE))
    assert found == [rounded(Fraction(v, 1 << n), mode) for n in (0, 1, 5) for v in range(-40, 41)]


def gemmlowp(acc: int, m: int, shift: int) -> int:
    """SaturatingRoundingDoublingHighMul, then RoundingDivideByPOT, as C computes them."""
    left = min(max(acc << max(shift, 0), LEAST), GREATEST)
    product = left * m
    nudged = product + (1 << 30 if product >= 0 else 1 - (1 << 30))
    high = abs(nudged) // (1 << 31) * (1 if nudged >= 0 else -1)  # C truncates
    right = max(-shift, 0)
    mask = (1 << right) - 1
    threshold = (mask >> 1) + (1 if high < 0 else 0)
    return (high >> right) + (1 if (high & mask) > threshold else 0)


def once(acc: int, m: int, shift: int) -> int:
    return rounded(Fraction(acc * m, 1 << (31 - shift)), Rounding.HALF_UP)


def once_away(acc: int, m: int, shift: int) -> int:
    return rounded(Fraction(acc * m, 1 << (31 - shift)), Rounding.HALF_AWAY)


TRUTH = {FixedRounding.DOUBLE: gemmlowp, FixedRounding.SINGLE: once, FixedRounding.SINGLE_AWAY: once_away}
"""Roundings of one number; the common shift is one of additions."""


@settings(max_examples=40, deadline=None)
@given(
    accs=st.lists(st.one_of(st.integers(LEAST, GREATEST), st.integers(-5000, 5000)), min_size=1, max_size=40),
    m=st.integers(2**30, GREATEST),
    shift=st.integers(-31, 8),
    rounding=st.sampled_from(list(TRUTH)),
)
def test_fixed_point(accs: list[int], m: int, shift: int, rounding: FixedRounding) -> None:
    accs += [LEAST, GREATEST, 0, -1, 1]
    fixed = FixedPoint(np.asarray(m), np.asarray(shift))
    found = run(np.asarray(accs, np.int64), lambda w, x: w.times_fixed_point(x, fixed, rounding, "f"))
    assert found == [TRUTH[rounding](a, m, shift) for a in accs]
    library = requantize_fixed_point(accs, (m, shift), 0, qmin=LEAST, qmax=GREATEST, rounding=rounding.value)
    assert [min(max(v, LEAST), GREATEST) for v in found] == library.tolist()


@pytest.mark.parametrize("rounding", TRUTH)
@pytest.mark.parametrize("shift", [-20, -8, -1, 0, 1, 3])
def test_fixed_point_on_ties(shift: int, rounding: FixedRounding) -> None:
    """A multiplier of one half: each odd accumulator is a tie of the first rounding, multiples of the divisor of the
    second one."""
    step = 1 << max(-shift, 0)
    accs = sorted({k * step + d for k in range(-12, 13) for d in (-1, 0, 1)} | {LEAST, GREATEST})
    fixed = FixedPoint(np.asarray(1 << 30), np.asarray(shift))
    found = run(np.asarray(accs, np.int64), lambda w, x: w.times_fixed_point(x, fixed, rounding, "f"))
    assert found == [TRUTH[rounding](a, 1 << 30, shift) for a in accs]


def test_one_and_two_roundings_differ_somewhere() -> None:
    accs = range(-4000, 4000)
    assert any(gemmlowp(a, (1 << 30) + 12345, -3) != once(a, (1 << 30) + 12345, -3) for a in accs)


def test_fixed_point_per_channel() -> None:
    multiplier, shift = quantize_multipliers(np.asarray([0.3, 1e-4, 1.7, 0.0]))
    fixed = FixedPoint(multiplier.reshape(1, 4, 1), shift.reshape(1, 4, 1))
    accs = np.arange(-3000, 3000, 7).reshape(1, 1, -1).repeat(4, axis=1)
    found = run(accs.astype(np.int64), lambda w, x: w.times_fixed_point(x, fixed, FixedRounding.DOUBLE, "f"))
    pairs = zip(multiplier.tolist(), shift.tolist(), strict=True)
    assert found == [gemmlowp(int(a), m, e) for m, e in pairs for a in accs[0, 0]]


@pytest.mark.parametrize("mode", Rounding)
def test_rounding_of_real_numbers(mode: Rounding) -> None:
    just_below = float(np.nextafter(np.float32(0.5), np.float32(0)))
    halves = [k / 2 for k in range(-15, 16)]
    values = [*halves, just_below, -just_below, 2.0**22 + 0.5, -(2.0**22) - 0.5, 8388607.5, 16777215.0, 0.3, -0.3]
    found = run(np.asarray(values, np.float32), lambda w, x: round_real(w.builder, w.constants, x, mode, name="r"))
    assert found == [rounded(Fraction(v), mode) for v in values]
