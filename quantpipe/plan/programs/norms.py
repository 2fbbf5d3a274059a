"""Normalizations in integers: exact sums, an integer square root, a division, gain and offset in an accumulator.

With n integers x of scale s in a row, d = n·x - Σ x is exact and free of the zero point, and
(x - mean) / √(variance + ε) = d / √(Σ d² / n + n²·ε / s²). (For a root-mean-square normalization d = x, and the same
with 1 in place of n².) I-BERT (Kim et al., ICML 2021, algorithm 4) and I-ViT (Li and Gu, ICCV 2023) take the same
way with a rounded mean. Formulas: docs/numerics.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.oprules.rows import Normalization
from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.types import Quantizer, Rounding

ROOT_BITS = 51
"""Bits of what the square root is taken of."""
NORMAL_BITS = 15
"""Bits of a normalized value, its sign apart."""
ROUNDED_BITS = 4
"""Bits by which the division is finer, since it cuts its fraction: they are rounded away."""
ACCUMULATOR_BITS = 30
"""Bits of normalized value times gain, and of the offset: their sum fits int32."""


@dataclass(frozen=True, eq=False)
class IntegerAffine:
    """Gain and offset in integers: accumulator = y · gain + offset, in steps of `scale`."""

    gain: NDArray[np.int64]
    offset: NDArray[np.int64] | None
    scale: float


def normalized(
    writer: ProgramWriter, data: Quantizer, what: Normalization, finest: float = 0.0
) -> tuple[ProgramValue, float]:
    """Write a normalization up to its gain and offset, as an accumulator.

    `finest`: the smallest step that the device can narrow to the result's, in real units.
    """
    value, fraction = _unit(writer, data, what)
    affine = _affine(what, fraction, finest)
    product = writer.mul(value, affine.gain)
    return product if affine.offset is None else writer.add(product, affine.offset), affine.scale


def _unit(writer: ProgramWriter, data: Quantizer, what: Normalization) -> tuple[ProgramValue, int]:
    """The row with mean 0 and variance 1, in steps of 2^-fraction."""
    x, n = writer.operand(), what.count
    if what.centred:
        total = writer.sum_over(x, what.axes, n)
        # Of n values, x is one: n·x - Σ x has n - 1 differences of two values.
        reach = (n - 1) * (x.high - x.low)
        deviation = writer.known(writer.sub(writer.mul(x, n), total), -reach, reach)
    else:
        deviation = x
    # Low bits of a deviation are beyond the last bit of x once n·x has many: what is cut keeps Σ d² in 61 bits.
    cut = max(0, (deviation.peak**2 * what.length).bit_length() - 60 + 1) // 2
    if cut:
        deviation = writer.shift(deviation, cut)
    squares = writer.sum_over(writer.square(deviation), what.axes, what.length)
    factor = 1.0 if not what.centred else float(n) ** 2
    offset = factor * what.epsilon / (float(data.scale) ** 2 * 4.0**cut)
    mean_bits = (squares.high // n + round(offset) + 1).bit_length()
    finer = max(0, min((60 - squares.high.bit_length()) // 2, (ROOT_BITS - mean_bits) // 2))
    raised = writer.mul(squares, 1 << 2 * finer) if finer else squares
    mean = writer.div(writer.add(raised, n // 2), n) if n > 1 else raised
    # At least 1, so that a row of equal values divides 0 by something.
    epsilon = max(1, round(min(offset * 4.0**finer, 2.0**ROOT_BITS)))
    root = writer.sqrt(writer.add(mean, epsilon))
    root = writer.known(root, max(1, math.isqrt(epsilon)), root.high)
    largest = math.isqrt(n) + 1
    fraction = NORMAL_BITS - largest.bit_length()
    further = max(0, min(ROUNDED_BITS, 61 - deviation.peak.bit_length() - fraction - finer))
    quotient = writer.div(writer.mul(deviation, 1 << (fraction + finer + further)), root)
    quotient = writer.shift(quotient, further) if further else quotient
    limit = (1 << NORMAL_BITS) - 1
    return writer.clip(quotient, -limit, limit), fraction


def _affine(what: Normalization, fraction: int, finest: float) -> IntegerAffine:
    """Gains in steps of a power of two, so that product and offset fit 31 bits."""
    gain = np.ones(()) if what.gain is None else what.gain
    peak = float(np.max(np.abs(gain))) or 1.0
    exponent = math.ceil(math.log2(peak)) - (ACCUMULATOR_BITS - NORMAL_BITS)
    if what.offset is not None and np.any(what.offset):
        least = math.log2(float(np.max(np.abs(what.offset)))) - ACCUMULATOR_BITS + fraction
        exponent = max(exponent, math.ceil(least))
    if finest > 0:
        exponent = max(exponent, math.ceil(math.log2(finest)) + fraction)
    steps = np.ldexp(gain, -exponent)
    limit = 1 << (ACCUMULATOR_BITS - NORMAL_BITS)
    gains = np.clip(intmath.round_real(steps), -limit, limit).astype(np.int64)
    offset = None
    if what.offset is not None:
        offset = intmath.round_real(np.ldexp(what.offset, fraction - exponent), Rounding.HALF_EVEN).astype(np.int64)
    return IntegerAffine(gains, offset, math.ldexp(1.0, exponent - fraction))
