"""Softmax in integers: a table of exponentials over what each element lies below its row's largest, and a reciprocal.

Sources: TensorFlow Lite, reference/softmax.h and internal/common.h (GetReciprocal, LUTLookup); gemmlowp, fixedpoint.h;
CMSIS-NN, arm_softmax_s8 and arm_softmax_s16; I-ViT (Li and Gu, ICCV 2023), Shiftmax; I-BERT (Kim et al., ICML 2021),
algorithm 3. Formulas: docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Ints
from quantpipe.plan.programs import exponentials as ex
from quantpipe.plan.programs import interpolation
from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.plan.requantize import exponent_of
from quantpipe.types import FixedRounding, Quantizer, Rounding

EXPONENTIAL_BITS = 16
"""Bits of an exponential that a division by their sum begins with."""
ACCUMULATION_BITS = 12
"""Bits before the point of TFLite's sums of exponentials (Q12.19)."""


def tflite_softmax(
    writer: ProgramWriter, data: Quantizer, out: Quantizer, axes: tuple[int, ...], *, count: int
) -> ProgramValue:
    """Write Softmax as TFLite and CMSIS-NN do: of 8 bits by Q0.31 exponentials, of 16 bits by two tables.

    `out`: how the result is stored; its scale is 2^-bits (2^-15 of signed 16 bits from 16 bits).
    """
    if data.dtype.bits > 8:
        return _long_softmax(writer, data, out, axes, count=count)
    index, span = below_greatest(writer, axes)
    exponentials = ex.tflite_exponentials(float(data.scale), span)
    in_sum = intmath.divide_by_power(exponentials, np.asarray(ACCUMULATION_BITS))
    total = writer.sum_over(writer.table(index, in_sum), axes, count)
    if total.high >= 1 << 31:
        raise writer.refused(f"a row of {count} elements is too long for its sums of exponentials in int32")
    # The greatest element of each row is in the sum, with exp(0) = 1.
    total = writer.known(total, int(in_sum[-1]), total.high)
    digits = writer.bits(total)
    reciprocal = _reciprocal(writer, total, digits)
    product = writer.high_product(writer.table(index, exponentials), reciprocal)
    # num_bits_over_unit = digits - 20, and the result has as many bits as its type.
    count_right = writer.add(digits, 31 - 32 + ACCUMULATION_BITS - out.dtype.bits)
    return writer.clip(writer.add(writer.shift_right(product, count_right), out.zero_point), out.qmin, out.qmax)


def divided_softmax(
    writer: ProgramWriter,
    out: Quantizer,
    entries: Callable[[int], Ints],
    axes: tuple[int, ...],
    *,
    count: int,
    rounding: Rounding = Rounding.FLOOR,
) -> ProgramValue:
    """Write Softmax by exponentials of any step and one division per row: out = e · ⌊2^31 / Σ e⌋ >> (31 - b).

    So do I-ViT's Shiftmax and I-BERT's i-softmax; they differ in their exponentials, and drop what is after the point.

    `out`: how the result is stored; its scale is 2^-b. `entries`: the exponentials for a span of differences,
    `[span + 1]`.
    """
    index, span = below_greatest(writer, axes)
    exponentials = entries(span)
    # What is above 16 bits is shifted out, so that products with the factor stay in 47 bits.
    extra = max(int(exponentials[-1]).bit_length() - EXPONENTIAL_BITS, 0)
    exponentials = exponentials >> extra
    terms = writer.table(index, exponentials)
    total = writer.sum_over(terms, axes, count)
    total = writer.known(total, max(int(exponentials[-1]), 1), total.high)
    factor = writer.div(writer.constant((1 << 31) - 1), total)
    digits = -exponent_of(out.scale, writer.node)
    found = writer.shift(writer.mul(terms, factor), 31 - digits, rounding)
    return writer.clip(writer.add(found, out.zero_point), out.qmin, out.qmax)


def below_greatest(writer: ProgramWriter, axes: tuple[int, ...]) -> tuple[ProgramValue, int]:
    """Write how far each element lies below the largest of its row, counted from the farthest: 0 … span."""
    x = writer.operand()
    span = x.high - x.low
    difference = writer.sub(x, writer.max_over(x, axes))
    return writer.known(writer.add(difference, span), 0, span), span


def _reciprocal(writer: ProgramWriter, total: ProgramValue, digits: ProgramValue) -> ProgramValue:
    """1 / total in Q0.31, total in Q12.19 brought to [1, 2): GetReciprocal, three steps of Newton and Raphson."""
    one = 1 << 31
    headroom = writer.sub(_constant_minus(writer, digits, 32), 0)
    # A number of `digits` bits shifted left by 32 - digits has its first bit at 2^31.
    above_one = writer.known(writer.add(writer.shift_left(total, headroom, 2 * one - 1), -one), 0, one - 1)
    half = writer.shift(writer.add(above_one, one), 1, Rounding.FLOOR)
    half = writer.known(half, one >> 1, one - 1)
    x = writer.add(writer.high_product(half, -1010580540), 1515870810)
    for _ in range(3):
        missing = writer.add(writer.mul(writer.high_product(half, x), -1), 1 << 29)
        step = writer.mul(writer.high_product(x, missing), 4)
        # The iteration stays between the reciprocals of 1 and of 1/2 and its first guess, all in Q2.29.
        x = writer.known(writer.add(x, step), 1 << 28, (1 << 30) + (1 << 10))
    return writer.clip(writer.mul(x, 2), 0, ex.ONE)


def _constant_minus(writer: ProgramWriter, value: ProgramValue, constant: int) -> ProgramValue:
    """Constant - value."""
    return writer.add(writer.mul(value, -1), constant)


def _long_softmax(
    writer: ProgramWriter, data: Quantizer, out: Quantizer, axes: tuple[int, ...], *, count: int
) -> ProgramValue:
    """SoftmaxInt16: exp over [-10, 0] and 1 / (1 + x) over [0, 1], each 513 entries with lines between."""
    index, span = below_greatest(writer, axes)
    exponentials = long_exponentials(float(data.scale), span)
    terms = writer.table(index, exponentials)
    total = writer.sum_over(terms, axes, count)
    if total.high >= 1 << 31:
        raise writer.refused(f"a row of {count} elements is too long for its sums of exponentials in int32")
    total = writer.known(total, int(exponentials[-1]), total.high)
    digits = writer.bits(total)
    headroom = _constant_minus(writer, digits, 31)
    shifted = writer.shift(writer.shift_left(total, headroom, (1 << 31) - 1), 14)
    symmetric = writer.clip(writer.add(shifted, -((1 << 15) + (1 << 16))), -(1 << 15), (1 << 15) - 1)
    reciprocal = interpolated(writer, symmetric, one_over_one_plus_x())
    product = writer.mul(terms, writer.known(reciprocal, 0, (1 << 15) - 1))
    found = writer.shift_right(product, writer.sub(digits, 1))
    return writer.clip(writer.add(found, out.zero_point), max(out.qmin, out.zero_point), out.qmax)


def interpolated(writer: ProgramWriter, value: ProgramValue, entries: NDArray[np.int64]) -> ProgramValue:
    """Write LUTLookup: 513 entries over [-2^15, 2^15), a line of 128 steps between two of them."""
    position = writer.shift(value, 7, Rounding.FLOOR)
    offset = writer.known(writer.sub(value, writer.mul(position, 128)), 0, 127)
    index = writer.add(position, 256)
    slope = writer.table(index, np.diff(entries))
    base = writer.table(index, entries[:-1])
    return writer.add(base, writer.shift(writer.mul(slope, offset), 7))


def long_exponentials(scale: float, span: int, rounding: FixedRounding = FixedRounding.DOUBLE) -> NDArray[np.int64]:
    """Return exp(d·scale) in Q0.15 for d = -span … 0, as TFLite's 16-bit Softmax forms it.

    Differences are brought to 10 / 65535 and looked up in a table over [-10, 0].

    `scale`: the scale of the input, times the op's beta. Returns the exponentials, `[span + 1]`.
    """
    multiplier, shift = intmath.quantize_multipliers(np.asarray(scale / (10.0 / 65535.0)))
    differences = np.arange(-span, 1, dtype=np.int64)
    far = -(1 << 31), (1 << 31) - 1
    single: Literal["single", "single_away"] = "single_away" if rounding is FixedRounding.SINGLE_AWAY else "single"
    mode: Literal["double", "single", "single_away"] = "double" if rounding is FixedRounding.DOUBLE else single
    scaled = intmath.requantize_fixed_point(
        differences, (multiplier, shift), 0, qmin=far[0], qmax=far[1], rounding=mode
    )
    codes = np.clip(scaled + 32767, -(1 << 15), (1 << 15) - 1)
    return interpolation.between(codes, interpolation.entries(np.exp, -10.0, 0.0, 1 << 15))


def one_over_one_plus_x() -> NDArray[np.int64]:
    """Return the 513 entries of 1 / (1 + x) over [0, 1], in Q0.15."""
    return interpolation.entries(lambda x: 1.0 / (1.0 + x), 0.0, 1.0, 1 << 15)
