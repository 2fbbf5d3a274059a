"""Exponentials in integers as devices form them: exp of what a row lies below its largest element, for each code.

Each function gives, for differences d = 0, -1, …, -span of stored integers of one scale, the integers of exp(d·s): a
table that the device computes on the way, exactly as it does. Plain NumPy in int64.
"""

from __future__ import annotations

import math

import numpy as np

from quantpipe import intmath
from quantpipe.arrays import Ints

INTEGER_BITS = 5
"""Bits before the point of TFLite's scaled differences (Q5.26)."""
ONE = (1 << 31) - 1
"""1.0 in Q0.31."""
FIRST, TWO = np.asarray(1, np.int64), np.asarray(2, np.int64)

_BARREL = (
    (24, 1672461947), (25, 1302514674), (26, 790015084), (27, 290630308), (28, 39332535), (29, 720401), (30, 242),
)  # fmt: skip
"""Bit of a Q5.26 remainder -> exp(-2^(bit - 26)) in Q0.31 (gemmlowp fixedpoint.h, exp_on_negative_values)."""


def tflite_exponentials(scale: float, span: int) -> Ints:
    """Return exp(d·scale) in Q0.31 for d = -span … 0, as TFLite's 8-bit Softmax forms it.

    Differences are brought to Q5.26 by a multiplier above 1 (PreprocessSoftmaxScaling) and go through gemmlowp's
    exp_on_negative_values; those below -(2^5 - 1), the diff_min of SoftmaxParams, give 0.

    `scale`: the scale of the input, times the op's beta. Returns the exponentials, `[span + 1]`.
    """
    raised = scale * 2.0 ** (31 - INTEGER_BITS)
    if raised >= 2.0**30:  # a shift of 31 and diff_min 0: whatever the multiplier is, the greatest alone counts
        return np.where(np.arange(-span, 1) < 0, 0, ONE).astype(np.int64)
    multiplier, shift = intmath.quantize_multipliers(np.asarray(raised))
    left = int(shift)
    least = -math.floor(((1 << INTEGER_BITS) - 1) * 2.0 ** (31 - INTEGER_BITS) / 2.0**left)
    differences = np.arange(-span, 1, dtype=np.int64)
    kept = np.maximum(differences, least)
    scaled = intmath.doubling_high_multiply(kept << max(left, 0), np.asarray(multiplier))
    return np.where(differences >= least, exp_on_negative(scaled), 0)


def exp_on_negative(value: Ints) -> Ints:
    """Return exp of Q5.26 numbers at most 0, in Q0.31 (gemmlowp, exp_on_negative_values)."""
    quarter = 1 << 24
    rest = (value & (quarter - 1)) - quarter
    result = _exp_between(rest << INTEGER_BITS)
    remainder = rest - value
    for bit, factor in _BARREL:
        smaller = intmath.doubling_high_multiply(result, np.asarray(factor, np.int64))
        result = np.where(remainder & (1 << bit), smaller, result)
    return np.asarray(np.where(value == 0, ONE, result), np.int64)


def _exp_between(value: Ints) -> Ints:
    """Exp on [-1/4, 0) in Q0.31: four terms of the series around -1/8."""
    constant, third = np.asarray(1895147668, np.int64), np.asarray(715827883, np.int64)
    x = value + (1 << 28)
    x2 = intmath.doubling_high_multiply(x, x)
    x3, x4 = intmath.doubling_high_multiply(x2, x), intmath.doubling_high_multiply(x2, x2)
    quarter = intmath.divide_by_power(x4, TWO)
    sixth = intmath.divide_by_power(intmath.doubling_high_multiply(quarter + x3, third) + x2, FIRST)
    return constant + intmath.doubling_high_multiply(constant, x + sixth)


def table_exponentials(scale: float, span: int, bits: int) -> Ints:
    """Return rint(exp(d·scale)·2^bits) for d = -span … 0: the entries of a table in memory.

    Returns the exponentials, `[span + 1]`.
    """
    differences = np.arange(-span, 1, dtype=np.float64)
    return intmath.round_real(np.exp(differences * scale) * 2.0**bits).astype(np.int64)


FINE_BITS = 10


def finer(scale: float, values: Ints) -> tuple[float, Ints]:
    """Return integers shifted left until their scale is below 2^-10, so that ln 2 and 1 are many steps.

    `scale`: the scale of the numbers; one that is below 2^-10 stays. `values`: integers, any shape.
    """
    left = max(0, math.frexp(scale)[1] + FINE_BITS)
    return math.ldexp(scale, -left), values << left


SHIFT_STEPS = 15
"""n of I-ViT's Shiftmax: exp is 0 below 2^-n."""


def shift_exponentials(scale: float, differences: Ints) -> Ints:
    """Return I-ViT's ShiftExp of integers at most 0, in steps of scale / 2^15 (Li and Gu, ICCV 2023, algorithm 1).

    exp(x) = 2^(x·log2 e) with log2 e = 1 + 1/2 - 1/16 by shifts; of 2^-(q + r/x0), the fraction is the line 1 - r/2.

    `differences`: integers at most 0, any shape.
    """
    scale, differences = finer(scale, differences)
    x = differences + (differences >> 1) - (differences >> 4)
    one = max(math.floor(1.0 / scale), 1)  # -x0: 1.0 in steps of scale
    x = np.maximum(x, -SHIFT_STEPS * one)
    whole = -x // one
    rest = x + one * whole
    return np.asarray(((rest + 2 * one) << (SHIFT_STEPS - whole)) >> 1, np.int64)


POLYNOMIAL = (0.35815147, 0.96963238, 1.0)
"""I-BERT's a, b, c of exp(p) = a·p² + b·p + c on (-ln 2, 0] (Kim et al., ICML 2021, equation 10, as published code)."""
POLYNOMIAL_STEPS = 30


def polynomial_exponentials(scale: float, differences: Ints) -> Ints:
    """Return I-BERT's i-exp of integers at most 0, in steps of a·scale² / 2^30 … brought below 2^16 by a shift.

    x = -ln 2 · z + p with integers z and p; exp(x) = (a·p² + b·p + c) >> z.

    `differences`: integers at most 0, any shape.
    """
    a, b, c = POLYNOMIAL
    scale, differences = finer(scale, differences)
    ln2 = max(math.floor(math.log(2.0) / scale), 1)
    x = np.maximum(differences, -POLYNOMIAL_STEPS * ln2)
    whole = -x // ln2
    rest = x + ln2 * whole
    linear, constant = math.floor(b / a / scale), math.floor(c / a / scale**2)
    polynomial = rest * (rest + linear) + constant
    return np.asarray(np.maximum(polynomial >> whole, 0), np.int64)
