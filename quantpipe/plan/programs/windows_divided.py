"""Averages of windows by a division of integers, as TensorFlow Lite's reference kernels and CMSIS-NN form them.

The sum of the stored integers q of a window is divided by their number n, ties away from zero:
(Σq + n / 2) / n for Σq > 0, else (Σq - n / 2) / n, both without their fractions. The result has the scale and zero
point of the input. Sources: reference/integer_ops/pooling.h, arm_avgpool_s8.c.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from quantpipe.arrays import Ints
from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.types import DType

AXES = (-2, -1)


def divided_average(
    writer: ProgramWriter, zero: int, elements: Sequence[Ints], counts: Ints, *, bounds: tuple[int, int]
) -> ProgramValue:
    """Write the average of each window as its stored integer.

    `zero`: the zero point of operand and result. `elements`: which elements of the map a window has along each axis, 0
    or 1, `[made, size]`. `counts`: by how many each sum is divided, `[*made]`. `bounds`: the smallest and the largest
    result. Raises HardwareError for windows without an element, and for sums beyond int32.
    """
    if not np.all(counts > 0):
        raise writer.refused("one of its windows has no element")
    total = writer.operand()
    for axis, matrix in zip(AXES[-len(elements) :], elements, strict=True):
        total = writer.matmul(total, matrix.T if axis == -1 else matrix, axis)
    whole = writer.add(total, counts * zero) if zero else total
    if whole.peak > DType.INT32.qmax:
        raise writer.refused(f"its sums may reach {whole.peak}, beyond int32")
    sign = writer.clip(whole, -1, 1)
    raised = writer.add(whole, writer.mul(sign, counts // 2))
    return writer.clip(writer.div(raised, counts), *bounds)
