"""Integer arithmetic in ONNX ops: right shifts with rounding, and multiplication by a fixed-point number.

ONNX shifts unsigned integers only. A signed value is lifted by a power of two that makes it non-negative, shifted, and
lowered again: (v >> n) = ((v + 2^k) >> n) - 2^(k-n) for |v| < 2^k, with k = 30 in 32 bits and 62 in 64 bits.
Sums that pass 2^63 on the way are formed unsigned, where wrapping is defined.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import ArrayLike

from quantpipe.arrays import Ints
from quantpipe.graph.build import GraphBuilder, ir_dtype
from quantpipe.lowering.fragments import ConstantWriter
from quantpipe.types import DType, FixedPoint, FixedRounding, Rounding


@dataclass(frozen=True)
class Width:
    """The integer types of a computation, and the power of two that lifts its values above zero."""

    signed: Any
    unsigned: Any
    lift: int


NARROW = Width(np.int32, np.uint32, 30)
WIDE = Width(np.int64, np.uint64, 62)


@dataclass(frozen=True, eq=False)
class IntegerWriter:
    """Writes integer arithmetic into one graph; `constants` makes a named number available there."""

    builder: GraphBuilder
    constants: ConstantWriter

    def right_shift(
        self, value: ir.Value, count: ArrayLike, rounding: Rounding, name: str, *, width: Width
    ) -> ir.Value:
        """Write round(v / 2^count) in the width's signed type.

        |v| + half a divisor must be < 2^lift. `count` is 0 (no shift) and up, a scalar or shaped to broadcast. Counts
        above the width's `lift` are written as `lift`: a shift by all bits of a type is undefined.
        """
        n = np.minimum(np.asarray(count, np.int64), width.lift)
        half = np.where(n > 0, np.int64(1) << np.maximum(n - 1, 0), 0)
        offset = half
        if rounding is Rounding.FLOOR:
            offset = np.zeros_like(half)
        elif rounding is Rounding.HALF_AWAY:
            value = self._less_one_where_negative(value, n, name, width)
        elif rounding is Rounding.HALF_EVEN:
            # half - 1, and 1 more where the floor is odd: a tie then goes up to the even neighbour, or stays.
            offset = np.where(n > 0, half - 1, 0)
            floor = self._shift(value, n, np.zeros_like(half), f"{name}/floor", width=width)
            two = self.constants(f"{name}/two", width.signed(2))
            odd = self.builder.op("Mod", floor, two, name=f"{name}/odd")
            value = self.builder.op("Add", value, self._where_moved(odd, n, name, width), name=f"{name}/to_even")
        return self._shift(value, n, offset, name, width=width)

    def times_fixed_point(self, acc: ir.Value, fixed: FixedPoint, rounding: FixedRounding, name: str) -> ir.Value:
        """Write round(acc · M · 2^(shift - 31)) in int64, as `requantize_fixed_point` computes it.

        double: the rounding doubling high multiplication (ties up; its one saturating case needs a negative M), then a
        rounding division by 2^-shift (ties away from zero). A left shift comes first and saturates at int32.

        `acc` is an int64 that int32 could hold; M and shift are scalars or shaped to broadcast.
        """
        b, shift = self.builder, fixed.shift
        multiplier = self.constants(f"{name}/fixed_multiplier", fixed.multiplier)
        if rounding is not FixedRounding.DOUBLE:
            product = b.op("Mul", acc, multiplier, name=f"{name}/product")
            halves = Rounding.HALF_UP if rounding is FixedRounding.SINGLE else Rounding.HALF_AWAY
            return self.right_shift(product, 31 - shift, halves, name, width=WIDE)
        if np.any(shift > 0):
            factor = self.constants(f"{name}/left", np.int64(1) << np.maximum(shift, 0))
            acc = self.saturate(b.op("Mul", acc, factor, name=f"{name}/left"), name)
        product = b.op("Mul", acc, multiplier, name=f"{name}/product")
        high = self.right_shift(product, 31, Rounding.HALF_UP, f"{name}/high", width=WIDE)
        return self.right_shift(high, np.maximum(-shift, 0), Rounding.HALF_AWAY, name, width=WIDE)

    def clip(self, value: ir.Value, low: int, high: int, name: str) -> ir.Value:
        """Write a clip of an int64 value between two integers below 2^53, as float64.

        The detour is needed: onnxruntime 1.31.1 clips int64 values near multiples of 2^32 wrongly (so do its Min and
        Max). Values that float64 rounds are far outside the bounds.
        """
        real = self.cast(value, np.float64, f"{name}/double")
        bounds = [self.constants(f"{name}/{side}64", np.float64(v)) for side, v in (("low", low), ("high", high))]
        return self.builder.op("Clip", real, *bounds, name=f"{name}/clip64")

    def saturate(self, value: ir.Value, name: str) -> ir.Value:
        """Write an int64 value clipped to what int32 holds, in int64."""
        return self.cast(self.clip(value, DType.INT32.qmin, DType.INT32.qmax, name), np.int64, f"{name}/saturated")

    def cast(self, value: ir.Value, dtype: Any, name: str, output: str | None = None) -> ir.Value:
        """Write a cast to another NumPy type, where integers that do not fit wrap."""
        kind = int(ir_dtype(np.dtype(dtype).name))
        return self.builder.op("Cast", value, name=name, output=output, to=kind)

    def _shift(self, value: ir.Value, n: Ints, offset: Ints, name: str, *, width: Width) -> ir.Value:
        """Write (value + offset) >> n, arithmetic."""
        b = self.builder
        raised = (offset + (np.int64(1) << width.lift)).astype(width.unsigned)
        lowered = (-(np.int64(1) << (width.lift - n))).astype(width.signed)
        bits = self.cast(value, width.unsigned, f"{name}/bits")
        up = b.op("Add", bits, self.constants(f"{name}/lift", raised), name=f"{name}/round")
        amount = self.constants(f"{name}/shift", n.astype(width.unsigned))
        right = b.op("BitShift", up, amount, name=f"{name}/shift_right", direction="RIGHT")
        back = self.cast(right, width.signed, f"{name}/signed")
        return b.op("Add", back, self.constants(f"{name}/lower", lowered), name=f"{name}/shifted")

    def _less_one_where_negative(self, value: ir.Value, n: Ints, name: str, width: Width) -> ir.Value:
        """Subtract one where negative: ties of negative numbers then fall below the tie, and go down."""
        b, last = self.builder, width.unsigned(np.iinfo(width.unsigned).bits - 1)
        bits = self.cast(value, width.unsigned, f"{name}/sign_bits")
        sign = b.op("BitShift", bits, self.constants(f"{name}/last", last), name=f"{name}/sign", direction="RIGHT")
        one = self.cast(sign, width.signed, f"{name}/negative")
        return b.op("Sub", value, self._where_moved(one, n, name, width), name=f"{name}/away")

    def _where_moved(self, value: ir.Value, n: Ints, name: str, width: Width) -> ir.Value:
        """`value`, or 0 where nothing is shifted."""
        if np.all(n > 0):
            return value
        moved = self.constants(f"{name}/moved", (n > 0).astype(width.signed))
        return self.builder.op("Mul", value, moved, name=f"{name}/where_moved")


def round_real(builder: GraphBuilder, constants: ConstantWriter, x: ir.Value, mode: Rounding, *, name: str) -> ir.Value:
    """Write the rounding of a float value to an integer, in the type of `x`.

    half_up is floor(x) plus the first binary digit of the remainder, since floor(x + 1/2) rounds the number just below
    1/2 up.
    """
    if mode is Rounding.HALF_EVEN:
        return builder.op("Round", x, name=f"{name}/round")
    if mode is Rounding.FLOOR:
        return builder.op("Floor", x, name=f"{name}/round")
    size = builder.op("Abs", x, name=f"{name}/size") if mode is Rounding.HALF_AWAY else x
    below = builder.op("Floor", size, name=f"{name}/below")
    rest = builder.op("Sub", size, below, name=f"{name}/rest")
    two = constants(f"{name}/double_rest", np.float32(2))
    digit = builder.op("Floor", builder.op("Mul", rest, two, name=f"{name}/twice"), name=f"{name}/digit")
    rounded = builder.op("Add", below, digit, name=f"{name}/round")
    if mode is Rounding.HALF_UP:
        return rounded
    return builder.op("Mul", rounded, builder.op("Sign", x, name=f"{name}/sign"), name=f"{name}/away")
