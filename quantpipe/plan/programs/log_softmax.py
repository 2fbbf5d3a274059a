"""LogSoftmax in integers: the difference to the largest, less the logarithm of the row's sum of exponentials.

ln Σ = k · ln 2 + ln(1 + x), where k is the place of the sum's first binary digit and x its rest, looked up in a table
of 513 entries. Formulas: docs/numerics.md.
"""

from __future__ import annotations

import math

import numpy as np

from quantpipe import intmath
from quantpipe.plan.programs import exponentials as ex
from quantpipe.plan.programs import interpolation
from quantpipe.plan.programs.softmax import below_greatest, interpolated
from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.types import Quantizer, Rounding

EXPONENTIAL_BITS = 16


def log_softmax(
    writer: ProgramWriter, data: Quantizer, axes: tuple[int, ...], *, count: int
) -> tuple[ProgramValue, float]:
    """Write LogSoftmax as an accumulator."""
    index, span = below_greatest(writer, axes)
    scale = float(data.scale)
    exponentials = ex.table_exponentials(scale, span, EXPONENTIAL_BITS)
    total = writer.sum_over(writer.table(index, exponentials), axes, count)
    total = writer.known(total, 1 << EXPONENTIAL_BITS, total.high)
    # The result lies between the least difference less ln n and 0: so many bits of fraction fit 30 bits, 15 are kept.
    fraction = min(15, 30 - math.ceil(span * scale + math.log(count) + 1).bit_length())
    digits = writer.bits(total)
    places = writer.add(writer.mul(digits, -1), 62)
    first = writer.shift(writer.shift_left(total, places, (1 << 62) - (1 << 32)), 46, Rounding.FLOOR)
    rest = writer.known(writer.add(first, -(1 << 15)), 0, (1 << 15) - 1)
    code = writer.add(writer.mul(rest, 2), -(1 << 15))
    line = interpolated(writer, code, interpolation.entries(np.log1p, 0.0, 65534 / 65536, float(1 << 15)))
    line = line if fraction == 15 else writer.shift(line, 15 - fraction)
    whole = int(intmath.round_real(math.log(2.0) * 2.0**fraction))
    logarithm = writer.add(writer.mul(writer.add(digits, -1 - EXPONENTIAL_BITS), whole), line)
    # So many more bits of the scale that the products fit 61 bits; they are rounded away behind the product.
    finer = min(30, 60 - span.bit_length() - math.ceil(scale).bit_length() - fraction)
    step = int(intmath.round_real(scale * 2.0 ** (fraction + finer)))
    difference = writer.shift(writer.mul(writer.add(index, -span), step), finer)
    return writer.sub(difference, logarithm), 2.0**-fraction
