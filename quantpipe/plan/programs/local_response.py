"""Local response normalization in integers: exact sums of squares, integer square roots, one division.

Formulas: docs/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from quantpipe.oprules.rows import LocalResponse
from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.types import Quantizer

SUM_BITS = 51
"""Bits of the sum that roots are taken of."""
POWER_BITS = 36
"""Bits of its power, the divisor."""
QUOTIENT_BITS = 26
"""Bits of the quotient: 31 of an accumulator less room for a multiplier."""


def local_response_normalized(
    writer: ProgramWriter, data: Quantizer, what: LocalResponse, shape: Sequence[int], *, finest: float
) -> tuple[ProgramValue, float]:
    """Write x / (bias + alpha / size · Σ x²)^exponent of `[N, C, ...]`; return its last value and its real step.

    `finest`: the smallest step that the device can narrow to the result's, in real units, or 0.
    """
    x, scale, channels = writer.operand(), float(data.scale), int(shape[1])
    window = what.window(channels)
    factor = what.alpha * scale**2 / what.size
    squares = writer.matmul(writer.square(x), window, 1 - len(shape))
    offset = what.bias / factor
    fraction = SUM_BITS - math.ceil(math.log2(offset + squares.high + 1))
    raised = writer.mul(squares, 1 << fraction) if fraction >= 0 else writer.shift(squares, -fraction)
    total = writer.add(raised, max(1, round(math.ldexp(offset, fraction))))
    power, bits = _power(writer, total, what.exponent)
    # power = 2^bits · (2^fraction / factor · t)^exponent for the real divisor t^exponent.
    unit = scale * math.ldexp((math.ldexp(1.0, fraction) / factor) ** what.exponent, bits)
    lift = min(QUOTIENT_BITS - 1 + math.floor(math.log2(power.low / max(x.peak, 1))), 61 - x.peak.bit_length())
    exponent = lift - math.ceil(math.log2(unit))
    if finest > 0:
        exponent = min(exponent, math.floor(-math.log2(finest)))
    quotient = writer.div(writer.mul(x, max(1, round(math.ldexp(unit, exponent)))), power)
    return quotient, math.ldexp(1.0, -exponent)


def _power(writer: ProgramWriter, total: ProgramValue, exponent: float) -> tuple[ProgramValue, int]:
    """Return total^exponent in POWER_BITS at most, and the power of two that it is too large by."""
    if exponent == 1.0:
        made, bits = total, 0
    else:
        made, bits = writer.sqrt(total), 0
        if exponent != 0.5:
            finer = 2 * ((SUM_BITS - made.high.bit_length()) // 2)
            fourth = writer.sqrt(writer.mul(made, 1 << finer))
            made, bits = (fourth if exponent == 0.25 else writer.mul(made, fourth)), finer // 2
    cut = max(0, made.high.bit_length() - POWER_BITS)
    return (writer.shift(made, cut), bits - cut) if cut else (made, bits)
