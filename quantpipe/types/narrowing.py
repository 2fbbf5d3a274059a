"""Narrow an accumulator to a stored integer: multipliers, as floats or as integers, and bounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.types.hardware_fields import MULTIPLIER_BITS, FixedRounding, RequantizeKind, Rounding

Scale = NDArray[np.float32]
"""float32, shape `()` or `[C]`, real units per integer step."""


@dataclass(frozen=True, eq=False)
class FixedPoint:
    """Hold a real multiplier as integers: `multiplier` · 2^(`shift` - 31).

    Both are int64 of shape `()` or `[C]`; the multiplier is 0 or in [2^30, 2^31), of averages in [2^29, 2^31). One of
    fewer `bits` has only these bits where the product is rounded once and shifted right, else zeros after them.
    `single_ratio`: the real multiplier is a ratio of float32 numbers.
    """

    multiplier: NDArray[np.int64]
    shift: NDArray[np.int64]
    bits: int = MULTIPLIER_BITS
    single_ratio: bool = False


@dataclass(frozen=True, eq=False)
class Requantize:
    """Narrow an accumulator to a stored integer.

    float_multiplier: q = clamp(round(f32(acc) · multiplier) + z)     (`zero_first`: round(f32(acc) · multiplier + z))
    fixed_point: q = clamp(round(acc · fixed) + z), integers only; `multiplier` is the value of `fixed`
    shift:            q = clamp(round(acc / 2^shift) + z)             shift <= 0 shifts left; `multiplier` is 2^-shift
    `low`, `high` bound q, clamps of swallowed nodes included. `multiplier` is `()` or `[C]`. `by_channel`: bounds of
    each channel's own, (low, high), int64 `[C]` each, inside those.
    """

    kind: RequantizeKind
    multiplier: Scale
    shift: int
    zero_point: int
    low: int
    high: int
    zero_first: bool = False
    rounding: Rounding | FixedRounding = Rounding.HALF_EVEN
    fixed: FixedPoint | None = None
    by_channel: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    @property
    def is_kernel_arithmetic(self) -> bool:
        """Return whether onnxruntime's own kernels narrow like this: a float32 product, ties to even."""
        return self.kind is RequantizeKind.FLOAT_MULTIPLIER and self.rounding is Rounding.HALF_EVEN
