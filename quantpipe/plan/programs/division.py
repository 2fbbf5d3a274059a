"""A quotient of two activations in integers: one division of integers, finer than the result by some bits.

With x and y the operands less their zero points, a / b = (s_a / s_b) · x / y. The quotient ⌊x · 2^f / y⌋ (towards zero)
is an accumulator of scale (s_a / s_b) · 2^-f, which the device narrows as any other. Formulas: docs/numerics.md.
"""

from __future__ import annotations

import math

from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.types import Quantizer

FINER_BITS = 8
"""Bits by which a step of the quotient is finer than one of the result, since the division cuts its fraction."""
QUOTIENT_BITS = 30
"""Bits of the quotient: beyond lie only results that the stored type does not hold, and it fits int32."""
ROOM = 61
"""Bits that a dividend may have."""


def quotient(writer: ProgramWriter, a: Quantizer, b: Quantizer, out: Quantizer) -> tuple[ProgramValue, float]:
    """Write a / b as an accumulator.

    A divisor that is stored as 0 counts as one step above 0, so that the result saturates as the real one would.
    """
    x, y = writer.operand(0), writer.operand(1)
    ratio = float(a.scale) / float(b.scale)
    wanted = math.ceil(math.log2(ratio / float(out.scale))) + FINER_BITS
    fraction = max(0, min(wanted, ROOM - x.peak.bit_length()))
    if y.low < 0:
        sign = writer.clip(writer.add(writer.mul(y, 2), 1), -1, 1)
        y = writer.known(writer.mul(y, sign), 0, y.peak)
        x = writer.known(writer.mul(x, sign), -x.peak, x.peak)
    divisor = writer.clip(y, 1, max(y.high, 1))
    raised = writer.mul(x, 1 << fraction) if fraction else x
    limit = 1 << QUOTIENT_BITS
    found = writer.clip(writer.div(raised, divisor), -limit, limit)
    return found, math.ldexp(ratio, -fraction)
