"""Tables of 513 entries over 16-bit codes, with a straight line of 128 steps between two of them.

Source: TensorFlow Lite, kernels/internal/common.h (LUTPopulateInt16, LUTLookup); Arm's Vela and TOSA build the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Ints
from quantpipe.oprules.lookup import FunctionOf
from quantpipe.types import DType, Quantizer, Rounding

Function = Callable[[NDArray[Any]], NDArray[Any]]
Real = float | np.float32
STEPS = 512


INT16 = (DType.INT16.qmin, DType.INT16.qmax)


def entries(function: Function, least: Real, greatest: Real, factor: Real, *, bounds: tuple[int, int] = INT16) -> Ints:
    """Return the table of a function over [least, largest].

    Half the error that the line makes in the middle of a piece is taken off its first entry, so that the error is
    shared by both. All is computed in the float type of `least`, `largest` and `factor`.

    `least`: the real value of the code -2^15. `greatest`: that of 2^15 - 1. `bounds`: the minimum and maximum entry,
    from the result's zero point. Returns the entries, `[513]`.
    """
    kind = np.result_type(least, np.float32) if isinstance(least, np.float32) else np.dtype(np.float64)
    step = (greatest - least) / kind.type(STEPS)
    places = np.arange(STEPS, dtype=kind)
    at = least + places * step
    here, after = function(at) * factor, function(least + (places + kind.type(1)) * step) * factor
    sample, middle = _nearest(here), _nearest(function(at + step / kind.type(2)) * factor)
    bias = _nearest((_nearest((after + sample) / kind.type(2)) - middle) / kind.type(2))
    last = _nearest(function(np.asarray([greatest], kind)) * factor)
    bounded = np.clip(np.concatenate([sample - bias, last]), *bounds)
    return np.asarray(bounded, np.int64)


def between(codes: Ints, table: Ints) -> Ints:
    """Return what a table gives for 16-bit codes.

    `codes`: integers in [-2^15, 2^15), any shape. `table`: the entries, `[513]`.
    """
    index, offset = STEPS // 2 + (codes >> 7), codes & 127
    return np.asarray(table[index] + (((table[index + 1] - table[index]) * offset + 64) >> 7), np.int64)


def interpolated_table(function: FunctionOf, data: Quantizer, out: Quantizer) -> Ints:
    """Return the stored results of a function of one value for all 16-bit codes.

    `function`: the float function of a node. `data`: how the input is stored, 16 bits. `out`: how the result is stored,
    16 bits. Returns `[rows, 65536]`, not yet bounded by swallowed clamps.
    """
    codes = np.arange(DType.INT16.qmin, DType.INT16.qmax + 1, dtype=np.int64)
    shift = data.dtype.qmin - DType.INT16.qmin
    ends, steps = (codes[0], codes[-1]), data.zero_point - shift
    least, greatest = (np.float32(data.scale) * np.float32(c - steps) for c in ends)
    rows = len(function(np.zeros(1, np.float32)))

    def row(number: int) -> Function:
        return lambda x: np.nan_to_num(function(x)[number])

    # As LUTPopulate: codes of the result per unit, from the ends of its range.
    low, high = (np.float32(out.scale) * np.float32(c - out.zero_point) for c in ends)
    factor = np.float32(65536) / (high - low)
    bounds = out.dtype.qmin - out.zero_point, out.dtype.qmax - out.zero_point
    tables = [entries(row(number), least, greatest, factor, bounds=bounds) for number in range(rows)]
    return np.stack([between(codes, table) for table in tables]) + out.zero_point


def _nearest(x: NDArray[Any]) -> NDArray[Any]:
    return intmath.round_real(x, Rounding.HALF_AWAY).astype(x.dtype)
