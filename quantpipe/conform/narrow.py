"""Narrowing and additions of a plan in NumPy: from accumulators to stored integers, as docs/numerics.md has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import Array, Ints, along
from quantpipe.conform.faults import Fault
from quantpipe.types import DType, Form, Limit, Overflow, Quantizer, Requantize, RequantizeKind, Rounding, Sum

WIDE = 1 << 62


def limited(acc: Ints, limit: Limit | None) -> Ints:
    """Return sums as an accumulator keeps them."""
    if limit is None:
        return acc
    if limit.overflow is Overflow.WRAP:
        half = -limit.qmin
        return (acc + half) % (2 * half) - half
    return np.clip(acc, limit.qmin, limit.qmax)


def narrowed(how: Requantize, acc: Ints, axis: int, *, out: Quantizer, fault: Fault) -> Ints:
    """Return the stored integers of accumulators, as a device with a fault narrows them."""
    axis %= acc.ndim or 1
    return clamped(how, _unclamped(how, acc, axis), axis, out=out, fault=fault)


def clamped(how: Requantize, q: Ints, axis: int, *, out: Quantizer, fault: Fault) -> Ints:
    """Return integers within the bounds of a narrowing, or as a device with a fault keeps them."""
    low, high = (out.qmin, out.qmax) if fault.no_clamp else (how.low, how.high)
    if fault.wraps:  # bounds that are those of the bits alone are not written by a device that wraps
        q = np.clip(q, -WIDE if low == out.qmin else low, WIDE if high == out.qmax else high)
        return intmath.wrap(q, out.dtype).astype(np.int64)
    if how.by_channel is not None and not fault.no_clamp:
        own = [along(b, axis, q.ndim) for b in how.by_channel]
        q = np.clip(q, own[0], own[1])
    return np.clip(q, low, high)


def _unclamped(how: Requantize, acc: Ints, axis: int) -> Ints:
    z = how.zero_point
    if how.kind is RequantizeKind.SHIFT:
        shifted = intmath.requantize_shift(acc, how.shift, z, qmin=-WIDE, qmax=WIDE, rounding=Rounding(how.rounding))
        return np.asarray(shifted, np.int64)
    channel = axis if how.multiplier.ndim else None
    if how.fixed is not None:
        return _multiplied(acc, how, z, axis=channel)
    if how.zero_first:
        product = acc.astype(np.float32) * along(how.multiplier, axis, acc.ndim) + np.float32(z)
        return intmath.round_real(product, Rounding(how.rounding)).astype(np.int64)
    return intmath.requantize_float(
        acc, how.multiplier, z, qmin=-WIDE, qmax=WIDE, axis=channel, rounding=Rounding(how.rounding)
    )


def _multiplied(acc: Ints, how: Requantize, zero: int, *, axis: int | None) -> Ints:
    assert how.fixed is not None  # noqa: S101  (of this kind alone; narrows the type)
    fixed = (how.fixed.multiplier, how.fixed.shift)
    mode = cast("Literal['double', 'single', 'single_away']", str(how.rounding))
    axis = axis if how.fixed.multiplier.ndim else None
    return np.asarray(
        intmath.requantize_fixed_point(acc, fixed, zero, qmin=-WIDE, qmax=WIDE, rounding=mode, axis=axis), np.int64
    )


def total_of(plan: Sum, values: Sequence[Ints], axis: int) -> Ints:
    """Return the sum of an addition that has a common scale, before it is narrowed.

    `values` are q - z of each term, or its accumulators.
    """
    total: Ints = np.zeros((), np.int64)
    for term, value in zip(plan.terms, values, strict=True):
        sign = -1 if float(np.asarray(term.ratio).reshape(-1)[0]) < 0 else 1
        if term.fixed is None:
            part = intmath.requantize_shift(value, -term.shift, 0, qmin=-WIDE, qmax=WIDE, rounding=plan.rounding)
        else:
            assert plan.output is not None  # noqa: S101  (fixed-point additions are stored)
            mode = cast("Literal['double', 'single', 'single_away']", str(plan.output.rounding))
            fixed, channel = (term.fixed.multiplier, term.fixed.shift), axis if term.fixed.multiplier.ndim else None
            part = intmath.requantize_fixed_point(
                value << term.shift, fixed, 0, qmin=-WIDE, qmax=WIDE, rounding=mode, axis=channel
            )
        total = total + sign * part
    if plan.terms[0].fixed is not None:
        total = np.clip(total, DType.INT32.qmin, DType.INT32.qmax)
    return limited(total, plan.limit)


def free_sum(plan: Sum, values: Sequence[Ints], axis: int) -> Ints:
    """Return a sum that is rescaled inside, in float32, as integers before its clamp.

    `values` are q of each term (zero points included), or its accumulators.
    """
    assert plan.output is not None  # noqa: S101  (such a sum is stored)
    total: Array = np.asarray(plan.offset, np.float32)
    for term, value in list(zip(plan.terms, values, strict=True))[::-1]:
        total = intmath.fused_multiply_add(value, along(np.asarray(term.ratio), axis, value.ndim), total)
    return intmath.round_real(total, Rounding(plan.output.rounding)).astype(np.int64)


def raw_terms(plan: Sum) -> list[bool]:
    """Return which terms are accumulators."""
    return [t.form is Form.RAW for t in plan.terms]
