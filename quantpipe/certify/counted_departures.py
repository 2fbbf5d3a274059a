"""Count where a device's arithmetic departs from the exact product, over all accumulators that can be reached.

Narrowing is a step function of the accumulator that never falls. So it is known by its steps, the smallest accumulator
of each result, and two such functions differ exactly between their steps. Nothing has to be enumerated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Ints
from quantpipe.types import FixedRounding, Requantize, RequantizeKind, Rounding
from quantpipe.types.certificate_file import NarrowedClaim

SHOWN = 8
"""Departures that are listed one by one."""

BLOCK = 1 << 16
"""Steps that are held at once."""

MOST_STEPS = 1 << 22
"""Steps of all channels up to which departures are counted: 64 channels of 16 bits, 16 thousand of 8."""


@dataclass(frozen=True)
class Departures:
    """Count the accumulators that are narrowed to another integer than their exact product with the multiplier.

    `accumulators` counts the accumulators of all channels. `departing` is None with too many steps to count by (more
    than 64 channels of 16 bits). `first` are the first departures as [channel, from, to] (channel null where all are
    alike).
    """

    accumulators: int
    departing: int | None
    first: list[list[int | None]]

    def as_dict(self) -> NarrowedClaim:
        """Return the figures as plain data, for certificate.json."""
        return {"accumulators": self.accumulators, "departing": self.departing, "first": self.first}


def departures(r: Requantize, low: Ints, high: Ints) -> Departures:
    """Return how often accumulators in [low, high] depart from the exact product, and the first departures.

    `low` and `high` are `[C]`, or one row where all channels are alike.
    """
    rows = max(r.multiplier.size, len(low))
    low, high = (np.broadcast_to(v, (rows,)).reshape(rows, 1) for v in (low, high))
    accumulators = int(sum(int(b) - int(a) + 1 for a, b in zip(low[:, 0], high[:, 0], strict=True)))
    if not _can_depart(r):
        return Departures(accumulators, 0, [])
    levels = np.arange(r.low + 1, r.high + 1, dtype=np.int64).reshape(1, -1)
    if rows * levels.size > MOST_STEPS:
        return Departures(accumulators, None, [])
    height, departing = max(1, BLOCK // max(1, levels.size)), 0
    first: list[list[int | None]] = []
    for start in range(0, rows, height):
        part = slice(start, start + height)
        begin, end = _between(_rows(r, part), levels, low[part], high[part])
        departing += int((end - begin).sum())
        for c, k in np.argwhere(end > begin)[: SHOWN - len(first)]:
            first.append([start + int(c) if rows > 1 else None, int(begin[c, k]), int(end[c, k]) - 1])
    return Departures(accumulators, departing, first)


def _rows(r: Requantize, part: slice) -> Requantize:
    """Return the narrowing of some channels."""
    if r.multiplier.ndim == 0:
        return r
    fixed = r.fixed and replace(r.fixed, multiplier=r.fixed.multiplier[part], shift=r.fixed.shift[part])
    return replace(r, multiplier=r.multiplier[part], fixed=fixed)


def _between(r: Requantize, levels: Ints, low: Ints, high: Ints) -> tuple[Ints, Ints]:
    """Return the device's steps and the exact ones: the lower and the higher of each pair."""
    exact = np.clip(_exact_steps(r, levels), low, high + 1)
    own = _steps(r, levels, low, high, exact=exact)
    return np.minimum(own, exact), np.maximum(own, exact)


def _can_depart(r: Requantize) -> bool:
    """Return whether results can depart; shifts and single-rounding fixed-point products round the exact quotient."""
    if r.kind is RequantizeKind.FLOAT_MULTIPLIER:
        return Rounding(r.rounding) in (Rounding.HALF_EVEN, Rounding.FLOOR)
    return r.kind is RequantizeKind.FIXED_POINT and FixedRounding(r.rounding) is FixedRounding.DOUBLE


def _steps(r: Requantize, levels: Ints, low: Ints, high: Ints, *, exact: Ints) -> Ints:
    """Return the smallest accumulator in [low, high + 1] whose result reaches each level.

    Most are the exact ones, `[C, K]` or `[1, K]`; only the others are looked for, by bisection.
    """
    shape = (max(len(low), len(exact)), levels.shape[1])
    found = np.broadcast_to(exact, shape).copy()
    reached = _narrowed(r, found, low, high) >= levels
    settled = reached & (_narrowed(r, found - 1, low, high) < levels)
    rows, columns = np.nonzero(~settled)
    if rows.size:
        ends = low[rows if len(low) > 1 else 0 * rows, 0], high[rows if len(high) > 1 else 0 * rows, 0]
        found[rows, columns] = _looked_for(r, levels[0, columns], *ends, near=found[rows, columns], rows=rows)
    return found


def _looked_for(r: Requantize, levels: Ints, low: Ints, high: Ints, *, near: Ints, rows: Ints) -> Ints:
    """Return single steps of channels `rows`, all arguments `[N]`."""

    def reaches(acc: Ints) -> NDArray[np.bool_]:
        return np.asarray(_narrowed(r, acc, low, high, rows=rows) >= levels)

    begin, end = low - 1, high + 1
    width = 4 + (np.abs(near) >> 20)
    for sign in (-1, 1):  # a bracket around the exact step, where it holds
        guess = np.clip(near + sign * width, low - 1, high + 1)
        up = reaches(guess)
        begin, end = np.where(~up & (guess > begin), guess, begin), np.where(up & (guess < end), guess, end)
    while np.any(end - begin > 1):
        middle = begin + (end - begin) // 2
        up = reaches(middle)
        end, begin = np.where(up, middle, end), np.where(up, begin, middle)
    return np.asarray(end)


def _narrowed(r: Requantize, acc: Ints, low: Ints, high: Ints, *, rows: Ints | None = None) -> Ints:
    """Return the device's own result; beyond the ends of the range it is as far off as can be.

    `rows`: the channel of each accumulator `[N]`; None: accumulators are `[C, K]`.
    """
    inside = np.clip(acc, low, high)
    found = _FORMULAS[r.kind](r, inside, rows)
    return np.where(acc > high, np.int64(1) << 40, np.where(acc < low, -(np.int64(1) << 40), found))


def _float_product(r: Requantize, acc: Ints, rows: Ints | None) -> Ints:
    # Levels are those of q as it is before the clamp, which would hide the outermost steps.
    product = acc.astype(np.float32) * _of_rows(r.multiplier, rows)
    rounding = Rounding(r.rounding)
    if r.zero_first:
        return intmath.round_real(product + np.float32(r.zero_point), rounding).astype(np.int64)
    return intmath.round_real(product, rounding).astype(np.int64) + r.zero_point


def _fixed_product(r: Requantize, acc: Ints, rows: Ints | None) -> Ints:
    assert r.fixed is not None  # noqa: S101  (the planner fills it for this kind; narrows the type)
    wide = 1 << 40
    multiplier = _of_rows(r.fixed.multiplier, rows), _of_rows(r.fixed.shift, rows)
    return intmath.requantize_fixed_point(acc, multiplier, r.zero_point, qmin=-wide, qmax=wide)


_FORMULAS: dict[RequantizeKind, Callable[[Requantize, Ints, Ints | None], Ints]] = {
    RequantizeKind.FLOAT_MULTIPLIER: _float_product,
    RequantizeKind.FIXED_POINT: _fixed_product,
}


def _exact_steps(r: Requantize, levels: Ints) -> Ints:
    """Return the smallest integers whose exact product with the multiplier rounds to each level."""
    found = []
    for factor in _exact_multipliers(r):
        if factor == 0:
            found.append(np.where(levels[0] - r.zero_point <= 0, -(np.int64(1) << 40), np.int64(1) << 40))
            continue
        found.append(_of_one(r, levels[0], factor))
    return np.stack(found)


def _of_one(r: Requantize, levels: Ints, factor: Fraction) -> Ints:
    whole = levels - r.zero_point
    floor = r.rounding == Rounding.FLOOR
    halves = whole * 2 - (0 if floor else 1)
    divisor = 2 * factor.numerator
    fits = max(int(np.max(np.abs(halves))) * factor.denominator, divisor) < 1 << 62
    scaled = (halves if fits else halves.astype(object)) * factor.denominator
    steps = np.clip(-(-scaled // divisor), -(1 << 40), 1 << 40).astype(np.int64)
    if floor:
        return np.asarray(steps)
    tied = np.asarray(scaled % divisor == 0, np.bool_)
    if r.rounding == Rounding.HALF_EVEN:  # noqa: SIM108  (each way has its own reason)
        kept = ((levels if r.zero_first else whole) & 1) == 1  # the tie belongs to the even neighbour below
    else:
        kept = whole <= 0  # halves away from zero: the tie belongs to the integer below
    return np.asarray(steps + (tied & kept))


def _exact_multipliers(r: Requantize) -> list[Fraction]:
    if r.fixed is None:
        return [Fraction(float(m)) for m in r.multiplier.reshape(-1)]
    pairs = zip(r.fixed.multiplier.reshape(-1), r.fixed.shift.reshape(-1), strict=True)
    return [Fraction(int(m)) * Fraction(2) ** (int(s) - 31) for m, s in pairs]


def _of_rows(values: NDArray[Any], rows: Ints | None) -> NDArray[Any]:
    """Return the values of channels: a column for accumulators `[C, K]`, or one for each member of `rows`."""
    flat = values.reshape(-1)
    return flat.reshape(-1, 1) if rows is None else flat[rows if flat.size > 1 else 0 * rows]
