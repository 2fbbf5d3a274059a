"""Write the steps of an integer program, and know how large each value can be.

Bounds follow from the operands' by interval arithmetic in Python's own integers. A step that could leave int64 (with
the room that shifts need) is rejected, so no program that leaves this module can overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantpipe.errors import HardwareError
from quantpipe.types import Rounding, Step, StepOp

MOST = (1 << 62) - (1 << 31)
"""Magnitudes stay below: a shift lifts its value, half a divisor added, by 2^62 (lowering/integers.py)."""


@dataclass(frozen=True)
class ProgramValue:
    """A value of the program: its position and its bounds."""

    at: int
    low: int
    high: int

    @property
    def peak(self) -> int:
        """Return the largest magnitude."""
        return max(abs(self.low), abs(self.high))


Operand = ProgramValue | int | NDArray[np.int64]


@dataclass(eq=False)
class ProgramWriter:
    """Collects the steps of one program. `operands`: bounds of q - z of each operand of the kernel."""

    node: str
    operands: Sequence[tuple[int, int]]
    steps: list[Step] = field(default_factory=list)

    def operand(self, number: int = 0) -> ProgramValue:
        """Return an operand of the kernel."""
        return ProgramValue(number, *self.operands[number])

    def constant(self, number: int) -> ProgramValue:
        """Write a number."""
        return self._step(StepOp.CONSTANT, (), number, number, numbers=np.asarray(number, np.int64))

    def add(self, a: ProgramValue, b: Operand) -> ProgramValue:
        """Write a + b."""
        low, high = _ends(b)
        return self._binary(StepOp.ADD, a, b, a.low + low, high=a.high + high)

    def sub(self, a: ProgramValue, b: Operand) -> ProgramValue:
        """Write a - b."""
        low, high = _ends(b)
        return self._binary(StepOp.SUB, a, b, a.low - high, high=a.high - low)

    def mul(self, a: ProgramValue, b: Operand) -> ProgramValue:
        """Write a · b."""
        products = [x * y for x in (a.low, a.high) for y in _ends(b)]
        return self._binary(StepOp.MUL, a, b, min(products), high=max(products))

    def square(self, a: ProgramValue) -> ProgramValue:
        """Write a · a, whose bounds know that both factors are one."""
        low = 0 if a.low <= 0 <= a.high else min(a.low**2, a.high**2)
        return self._step(StepOp.MUL, (a, a), low, a.peak**2)

    def div(self, a: ProgramValue, b: Operand) -> ProgramValue:
        """Write a / b without its fraction; b > 0."""
        least = _ends(b)[0]
        if least <= 0:
            raise self.refused(f"it would divide by {least}")
        low, high = (-(-x // least) if x < 0 else x // least for x in (min(a.low, 0), max(a.high, 0)))
        return self._binary(StepOp.DIV, a, b, low, high=high)

    def shift(self, a: ProgramValue, count: int, rounding: Rounding = Rounding.HALF_UP) -> ProgramValue:
        """Write a / 2^count, rounded."""
        low, high = (_rounded(x, count, rounding) for x in (a.low, a.high))
        return self._step(StepOp.SHIFT, (a,), low, high, numbers=np.asarray(count, np.int64), rounding=rounding)

    def high_product(self, a: ProgramValue, b: Operand) -> ProgramValue:
        """Write gemmlowp's SaturatingRoundingDoublingHighMul, (a·b + 2^30) >> 31."""
        return self.shift(self.mul(a, b), 31)

    def shift_right(self, a: ProgramValue, count: ProgramValue) -> ProgramValue:
        """Write (a + 2^(count-1)) >> count for a >= 0."""
        return self._step(StepOp.SHIFT_RIGHT, (a, count), 0, _rounded(a.high, count.low, Rounding.HALF_UP))

    def shift_left(self, a: ProgramValue, count: ProgramValue, high: int) -> ProgramValue:
        """Write a · 2^count for a >= 0; `high` bounds the result, which the caller knows better than intervals."""
        return self._step(StepOp.SHIFT_LEFT, (a, count), 0, high)

    def table(self, a: ProgramValue, entries: ArrayLike) -> ProgramValue:
        """Write entries[a]."""
        numbers = np.asarray(entries, np.int64)
        if a.low < 0 or a.high >= numbers.size:
            raise self.refused(f"a table of {numbers.size} entries is read at {a.low} to {a.high}")
        return self._step(StepOp.TABLE, (a,), int(numbers.min()), int(numbers.max()), numbers=numbers)

    def clip(self, a: ProgramValue, low: int, high: int) -> ProgramValue:
        """Write a between two integers."""
        bounds = min(max(a.low, low), high), max(min(a.high, high), low)
        return self._step(StepOp.CLIP, (a,), *bounds, numbers=np.asarray([low, high], np.int64))

    def max_over(self, a: ProgramValue, axes: tuple[int, ...]) -> ProgramValue:
        """Write the largest a along axes, which stay."""
        return self._step(StepOp.MAX_OVER, (a,), a.low, a.high, axes=axes)

    def sum_over(self, a: ProgramValue, axes: tuple[int, ...], count: int) -> ProgramValue:
        """Write the sum of `count` values along axes, which stay."""
        return self._step(StepOp.SUM_OVER, (a,), a.low * count, a.high * count, axes=axes)

    def matmul(self, a: ProgramValue, matrix: NDArray[np.int64], axis: int) -> ProgramValue:
        """Write a times a matrix over the last axis (-1), or the matrix times a over an earlier one (-2, -3, ...)."""
        terms = np.swapaxes(matrix, -1, -2) if axis == -1 else matrix
        above, below = np.maximum(terms, 0).sum(axis=-1), np.minimum(terms, 0).sum(axis=-1)
        ends = [int(p) * x + int(n) * y for p, n in zip(above, below, strict=True)
                for x, y in ((a.low, a.high), (a.high, a.low))]  # fmt: skip
        return self._step(StepOp.MATMUL, (a,), min(ends), max(ends), numbers=matrix, axes=(axis,))

    def squeeze(self, a: ProgramValue, axes: tuple[int, ...]) -> ProgramValue:
        """Write a without axes of one element."""
        return self._step(StepOp.SQUEEZE, (a,), a.low, a.high, axes=axes)

    def bits(self, a: ProgramValue) -> ProgramValue:
        """Write how many binary digits a >= 0 has."""
        return self._step(StepOp.BITS, (a,), max(a.low, 0).bit_length(), a.high.bit_length())

    def sqrt(self, a: ProgramValue) -> ProgramValue:
        """Write the whole part of the square root of a >= 0."""
        if a.high >= 1 << 52:
            raise self.refused(f"it would take the square root of up to {a.high}")
        low, high = (math.isqrt(max(x, 0)) for x in (a.low, a.high))
        return self._step(StepOp.SQRT, (a,), low, high)

    def known(self, a: ProgramValue, low: int, high: int) -> ProgramValue:
        """Return a value with tighter bounds than intervals give; whoever calls it says why they hold."""
        return ProgramValue(a.at, max(a.low, low), min(a.high, high))

    def refused(self, why: str) -> HardwareError:
        """Return the error of a program that the device cannot carry out."""
        advice = f"keep it in float with annotate.float_nodes=[{self.node}]"
        return HardwareError(f"{why}; give its input fewer bits, or {advice}", stage="plan", where=self.node)

    def _binary(self, op: StepOp, a: ProgramValue, b: Operand, low: int, *, high: int) -> ProgramValue:
        if isinstance(b, ProgramValue):
            return self._step(op, (a, b), low, high)
        return self._step(op, (a,), low, high, numbers=np.asarray(b, np.int64))

    def _step(
        self,
        op: StepOp,
        values: tuple[ProgramValue, ...],
        low: int,
        high: int,
        *,
        numbers: NDArray[np.int64] | None = None,
        axes: tuple[int, ...] = (),
        rounding: Rounding = Rounding.HALF_UP,
    ) -> ProgramValue:
        if max(abs(low), abs(high)) >= MOST:
            raise self.refused(f"a value of its integer form could reach {max(abs(low), abs(high))}")
        self.steps.append(Step(op, tuple(v.at for v in values), low, high, numbers, axes, rounding))
        return ProgramValue(len(self.operands) + len(self.steps) - 1, low, high)


def _ends(b: Operand) -> tuple[int, int]:
    if isinstance(b, ProgramValue):
        return b.low, b.high
    return int(np.min(b)), int(np.max(b))


def _rounded(value: int, count: int, rounding: Rounding) -> int:
    """An end of an interval after a shift that floors or rounds ties up."""
    if count == 0:
        return value
    if rounding is Rounding.FLOOR:
        return value >> count
    return (value + (1 << (count - 1))) >> count
