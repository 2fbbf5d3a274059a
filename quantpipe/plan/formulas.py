"""Functions of one value as devices form them from integers: the entries of a table, computed as the device does.

Between two stored tensors a function of one value is a function of its code, whatever arithmetic forms it. So every
kind gives a table over all codes, in plain NumPy int64. Sources: I-BERT (Kim et al., ICML 2021), I-ViT (Li and Gu, ICCV
2023), TensorFlow Lite's reference kernels. Formulas: docs/numerics.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import Ints
from quantpipe.errors import HardwareError
from quantpipe.graph.view import Node
from quantpipe.plan.programs import exponentials as ex
from quantpipe.types import (
    MULTIPLIER_BITS,
    FixedRounding,
    FunctionKind,
    Quantizer,
    RequantizeKind,
    RequantizeSpec,
    Rounding,
)


@dataclass(frozen=True, eq=False)
class Formula:
    """Hold what a formula reads: the node, how input and result are stored, and how the device requantizes.

    `low` and `high` bound the entries.
    """

    node: Node
    data: Quantizer
    out: Quantizer
    requantize: RequantizeSpec
    low: int
    high: int

    @property
    def centred(self) -> Ints:
        """Return q - z of each code, from the smallest on."""
        codes = np.arange(self.data.dtype.qmin, self.data.dtype.qmax + 1, dtype=np.int64)
        return codes - self.data.zero_point

    @property
    def scale(self) -> float:
        """Return the scale of the input."""
        return float(self.data.scale)

    def stored(self, values: Ints, scale: float) -> Ints:
        """Return integers of a scale as the device narrows them to the result's."""
        real, how = scale / float(self.out.scale), self.requantize
        z, low, high = self.out.zero_point, self.low, self.high
        if how.kind is RequantizeKind.SHIFT:
            mantissa, exponent = math.frexp(real)
            if mantissa != 0.5:
                raise HardwareError(
                    f"{self.node.op} formed by these integers has the factor {real:.6g} on its result, which no shift "
                    f"expresses; legal on a device that shifts are functions.{self.node.op}: table or shift",
                    stage="plan",
                    where=self.node.name,
                )
            exponent -= 1
            return intmath.requantize_shift(values, -exponent, z, qmin=low, qmax=high, rounding=Rounding(how.rounding))
        if how.kind is RequantizeKind.FIXED_POINT:
            return self.times(values, real)
        found = intmath.requantize_float(
            values, np.float32(real), z, qmin=low, qmax=high, rounding=Rounding(how.rounding)
        )
        return np.asarray(found, np.int64)

    def times(self, values: Ints, real: float) -> Ints:
        """Return integers times a fixed-point number, plus the result's zero point, bounded."""
        multiplier, shift = intmath.quantize_multipliers(np.asarray(real))
        bits, rounding = self.requantize.multiplier_bits, self.requantize.rounding
        fixed = intmath.narrow_multiplier(multiplier, bits) << (MULTIPLIER_BITS - bits), shift
        mode: Literal["double", "single"] = "single" if rounding is FixedRounding.SINGLE else "double"
        return intmath.requantize_fixed_point(
            values, fixed, self.out.zero_point, qmin=self.low, qmax=self.high, rounding=mode
        )


def _exp(exponentials: Callable[[float, Ints], Ints]) -> Callable[[Formula], Ints]:
    """exp(x) = exp(x - m) · 2^k with m = k·ln 2, the smallest m that no stored result exceeds; larger x saturate there.

    So the exponentials are of numbers at most 0, as in a Softmax, and the factor 2^k is a power of two.
    """

    def entries(f: Formula) -> Ints:
        greatest = max(f.high - f.out.zero_point, 1) * float(f.out.scale)
        power = math.ceil(math.log2(greatest))
        scale, x = ex.finer(f.scale, f.centred)
        top = round(power * math.log(2.0) / scale)
        found = exponentials(scale, np.minimum(x - top, 0))
        one = int(exponentials(scale, np.zeros(1, np.int64))[0])
        return f.stored(found, math.ldexp(1.0 / one, power))

    return entries


GELU = (-0.2888, -1.769)
"""I-BERT's a and b of erf(x) = sign(x)·(a·(min(|x|, -b) + b)² + 1)."""


def _polynomial_gelu(f: Formula) -> Ints:
    """I-BERT's i-GELU, algorithm 2: x · (1 + erf(x / √2)) / 2 with erf as a polynomial of second order."""
    a, b = GELU
    scale, x = ex.finer(f.scale / math.sqrt(2.0), f.centred)
    linear, constant = math.floor(b / scale), math.floor(1.0 / a / scale**2)
    size = np.minimum(np.abs(x), -linear)
    erf = np.sign(x) * ((size + linear) ** 2 + constant)
    # a is negative, so the scale of erf is: the sign goes into the integers.
    drop = max((abs(constant)).bit_length() - 14, 0)
    erf, step = -erf >> drop, -a * scale**2 * 2.0**drop
    one = math.floor(1.0 / step)
    return f.stored(f.centred * (erf + one), f.scale * step / 2.0)


SIGMOID_BITS = 8


def _shift_gelu(f: Formula) -> Ints:
    """I-ViT's ShiftGELU, x · sigmoid(1.702·x) with 1.702 = 1 + 1/2 + 1/8 + 1/16 and exponentials by shifts.

    I-ViT takes the largest element of a row off before its exponentials; max(x, 0) of each element does the same.
    """
    x = f.centred << 4
    x = x + (x >> 1) + (x >> 3) + (x >> 4)
    scale, top = f.scale / 16.0, np.maximum(x, 0)
    above, below = ex.shift_exponentials(scale, x - top), ex.shift_exponentials(scale, -top)
    extra = max(int(above.max()).bit_length() - 16, 0)
    above, below = above >> extra, below >> extra
    factor = ((1 << 31) - 1) // np.maximum(above + below, 1)
    sigmoid = (above * factor) >> (31 - SIGMOID_BITS)
    return f.stored(f.centred * sigmoid, f.scale / 2.0**SIGMOID_BITS)


def _tflite_leaky_relu(f: Formula) -> Ints:
    """reference/leaky_relu.h: one multiplier for each sign, of ratios that are computed in float32."""
    scale, out, alpha = np.float32(f.scale), np.float32(f.out.scale), np.float32(f.node.attr("alpha", 0.01))
    positive = f.times(f.centred, float(scale / out))
    negative = f.times(f.centred, float(scale * alpha / out))
    return np.asarray(np.where(f.centred >= 0, positive, negative), np.int64)


def _tflite_hard_swish(f: Formula) -> Ints:
    """reference/hard_swish.h of int8: x·clip(x + 3, 0, 6) / 6 in 16 bits, with multipliers of 15 bits."""
    finer = np.float32(1 / 128) * np.float32(f.scale)
    result, result_shift = _fifteen_bits(float(finer / np.float32(f.out.scale)))
    inner, inner_shift = _fifteen_bits(float(finer / np.float32(3 / 32768)))
    if result_shift > 0:
        raise HardwareError(
            f"its result's scale is below 1/128 of its input's ({float(f.out.scale):g} and {f.scale:g}), which the "
            "kernel of TensorFlow Lite does not take; legal are other ranges, or functions.HardSwish: table",
            stage="plan",
            where=f.node.name,
        )
    x = f.centred << 7
    share = _left(x, inner_shift - 1) if inner_shift > 0 else x
    share = (share * inner + (1 << 14)) >> 15
    share = _left(share, 1) if inner_shift > 0 else _half_away(share, -inner_shift)
    share = (share + (1 << 15)) >> 1
    product = share * ((x * result + (1 << 14)) >> 15)
    cut = np.sign(product) * (np.abs(product) >> 15)
    return np.asarray(np.clip(_half_away(cut, -result_shift) + f.out.zero_point, f.low, f.high), np.int64)


def _fifteen_bits(real: float) -> tuple[int, int]:
    """A number as multiplier · 2^(exponent - 15), the multiplier of 31 bits rounded once more to 15."""
    multiplier, exponent = (int(v) for v in intmath.quantize_multipliers(np.asarray(real)))
    half = 1 << 15
    return (0x7FFF if multiplier >= (1 << 31) - 1 - half else (multiplier + half) >> 16), exponent


def _left(values: Ints, bits: int) -> Ints:
    """Shifted left, saturated at 16 bits."""
    return np.asarray(np.clip(values << bits, -0x8000, 0x7FFF), np.int64)


def _half_away(values: Ints, bits: int) -> Ints:
    """V / 2^bits, ties away from zero."""
    half = (1 << bits) >> 1
    return np.asarray(np.sign(values) * ((np.abs(values) + half) >> bits), np.int64)


def _tflite_sigmoid(f: Formula) -> Ints:
    """reference/integer_ops/logistic.h of int16: a table of 256 entries over [0, 10.7), lines between them."""
    x = _to_eight(f)
    size = np.abs(x)
    found = np.where(size >> 9 >= 255, 0x7FFF << 10, _line(size, 9))
    found = np.where(x >= 0, found + (1 << 9), (1 << 25) - found + (1 << 9) - 1)
    return np.asarray(np.clip(found >> 10, f.low, f.high), np.int64)


def _tflite_tanh(f: Formula) -> Ints:
    """reference/integer_ops/tanh.h of int16: tanh(x) = 2·sigmoid(2·x) - 1 from the same table."""
    x = _to_eight(f)
    size = np.abs(x)
    found = np.where(size >> 8 >= 255, 0xFFFF << 8, _line(size, 8))
    found = np.where(x >= 0, found - (1 << 23) + (1 << 7), -found + (1 << 23) + (1 << 7) - 1)
    return np.asarray(np.clip(found >> 8, f.low, f.high), np.int64)


def _to_eight(f: Formula) -> Ints:
    """The input in steps of 1 / (3·4096), by a multiplier of 15 bits and a rounding shift (activations.cc)."""
    power = math.frexp(f.scale)
    left = power[1] - 1 + 12
    if power[0] == 0.5 and left in ((0,) if f.node.op == "Sigmoid" else (0, 1)):
        return f.centred * (3 << left)
    multiplier, count = f.scale * 4096.0 * 3.0, 0
    while multiplier <= 32767.0 / 2.0 and count <= 30:
        multiplier, count = multiplier * 2.0, count + 1
    half = (1 << count) >> 1
    return (f.centred * int(multiplier) + half) >> count


def _line(size: Ints, bits: int) -> Ints:
    """Between two entries of the sigmoid of i / 24 in 16 bits, i = 0 … 255, scaled by 2^bits.

    Half the error that the line makes in the middle is taken off an entry before it is rounded, which gives the
    published sigmoid_table_uint16; the last one is where larger inputs saturate.
    """
    here, middle, after = (65536.0 / (1.0 + np.exp(-(np.arange(256) + part) / 24.0)) for part in (0.0, 0.5, 1.0))
    table = intmath.round_real(here - ((here + after) / 2 - middle) / 2, Rounding.HALF_UP)
    entries = table.astype(np.int64)
    entries[-1] = 65535
    index = np.minimum(size >> bits, 254)
    rest = size & ((1 << bits) - 1)
    return np.asarray((entries[index] << bits) + rest * (entries[index + 1] - entries[index]), np.int64)


FORMULAS: Mapping[tuple[str, FunctionKind], Callable[[Formula], Ints]] = {
    ("Exp", FunctionKind.POLYNOMIAL): _exp(ex.polynomial_exponentials),
    ("Exp", FunctionKind.SHIFT): _exp(ex.shift_exponentials),
    ("Gelu", FunctionKind.POLYNOMIAL): _polynomial_gelu,
    ("Gelu", FunctionKind.SHIFT): _shift_gelu,
    ("HardSwish", FunctionKind.TFLITE): _tflite_hard_swish,
    ("LeakyRelu", FunctionKind.TFLITE): _tflite_leaky_relu,
    ("Sigmoid", FunctionKind.TFLITE): _tflite_sigmoid,
    ("Tanh", FunctionKind.TFLITE): _tflite_tanh,
}
"""(op, kind) -> the entries `[codes]`. The TFLite forms of Sigmoid and Tanh are of 16 bits; of 8 they are tables."""

OF_BYTES = ("HardSwish",)
"""Functions whose form is of 8 bits; of 16 they are tables."""
