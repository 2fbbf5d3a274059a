"""Whether a device can hold the grid of a tensor or the integers of a weight that a quantized model gives.

Takes a grid, and what the device and the schema make of ranges; gives the range (or the thresholds) from which exactly
this grid follows, or the nearest that the device can do, and in words what has to change.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.annotate.fixed_range import FixedRange
from quantpipe.arrays import along
from quantpipe.types import (
    Denominator,
    DType,
    GivenWeight,
    Granularity,
    HardwareSpec,
    ImportedGrid,
    PowerOfTwo,
    Range,
    Schema,
    Symmetry,
    TensorSchema,
)

GIVEN = "given by the quantized model"


@dataclass(frozen=True, eq=False)
class FittedWeight:
    """Hold the thresholds from which the given scales of a weight follow; None where the device has no such scales.

    `axis`: the axis of its scales. `change`: what is different on the device, in words; empty where nothing is.
    """

    thresholds: NDArray[np.float64] | None
    axis: int | None
    bits: int
    change: str = ""


def fitted_range(grid: ImportedGrid, dtype: DType, schema: Schema, most: int) -> tuple[FixedRange, str]:
    """Return the range of a tensor that gives its grid, or the one it covers, and what has to change."""
    how, bits = schema.activations, min(grid.bits, dtype.bits, most)
    if not grid.single:
        whole = _hull(grid)
        return FixedRange(whole, bits, GIVEN, yields=True), "scales per channel, and activations have one scale here"
    scale, zero = float(grid.scale), int(grid.zero)
    ends = (grid.low - zero, grid.high - zero)
    hull = Range(min(0.0, ends[0] * scale), max(0.0, ends[1] * scale))
    near: tuple[FixedRange, str] | None = None
    for limits in _candidates(scale, ends, bits) if bits == grid.bits else ():
        made, middle, qmin, qmax = intmath.scale_zero_point(limits, bits, dtype, how)
        here = (qmin - middle, qmax - middle)
        if float(made) != scale or here[0] > ends[0] + 1 or here[1] < ends[1] - 1:
            continue
        if here == ends:
            return FixedRange(limits, bits, GIVEN, yields=True), ""
        change = f"integers from {here[0]} to {here[1]} about the zero point, where the file has {ends[0]} to {ends[1]}"
        near = near or (FixedRange(limits, bits, GIVEN, yields=True), change)
    return near or (FixedRange(hull, bits, GIVEN, yields=True), _why(grid, how, bits))


def _hull(grid: ImportedGrid) -> Range:
    low, high = ((end - grid.zero) * grid.scale.astype(np.float64) for end in (grid.low, grid.high))
    return Range(min(0.0, float(np.min(low))), max(0.0, float(np.max(high))))


def _candidates(scale: float, ends: tuple[int, int], bits: int) -> Iterable[Range]:
    """Ranges that may have this scale: what the integers cover, and symmetric ones by either divisor."""
    half = 1 << (bits - 1)
    yield Range(min(0.0, ends[0] * scale), max(0.0, ends[1] * scale))
    if ends[0] == 0:
        yield Range(0.0, 2 * half * scale)
    yield Range(-half * scale, half * scale)
    yield Range(-(half - 1) * scale, (half - 1) * scale)


def _why(grid: ImportedGrid, how: TensorSchema, bits: int) -> str:
    """Why a schema cannot have a grid, the first of what is in its way."""
    if bits < grid.bits:
        return f"{grid.bits} bits, and it has {bits} here"
    middle = 1 << (grid.bits - 1)
    if how.symmetry is not Symmetry.ASYMMETRIC and int(grid.zero) not in (0, middle):
        return f"zero point {int(grid.zero)}, and activations are {how.symmetry} here"
    if how.power_of_two is not PowerOfTwo.NONE and not _power(grid.scale):
        return f"scale {float(grid.scale):.6g}, and scales are powers of two here"
    return f"integers from {grid.low} to {grid.high} with zero point {int(grid.zero)}, which {bits} bits have not here"


def _power(scale: NDArray[np.float32]) -> bool:
    return bool(np.all(np.frexp(scale)[0] == 0.5))


def fitted_weight(
    weight: GivenWeight, channel_axis: int, dtype: DType, *, spec: HardwareSpec, schema: Schema
) -> FittedWeight:
    """Return the thresholds of a weight that give its scales and integers, as near as the device can."""
    grid, most = weight.grid, spec.weights.bits_in(dtype)
    offered = spec.weights.granularity
    if weight.block is not None:
        return FittedWeight(None, None, most, f"a scale for every {weight.block} integers, which no device here has")
    axis = channel_axis if not grid.single or Granularity.PER_TENSOR not in offered else None
    if not grid.single and grid.axis is not None and grid.axis % weight.values.ndim != channel_axis:
        return FittedWeight(None, None, most, f"scales along axis {grid.axis}, and output channels lie along axis "
                            f"{channel_axis}")  # fmt: skip
    if axis is not None and Granularity.PER_CHANNEL not in offered:
        return FittedWeight(None, None, most, "scales per channel, and weights have one scale here")
    return _fitted(weight, axis, dtype, most=most, how=schema.weights)


def _fitted(weight: GivenWeight, axis: int | None, dtype: DType, *, most: int, how: TensorSchema) -> FittedWeight:
    grid = weight.grid
    count = weight.values.shape[axis] if axis is not None else 1
    scale: NDArray[np.float64] = np.broadcast_to(grid.scale.astype(np.float64), count)
    zero: NDArray[np.int64] = np.broadcast_to(grid.zero, count)
    shaped = zero.reshape(()) if axis is None else along(zero, axis, weight.values.ndim)
    centred = weight.values.astype(np.int64) - shaped
    others = None if axis is None else tuple(n for n in range(centred.ndim) if n != axis)
    least = np.atleast_1d(centred.min(axis=others, initial=0))  # of each channel, whose zero point is its own
    greatest = np.atleast_1d(centred.max(axis=others, initial=0))
    worst = ""
    for bits in range(min(grid.bits, most), most + 1):
        thresholds = given_thresholds(scale, zero, grid, bits=bits, how=how)
        low, high = (-thresholds, thresholds) if thresholds.ndim == 1 else thresholds.T
        made, middle, qmin, qmax = intmath.scales_zero_points(low, high, bits, dtype, schema=how)
        if not np.array_equal(made.astype(np.float64), scale):
            break
        below, above = np.atleast_1d(qmin - middle), np.atleast_1d(qmax - middle)
        if thresholds.ndim == 1 and axis is None:
            thresholds = thresholds.reshape(())
        beyond = np.maximum(below - least, greatest - above)
        if np.all(beyond <= 0):
            return FittedWeight(thresholds, axis, bits)
        far = int(np.argmax(beyond))
        worst = (
            f"integers from {least[far]} to {greatest[far]} about the zero point, and it holds {below[far]} to "
            f"{above[far]} here"
        )
        if bits == most and np.all(beyond <= 1):
            return FittedWeight(thresholds, axis, bits, worst)  # the outermost integer alone is bounded
    if how.power_of_two is not PowerOfTwo.NONE and not _power(grid.scale):
        return FittedWeight(None, axis, most, "scales that are no powers of two")
    centre = 0 if grid.dtype.signed else 1 << (grid.bits - 1)
    if how.symmetry is not Symmetry.ASYMMETRIC and np.any(grid.zero != centre):
        return FittedWeight(None, axis, most, f"zero points, and weights are {how.symmetry} here")
    return FittedWeight(None, axis, most, worst or f"{grid.bits} bits, and it has {most} here")


def given_thresholds(
    scale: NDArray[np.float64], zero: NDArray[np.int64], grid: ImportedGrid, *, bits: int, how: TensorSchema
) -> NDArray[np.float64]:
    """Return what a strategy has to say of a weight so that exactly these scales follow.

    s = T / steps in float64 gives s back, since T = s · steps has no rounding: 24 bits times at most 16.

    `scale`: the scales, `[C]`. `zero`: the zero points, `[C]`. `grid`: the grid, for the smallest integer of its type.
    Returns thresholds `[C]`, or ranges `[C, 2]` under an asymmetric schema.
    """
    if how.symmetry is Symmetry.ASYMMETRIC:
        least = grid.dtype.qmin if grid.bits == grid.dtype.bits else (-(1 << (bits - 1)) if grid.low < 0 else 0)
        steps = (1 << bits) - (how.denominator is Denominator.MAX)
        return np.stack([(least - zero) * scale, (least + steps - zero) * scale], axis=1)
    return scale * intmath.symmetric_steps(bits, intmath.signed_storage(bits), how)
