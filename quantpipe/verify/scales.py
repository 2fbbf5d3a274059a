"""Multipliers and shifts follow from scales: recomputed here, in the order that docs/numerics.md gives."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify.files import expect
from quantpipe.verify.spec import column

Array = NDArray[Any]


def expect_multiplier(numbers: Mapping[str, Any], scale: Array, out: np.float32, where: str) -> None:
    """Check that a `requantize` entry brings sums of one scale to another.

    `scale`: the scale of the sums, float64, exact.
    """
    if numbers["kind"] == "float_multiplier":
        expect_same(numbers["multiplier"], np.asarray(scale, np.float32) / out, where, "multiplier")
    elif numbers["kind"] == "fixed_point":
        single = numbers.get("single_ratio")
        real = np.asarray(scale, np.float32) / out if single else np.asarray(scale, np.float64) / np.float64(out)
        expect_fixed(numbers, real, where)
    else:
        quotient = math.log2(float(out)) - math.log2(float(np.asarray(scale).reshape(-1)[0]))
        expect(quotient == numbers["shift"], where, f"its shift is {numbers['shift']}, its scales need {quotient:g}")
        expect_same(numbers["multiplier"], np.exp2(-quotient), where, "multiplier")


def expect_fixed(numbers: Mapping[str, Any], real: Array, where: str) -> None:
    """Check fixed-point multipliers.

    q31 · 2^(left_shift - 31) must be the fixed-point number nearest to `real`, and `multiplier` (or `ratio`) what that
    stands for.

    `real`: the real multipliers, `()` or `[C]`.
    """
    pairs = fewer_bits([fixed_point(float(v)) for v in np.asarray(real, np.float64).reshape(-1)], numbers)
    for key, found in (("q31", [m for m, _ in pairs]), ("left_shift", [s for _, s in pairs])):
        expect(column(numbers[key]).reshape(-1).tolist() == found, where, f"its {key} is not what its scales give")
    stands_for = np.array([m * 2.0 ** (s - 31) for m, s in pairs], np.float32)
    key = "multiplier" if "multiplier" in numbers else "ratio"
    expect_same(np.abs(np.asarray(numbers[key])).reshape(-1), stands_for, where, key)


def expect_shared(numbers: Mapping[str, Any], real: float, count: int, where: str) -> None:
    """Check the fixed-point multiplier of an average over a whole map.

    It is the multiplier of one element, shifted left by floor(log2 n) bits, over n, the rest dropped.
    """
    q31, shift = fixed_point(real)
    bits = min(math.frexp(count)[1] - 1, 31 + shift)
    (own,) = fewer_bits([((q31 << bits) // count, shift - bits)], numbers)
    claimed = (int(numbers["q31"]), int(numbers["left_shift"]))
    expect(claimed == own, where, f"its multiplier is {claimed}, its scales and {count} elements give {own}")
    expect_same(numbers["multiplier"], np.float32(own[0] * 2.0 ** (own[1] - 31)), where, "multiplier")


def fixed_point(real: float) -> tuple[int, int]:
    """Return (M, shift) with M in [2^30, 2^31) and M · 2^(shift - 31) nearest to `real`, ties up.

    The result is (0, 0) below 2^-32.
    """
    fraction, shift = math.frexp(real)
    whole, rest = divmod(fraction * 2.0**31, 1.0)
    q31 = int(whole) + (rest >= 0.5)
    if q31 == 1 << 31:
        q31, shift = q31 >> 1, shift + 1
    return (q31, shift) if shift >= -31 else (0, 0)


def fewer_bits(pairs: list[tuple[int, int]], numbers: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Return multipliers of as many bits as in an entry of plan.json, ties up, at most all ones.

    Products that are rounded once, and then shifted right, keep these bits alone; else zeros stand in place of the
    others.
    """
    bits = int(numbers.get("multiplier_bits", 31))
    drop = 31 - bits
    short = [min((q31 + (1 << drop >> 1)) >> drop, (1 << bits) - 1) for q31, _ in pairs]
    if numbers["rounding"] == "double" or max(shift for _, shift in pairs) >= bits:
        return [(m << drop, shift) for m, (_, shift) in zip(short, pairs, strict=True)]
    return [(m, shift + drop) for m, (_, shift) in zip(short, pairs, strict=True)]


def expect_same(claimed: Any, found: Any, where: str, what: str) -> None:
    """Check that numbers are equal to the last bit."""
    a, b = (np.asarray(v, np.float64).reshape(-1) for v in (claimed, found))
    same = a.size == b.size and np.array_equal(a, b)
    expect(same, where, f"its {what} is {_shown(a)}, its scales give {_shown(b)}")


def _shown(values: Array) -> str:
    head = ", ".join(f"{v:.9g}" for v in values[:3])
    return head if values.size <= 3 else f"[{head}, … ({values.size})]"


def mean_of_map(s_x: np.float32, s_y: np.float32, count: int) -> np.float32:
    """Return the multiplier of a global average."""
    return np.float32(s_x / np.float32(s_y * np.float32(count)))


def mean_of_window(s_x: np.float32, s_y: np.float32, count: int) -> np.float32:
    """Return the multiplier of a window average, a convolution with weights of one at the scale 1/count."""
    return np.float32(np.float32(s_x * np.float32(1 / count)) / s_y)


def addition_offset(terms: Any, zero_point: int) -> np.float32:
    """Return z_y - fma(z_a, r_a, f32(z_b · r_b))."""
    a, b = terms
    second = np.float32(np.float32(b["zero_point"]) * np.float32(b["ratio"])) if b["zero_point"] else np.float32(0)
    both = second
    if a["zero_point"]:
        both = np.float32(np.float64(a["zero_point"]) * np.float64(np.float32(a["ratio"])) + np.float64(second))
    return np.float32(np.float32(zero_point) - both)


def fits_double(values: Array, most: float) -> bool:
    """Return whether sums of whole multiples of `values` up to `most` are exact in float64.

    They are if all values are multiples of the smallest last bit, and the sums have at most 53 bits above it.

    `values`: floats of any shape.
    """
    lowest = 0
    for value in np.asarray(values, np.float64).reshape(-1):
        if value:
            numerator, denominator = float(value).as_integer_ratio()
            lowest = min(lowest, (numerator & -numerator).bit_length() - denominator.bit_length())
    return most * 1.01 < 2.0 ** (lowest + 53)
