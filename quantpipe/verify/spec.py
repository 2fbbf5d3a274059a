"""Specify narrowing from an accumulator to a stored integer before its clamp (docs/numerics.md), in integers only.

No float takes part: a float32 is an integer times a power of two here, and rounding is shifting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify.files import Wrong

Ints = NDArray[np.int64]
ONE = np.int64(1)
FAR = 62
"""Shifts by more than this leave nothing."""


def narrowed(numbers: Mapping[str, Any], acc: Ints) -> Ints:
    """Return what a `requantize` entry of plan.json makes of accumulators `[C or 1, N]`, without the clamp.

    `acc`: the accumulators, `[C or 1, N]`. Returns the stored integers, `[C, N]`.
    """
    kind, rounding, zero = numbers["kind"], str(numbers["rounding"]), int(numbers["zero_point"])
    if kind == "shift":
        return scaled(acc, -np.int64(numbers["shift"]), rounding) + zero
    if kind == "fixed_point":
        return _fixed(acc, column(numbers["q31"]), column(numbers["left_shift"]), rounding) + zero
    if kind != "float_multiplier":
        raise Wrong("plan.json", f"the requantization {kind!r} is unknown")
    whole, power = parts(np.asarray(numbers["multiplier"], np.float64))
    product, exponent = _single(*_times(acc, column(whole), column(power)))
    if not numbers.get("zero_first"):
        return scaled(product, exponent, rounding) + zero
    return _moved(product, exponent, zero, rounding)


def exact(numbers: Mapping[str, Any], acc: Ints) -> Ints:
    """Return what an entry makes of accumulators with the exact product.

    It is rounded once, in the same mode (double rounding: ties away from zero).

    `acc`: the accumulators, `[C or 1, N]`. Returns the stored integers, `[C, N]`.
    """
    zero, rounding = int(numbers["zero_point"]), str(numbers["rounding"])
    if numbers["kind"] == "fixed_point":
        product, exponent = acc * column(numbers["q31"]), column(numbers["left_shift"]) - 31
        return scaled(product, exponent, "half_away") + zero
    whole, power = parts(np.asarray(numbers["multiplier"], np.float64))
    factor, exponent = column(whole), column(power)
    most = (ONE << FAR) // np.maximum(factor, 1)  # products beyond that are beyond all clamps
    product = np.clip(acc, -most, most) * factor
    if not numbers.get("zero_first"):
        return scaled(product, exponent, rounding) + zero
    lift, drop = np.clip(exponent, 0, 20), np.clip(-44 - exponent, 0, FAR)
    rest = product - ((product >> drop) << drop)
    product = ((product >> drop) | (rest != 0)) << lift  # the last bit says whether there is more
    kept = exponent + drop - lift
    return scaled(product + (np.int64(zero) << -kept), kept, rounding)


def clamp(values: NDArray[Any], bounds: Any) -> Ints:
    """Return integers clamped between a minimum and a maximum, or one of each per channel.

    `values`: integers, `[C or 1, N]`. `bounds`: the minimum and maximum integer, a single number or `[C]` each.
    """
    low, high = (column(b) if np.ndim(b) else np.int64(b) for b in bounds)
    return np.asarray(np.clip(values, low, high), np.int64)


def column(values: Any) -> Ints:
    """Return numbers per channel as `[C, 1]`, one number as `[1, 1]`."""
    return np.asarray(values, np.int64).reshape(-1, 1)


def parts(values: NDArray[np.float64]) -> tuple[Ints, Ints]:
    """Return float32 values as an odd integer times a power of two.

    `values`: float32 values of any shape. Raises Wrong where a value is no finite float32 number.
    """
    if not np.all(np.isfinite(values)) or not np.array_equal(values, values.astype(np.float32)):
        raise Wrong("plan.json", "a multiplier is no finite float32 number")
    mantissa, exponent = np.frexp(values)
    whole = np.ldexp(mantissa, 24).astype(np.int64)
    trailing = np.where(whole == 0, 0, np.log2((whole & -whole).astype(np.float64)).astype(np.int64))
    return whole >> trailing, exponent.astype(np.int64) - 24 + trailing


def scaled(value: Ints, exponent: Any, rounding: str) -> Ints:
    """Return round(value · 2^exponent)."""
    exponent = np.asarray(exponent, np.int64)
    left, right = np.clip(exponent, 0, 31), np.clip(-exponent, 0, FAR)
    raised = np.clip(value, -(ONE << (FAR - left)), ONE << (FAR - left)) << left  # what is cut is beyond all clamps
    if rounding == "half_away":
        return np.asarray(np.sign(raised) * _right(np.abs(raised), right, "half_up"))
    return _right(raised, right, rounding)


def _right(value: Ints, count: Ints, rounding: str) -> Ints:
    """round(value / 2^count)."""
    below = value >> count
    rest, half = value - (below << count), (ONE << count) >> 1
    if rounding == "floor":
        return np.asarray(below)
    up = (rest > half) | ((rest == half) & (half > 0) & ((rounding == "half_up") | ((below & 1) == 1)))
    if rounding not in ("half_up", "half_even"):
        raise Wrong("plan.json", f"the rounding {rounding!r} is unknown")
    return np.asarray(below + up)


def _times(acc: Ints, whole: Ints, power: Ints) -> tuple[Ints, Ints]:
    """f32(acc) · multiplier, exactly."""
    single, exponent = _single(acc, np.zeros_like(acc))
    return single * whole, exponent + power


def _single(value: Ints, exponent: Ints) -> tuple[Ints, Ints]:
    """Return value · 2^exponent rounded to the 24 bits of a float32, ties to even."""
    size = np.frexp(np.abs(value).astype(np.float64))[1].astype(np.int64)
    drop = np.maximum(size - 24, 0)
    if not np.any(drop):
        return value, exponent + drop
    return np.sign(value) * _right(np.abs(value), drop, "half_even"), exponent + drop


def _moved(product: Ints, exponent: Ints, zero: int, rounding: str) -> Ints:
    """round(f32(product · 2^exponent + zero)): the zero point is added before rounding."""
    fine = np.clip(exponent, -38, 0)
    coarse = np.clip(exponent, 0, 20)
    # Products beyond 2^-14 steps of a bit are rounded once more; they decide nothing beside a whole zero point.
    whole = scaled(product, exponent - fine - coarse, "half_even") << coarse
    return scaled(*_single(whole + (np.int64(zero) << -fine), fine), rounding)


def _fixed(acc: Ints, multiplier: Ints, shift: Ints, rounding: str) -> Ints:
    """Return the product: `single` and `single_away` round once, `double` (gemmlowp) at 2^31 and again at the shift."""
    if rounding in ("single", "single_away"):
        return _int32(scaled(acc * multiplier, shift - 31, "half_up" if rounding == "single" else "half_away"))
    if rounding != "double":
        raise Wrong("plan.json", f"the fixed-point rounding {rounding!r} is unknown")
    raised = _int32(acc << np.maximum(shift, 0))
    high = _right(raised * multiplier, np.asarray(31, np.int64), "half_up")
    return _int32(scaled(_int32(high), np.minimum(shift, 0), "half_away"))


def _int32(value: Ints) -> Ints:
    return np.clip(value, -(1 << 31), (1 << 31) - 1)
