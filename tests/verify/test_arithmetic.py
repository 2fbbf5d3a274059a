"""The checker's own arithmetic against fractions, and its steps against looking at every accumulator."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quantpipe import intmath
from quantpipe.certify.counted_departures import departures
from quantpipe.types import FixedPoint, FixedRounding, Requantize, RequantizeKind, Rounding
from quantpipe.verify import spec
from quantpipe.verify.step_functions import ClaimedNarrowing

ROUNDINGS = ("half_even", "half_up", "half_away", "floor")


def rounded(value: Fraction, mode: str) -> int:
    below = value.numerator // value.denominator
    rest = value - below
    if mode == "floor" or rest < Fraction(1, 2):
        return below
    if rest > Fraction(1, 2):
        return below + 1
    up = {"half_up": True, "half_even": below % 2 == 1, "half_away": value > 0}[mode]
    return below + up


def single(value: Fraction) -> Fraction:
    """Rounded to 24 bits, halves to even, by long division."""
    if not value:
        return value
    power = 0
    while abs(value) * Fraction(2) ** -power >= 1 << 24:
        power += 1
    while abs(value) * Fraction(2) ** -power < 1 << 23:
        power -= 1
    return rounded(value * Fraction(2) ** -power, "half_even") * Fraction(2) ** power


def entry(**numbers: Any) -> dict[str, Any]:
    return {"kind": "float_multiplier", "rounding": "half_even", "zero_point": 0, "range": [-128, 127], "shift": 0,
            "zero_first": False} | numbers  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    st.integers(-(1 << 33), 1 << 33),
    st.floats(2.0**-30, 4.0, width=32),
    st.sampled_from(ROUNDINGS),
    st.integers(-128, 255),
    st.booleans(),
)
def test_float_products_are_those_of_fractions(acc: int, m: float, mode: str, zero: int, first: bool) -> None:
    product = single(single(Fraction(acc)) * Fraction(m))
    expected = rounded(single(product + zero), mode) if first else rounded(product, mode) + zero
    numbers = entry(multiplier=m, rounding=mode, zero_point=zero, zero_first=first)
    assert spec.narrowed(numbers, np.array([[acc]], np.int64)).item() == expected
    exact = (
        rounded(Fraction(acc) * Fraction(m) + zero, mode)
        if first
        else rounded(Fraction(acc) * Fraction(m), mode) + zero
    )
    assert spec.exact(numbers, np.array([[acc]], np.int64)).item() == exact


@settings(max_examples=150, deadline=None)
@given(st.integers(-(1 << 30), 1 << 30), st.integers(-8, 31), st.sampled_from(ROUNDINGS))
def test_shifts_are_those_of_fractions(acc: int, shift: int, mode: str) -> None:
    numbers = entry(kind="shift", shift=shift, multiplier=2.0**-shift, rounding=mode)
    expected = rounded(Fraction(acc) / Fraction(2) ** shift, mode)
    assert spec.narrowed(numbers, np.array([[acc]], np.int64)).item() == expected


@settings(max_examples=150, deadline=None)
@given(st.integers(-(1 << 31), (1 << 31) - 1), st.integers(1 << 30, (1 << 31) - 1), st.integers(-30, 4))
def test_fixed_point_is_that_of_fractions(acc: int, q31: int, shift: int) -> None:
    numbers = entry(
        kind="fixed_point", rounding="double", q31=q31, left_shift=shift, multiplier=q31 * 2.0 ** (shift - 31)
    )
    least, most = -(1 << 31), (1 << 31) - 1
    raised = min(max(acc << max(shift, 0), least), most)
    high = rounded(Fraction(raised * q31, 1 << 31), "half_up")
    expected = rounded(Fraction(high) * Fraction(2) ** min(shift, 0), "half_away")
    assert spec.narrowed(numbers, np.array([[acc]], np.int64)).item() == min(max(expected, least), most)


KINDS = {
    "even": entry(rounding="half_even"),
    "floor": entry(rounding="floor"),
    "moved": entry(zero_first=True, zero_point=3, range=[0, 255]),
    "double": entry(kind="fixed_point", rounding="double", zero_point=-5),
    "single": entry(kind="fixed_point", rounding="single", zero_point=-5),
    "shift": entry(kind="shift", rounding="half_up", shift=5),
}


@pytest.mark.parametrize("kind", KINDS)
def test_departures_are_those_of_every_accumulator(kind: str) -> None:
    """Writer and checker count, by means of their own, what all accumulators one by one give."""
    numbers, rng = dict(KINDS[kind]), np.random.default_rng(len(kind))
    peaks = np.array([40_000, 70_000, 1 << 17], np.int64)
    real = np.array([2.0**-9, 3 * 2.0**-11, rng.random() * 2.0**-9 + 2.0**-10], np.float32)
    fixed = None
    if numbers["kind"] == "fixed_point":
        q31, shift = intmath.quantize_multipliers(real.astype(np.float64))
        fixed = FixedPoint(q31, shift)
        numbers |= {"q31": q31.tolist(), "left_shift": shift.tolist()}
        real = (q31 * 2.0 ** (shift - 31)).astype(np.float32)
    if numbers["kind"] == "shift":
        real = np.float32(2.0 ** -numbers["shift"]).reshape(())
    numbers["multiplier"] = real.tolist()
    checked = ClaimedNarrowing(numbers, -peaks, peaks)
    modes = FixedRounding if fixed is not None else Rounding
    low, high = numbers["range"]
    r = Requantize(RequantizeKind(numbers["kind"]), real, numbers["shift"], numbers["zero_point"], low, high,
                   numbers["zero_first"], modes(numbers["rounding"]), fixed)  # fmt: skip
    written = departures(r, -peaks, peaks).as_dict()
    count, total = 0, 0
    for channel, peak in enumerate(peaks):
        acc = np.arange(-peak, peak + 1, dtype=np.int64).reshape(1, -1)
        own = {k: v[channel] if isinstance(v, list) and k != "range" else v for k, v in numbers.items()}
        narrow, exact = (np.clip(f(own, acc), low, high) for f in (spec.narrowed, spec.exact))
        assert np.all(np.diff(narrow) >= 0)
        beside = checked.steps[channel][checked.steps[channel] <= peak]
        steps = acc[0, 1:][np.diff(narrow[0]) > 0]
        assert set(steps) <= set(beside.tolist())
        count, total = count + acc.size, total + int(np.count_nonzero(narrow != exact))
    assert written == checked.departures()
    assert written["accumulators"] == count
    if kind != "single":
        assert written["departing"] == total
    if kind == "double":
        assert total > 0, "two roundings never departed from one: the case shows nothing"


@pytest.mark.sliced(2)
@pytest.mark.parametrize(("channels", "counted"), [(64, True), (65, False)])
def test_departures_of_many_wide_channels_are_not_counted(channels: int, counted: bool) -> None:
    """Each channel of 16 bits has 65535 steps; both sides say so, at the same number of them."""
    multiplier = np.full(channels, 2.0**-4, np.float32)
    numbers = entry(multiplier=multiplier.tolist(), range=[-32768, 32767])
    peak = np.full(channels, 1 << 12, np.int64)
    written = departures(
        Requantize(RequantizeKind.FLOAT_MULTIPLIER, multiplier, 0, 0, -32768, 32767), -peak, peak
    ).as_dict()
    assert written == ClaimedNarrowing(numbers, -peak, peak).departures()
    earlier = ClaimedNarrowing(numbers, -peak, peak).departures({"departing": 5})
    assert earlier["departing"] == 0  # a product by a power of two departs nowhere
    assert (written["departing"] is not None) == counted and written["accumulators"] == channels * ((2 << 12) + 1)


def test_a_float32_product_that_departs_is_listed() -> None:
    """Above 2^24 float32 rounds the sum itself; a tie then goes another way than the exact product."""
    numbers = entry(multiplier=2.0**-18, range=[-128, 127])
    peak = np.array([1 << 25], np.int64)
    found = ClaimedNarrowing(numbers, -peak, peak).departures()
    assert found["departing"] > 0
    for _, first, last in found["first"]:
        acc = np.arange(first, last + 1, dtype=np.int64).reshape(1, -1)
        assert np.all(spec.narrowed(numbers, acc) != spec.exact(numbers, acc))
