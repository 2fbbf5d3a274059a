"""Integer programs: how a device forms a function of whole rows (Softmax, normalizations) from integers, step by step.

A program is a straight line of steps on int64 values. Every step carries bounds that no input exceeds, so nothing can
overflow. Simulation, back ends and the tests' interpreter carry out the same steps, and none of them knows a function.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from quantpipe.types.hardware_fields import Rounding


class StepOp(StrEnum):
    """Name what a step does; `a`, `b` are its operands (earlier values, or `numbers` for a missing b).

    CONSTANT       `numbers`
    ADD, SUB, MUL  a + b, a - b, a · b
    DIV            a / b without its fraction (towards zero); b > 0
    SHIFT          a / 2^n, rounded by `rounding`; n is `numbers`
    SHIFT_RIGHT    (a + 2^(b-1)) >> b, and a where b is 0; a >= 0
    SHIFT_LEFT     a · 2^b; a >= 0
    TABLE          numbers[a]
    CLIP           a between the two `numbers`
    MAX_OVER       the maximum a along `axes`, which stay with one element
    SUM_OVER       the sum of a along `axes`
    MATMUL         a · numbers over the last axis (axes (-1,)), or numbers · a over an earlier one (axes (-2,), ...)
    SQUEEZE        a without its `axes` of one element
    BITS           how many binary digits a has (0 has none); a >= 0
    SQRT           the largest integer whose square is at most a; 0 <= a < 2^52
    """

    CONSTANT = "constant"
    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    SHIFT = "shift"
    SHIFT_RIGHT = "shift_right"
    SHIFT_LEFT = "shift_left"
    TABLE = "table"
    CLIP = "clip"
    MAX_OVER = "max_over"
    SUM_OVER = "sum_over"
    MATMUL = "matmul"
    SQUEEZE = "squeeze"
    BITS = "bits"
    SQRT = "sqrt"


@dataclass(frozen=True, eq=False)
class Step:
    """Describe one step: operands are indices of earlier values, beginning with the kernel's operands (q - z).

    `numbers` broadcast to the operand (per channel: shaped along its axis). `low` and `high` bound the result.
    """

    op: StepOp
    operands: tuple[int, ...]
    low: int
    high: int
    numbers: NDArray[np.int64] | None = field(default=None, repr=False)
    axes: tuple[int, ...] = ()
    rounding: Rounding = Rounding.HALF_UP
