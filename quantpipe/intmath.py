"""Integer arithmetic of quantization: how scales, codes and sums are rounded, for the planner and later stages.

It takes real ranges and gives scales and zero points; it takes real or accumulator arrays and gives the integers that
the hardware would hold. Everything is vectorized NumPy. Symbols: `r` real, `q` integer, `s` scale (real units per
integer step), `z` zero point, `b` bits (sign bit included), `T` threshold (real units).
"""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantpipe.arrays import Ints, along
from quantpipe.errors import DataError, HardwareError
from quantpipe.types import MULTIPLIER_BITS, Denominator, DType, PowerOfTwo, Range, Rounding, Symmetry, TensorSchema

SMALLEST_SCALE = float(np.finfo(np.float32).tiny)
"""Least normal float32: a smaller scale would be flushed to zero by some devices."""
LARGEST_SCALE = float(np.finfo(np.float32).max)


def round_real(x: ArrayLike, mode: Rounding = Rounding.HALF_EVEN) -> NDArray[np.float64]:
    """Round float64 values to integers (kept in float64), any shape; infinities and NaN pass through.

    half_even: IEEE 754 default. half_up: ties towards +inf. half_away: ties away from zero. floor: towards -inf.
    """
    real = np.asarray(x, dtype=np.float64)
    mode = Rounding(mode)
    if mode is Rounding.HALF_EVEN:
        return np.asarray(np.rint(real))
    if mode is Rounding.FLOOR:
        return np.asarray(np.floor(real))
    if mode is Rounding.HALF_AWAY:
        return np.asarray(np.copysign(_half_up(np.abs(real)), real))
    return _half_up(real)


def _half_up(real: NDArray[np.float64]) -> NDArray[np.float64]:
    # Not floor(x + 0.5): that sum rounds 0.49999999999999994 up to 1.
    with np.errstate(invalid="ignore"):
        below = np.floor(real)
        return np.asarray(below + (real - below >= 0.5))


def saturate(x: ArrayLike, dtype: DType) -> NDArray[Any]:
    """Return integers of any shape, clamped into `dtype` and stored in it (4-bit types in 8-bit arrays)."""
    return np.clip(_as_int64(x), dtype.qmin, dtype.qmax).astype(dtype.numpy)


def wrap(x: ArrayLike, dtype: DType) -> NDArray[Any]:
    """Return integers of any shape, reduced to the low bits of `dtype`: x - 2^b·floor((x + 2^(b-1)) / 2^b)."""
    if dtype.bits == 64:
        return _as_int64(x)  # every integer of the arithmetic here fits
    half = 1 << (dtype.bits - 1) if dtype.signed else 0
    mask = (1 << dtype.bits) - 1
    return (((_as_int64(x) + half) & mask) - half).astype(dtype.numpy)


def _as_int64(x: ArrayLike) -> Ints:
    array = np.asarray(x)
    if array.dtype.kind not in "iub":
        raise TypeError(f"integers expected, got an array of {array.dtype}")
    return array.astype(np.int64, copy=False)


# --- from a range to a scale and a zero point -----------------------------------------------------------------------


def scale_zero_point(range_: Range, bits: int, dtype: DType, schema: TensorSchema) -> tuple[np.float32, int, int, int]:
    """Return (scale, zero_point, qmin, qmax) that represent a real range with `bits` bits in the storage `dtype`.

    symmetric, signed: R = 2^(b-1), s = T/R (`denominator: range`) or T/(R-1) (`max`), z = 0, q in [-(R-1), R-1]
    (`narrow`) or [-R, R-1]. symmetric, unsigned: the same steps moved up by z = 2^(b-1). So a device that stores
    unsigned integers represents the same real values. z = 0 and R = 2^b for a range that starts at 0.
    asymmetric: s = (high - low)/(2^b - 1) (`max`) or /2^b (`range`), z = qmin - low/s, rounded and clamped, so that
    real 0 is an integer. symmetric_with_uint8: asymmetric when low >= 0 (z = qmin then), otherwise symmetric. A
    power-of-two schema then makes s = 2^k within float32's normal exponents: k = ceil(log2 s) (`up`, `search`) or the
    nearest integer (`nearest`). (0, 0) gives s = 1. The scale is computed in float64, stored in float32, and never
    below 2^-126.

    Raises HardwareError when the bits do not fit the storage, DataError when the range is not finite or its scale
    exceeds float32. Source: the RFC (R, T/R), Glow (schemas), TFLite (T/(R-1)).
    """
    scale, zero, qmin, qmax = scales_zero_points([range_.low], [range_.high], bits, dtype, schema=schema)
    return scale[0], int(zero[0]), qmin, qmax


def scales_zero_points(
    low: ArrayLike, high: ArrayLike, bits: int, dtype: DType, *, schema: TensorSchema
) -> tuple[NDArray[np.float32], Ints, int, int]:
    """Return `scale_zero_point` of `[C]` ranges at once: (scale `[C]`, zero_point `[C]`, qmin, qmax).

    The integer bounds are common to all; so symmetric_with_uint8 is asymmetric only when every `low` is >= 0.
    """
    lows = np.minimum(np.asarray(low, dtype=np.float64), 0.0)
    highs = np.maximum(np.asarray(high, dtype=np.float64), 0.0)
    if not (np.isfinite(lows).all() and np.isfinite(highs).all()):
        raise DataError(f"the range [{lows.min()}, {highs.max()}] is not finite: no scale represents it")
    positive = bool((lows >= 0.0).all())
    affine = schema.symmetry is Symmetry.ASYMMETRIC or (schema.symmetry is Symmetry.SYMMETRIC_UNSIGNED and positive)
    qmin, qmax = integer_bounds(bits, dtype, schema, positive=positive)
    empty = (lows == 0.0) & (highs == 0.0)
    if affine:
        steps = affine_steps(bits, schema)
        scale = _storable(highs / steps - lows / steps, empty, schema.power_of_two)
        # A range whose ends are far apart in size is anchored at its low end: qmin <-> low (ONNX, TFLite).
        zero = np.clip(round_real(qmin - lows / scale), qmin, qmax).astype(np.int64)
        return scale, zero, qmin, qmax
    steps = symmetric_steps(bits, dtype if positive else signed_storage(bits), schema)
    scale = _storable(np.maximum(-lows, highs) / steps, empty, schema.power_of_two)
    middle = 0 if dtype.signed or positive else 1 << (bits - 1)
    return scale, np.full(scale.shape, middle, dtype=np.int64), qmin, qmax


def affine_steps(bits: int, schema: TensorSchema) -> int:
    """Return the divisor of an asymmetric range: 2^b or 2^b - 1, by the schema's denominator."""
    return (1 << bits) - (schema.denominator is Denominator.MAX)


def symmetric_steps(bits: int, dtype: DType, schema: TensorSchema) -> int:
    """Return the divisor of a symmetric threshold: R = 2^(b - sign) or R - 1, by the schema's denominator."""
    return (1 << (bits - dtype.signed)) - (schema.denominator is Denominator.MAX)


def signed_storage(bits: int) -> DType:
    """Return the smallest signed storage type (8 bits up) that holds `bits` bits.

    Estimators try their candidates in it: unsigned storage has the same steps, moved by 2^(b-1).
    """
    return DType.INT8 if bits <= 8 else DType.INT16 if bits <= 16 else DType.INT32


def integer_bounds(bits: int, dtype: DType, schema: TensorSchema, *, positive: bool) -> tuple[int, int]:
    """Return (qmin, qmax) of `bits` bits inside the storage `dtype`.

    `positive`: the range to represent starts at 0. Raises HardwareError for float storage and bits that do not fit.
    """
    if dtype.is_float or not 2 <= bits <= dtype.bits:
        legal = "an integer type" if dtype.is_float else f"2 to {dtype.bits} bits"
        raise HardwareError(f"{bits} bits cannot be stored in {dtype.value}; legal: {legal}")
    half = 1 << (bits - 1)
    if schema.symmetry is Symmetry.ASYMMETRIC or (schema.symmetry is Symmetry.SYMMETRIC_UNSIGNED and positive):
        return (-half, half - 1) if dtype.signed else (0, 2 * half - 1)
    if dtype.signed:
        return (-(half - 1), half - 1) if schema.narrow else (-half, half - 1)
    return (1 if schema.narrow and not positive else 0), 2 * half - 1


def _storable(scale: NDArray[np.float64], empty: NDArray[np.bool_], power_of_two: PowerOfTwo) -> NDArray[np.float32]:
    """Return float64 scales as the stored float32: 1 for empty ranges, powers of two on request, never denormal."""
    if (scale > LARGEST_SCALE).any():
        raise DataError(f"a scale of {scale.max():.3g} does not fit float32; the tensor's values are too large")
    scale = np.where(empty, 1.0, np.maximum(scale, SMALLEST_SCALE))
    if power_of_two is not PowerOfTwo.NONE:
        mantissa, exponent = np.frexp(scale)  # scale = mantissa · 2^exponent, mantissa in [0.5, 1)
        smaller = mantissa < math.sqrt(0.5) if power_of_two is PowerOfTwo.NEAREST else mantissa == 0.5
        scale = np.ldexp(1.0, np.clip(exponent - smaller, -126, 127))
    return np.maximum(scale.astype(np.float32), np.float32(SMALLEST_SCALE))


# --- quantize, dequantize -------------------------------------------------------------------------------------------


def quantize(
    x: ArrayLike,
    scale: ArrayLike,
    zero_point: ArrayLike,
    *,
    qmin: int,
    qmax: int,
    dtype: DType,
    axis: int | None = None,
) -> NDArray[Any]:
    """Return the integers that ONNX QuantizeLinear gives: clip(rint(f32(x) / f32(s)) + z, qmin, qmax).

    Ties are rounded to even. Infinities saturate.

    Args:
        x: float values of any shape.
        scale: real units per integer step, a scalar or `[C]` along `axis`.
        zero_point: the integer that represents 0, a scalar or `[C]` along `axis`.
        qmin: smallest integer of the result.
        qmax: largest integer of the result.
        dtype: the storage type.
        axis: the axis of channels; None where the scale is a scalar.

    Returns:
        The integers, in the shape of `x` and the NumPy type of `dtype`.

    Raises:
        DataError: where `x` holds NaN.
    """
    real = np.asarray(x, dtype=np.float32)
    with np.errstate(over="ignore", under="ignore"):
        steps = np.rint(real / along(np.asarray(scale, dtype=np.float32), axis, real.ndim))
    if np.isnan(steps).any():
        raise DataError("NaN has no integer; the tensor to quantize holds NaN values")
    # float64 from here: zero points and 32-bit bounds are not exact in float32.
    shifted = steps.astype(np.float64) + along(zero_point, axis, real.ndim)
    return np.asarray(np.clip(shifted, qmin, qmax)).astype(dtype.numpy)


def nearest_step(
    steps: NDArray[Any], least: ArrayLike, greatest: ArrayLike, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return clip(rint(x), `least`, `greatest`), ties to even, in the array's own float type.

    `steps`: r/s, any shape; the bounds broadcast to it and do not include the zero point. `out` saves an allocation.
    """
    whole = np.rint(steps, out=out)
    if np.ndim(least) or np.ndim(greatest):  # np.clip takes ten times as long with arrays as bounds
        return np.asarray(np.minimum(np.maximum(whole, least, out=whole), greatest, out=whole))
    return np.asarray(np.clip(whole, least, greatest, out=whole))  # one pass over the array: half the time of two


def dequantize(
    q: ArrayLike, scale: ArrayLike, zero_point: ArrayLike = 0, axis: int | None = None
) -> NDArray[np.float32]:
    """Return the float values of ONNX DequantizeLinear: f32(q - z) · f32(s).

    Args:
        q: integers of any shape.
        scale: real units per integer step, a scalar or `[C]` along `axis`.
        zero_point: the integer that represents 0, a scalar or `[C]` along `axis`.
        axis: the axis of channels; None where the scale is a scalar.

    Returns:
        The real values, float32 in the shape of `q`.
    """
    integers = _as_int64(q)
    offset = integers - along(zero_point, axis, integers.ndim)
    return np.asarray(offset.astype(np.float32) * along(np.asarray(scale, dtype=np.float32), axis, integers.ndim))


# --- requantize: accumulator -> output integers ---------------------------------------------------------------------


def fused_multiply_add(x: ArrayLike, y: ArrayLike, z: ArrayLike) -> NDArray[np.float32]:
    """Return f32(x·y + z) with a single rounding, for float32 values of which x is a small integer.

    It may be at most 2^16. In float64 the product is exact, and so is the sum unless the magnitudes differ by more than
    2^29. Then the smaller one is beyond the float32 result's last bit anyway, up to ties that no stored integer can
    produce.
    """
    return np.asarray(
        np.asarray(x, np.float64) * np.asarray(y, np.float64) + np.asarray(z, np.float64), dtype=np.float32
    )


def requantize_float(
    acc: ArrayLike,
    multiplier: ArrayLike,
    zero_point: int,
    *,
    qmin: int,
    qmax: int,
    axis: int | None = None,
    rounding: Rounding = Rounding.HALF_EVEN,
) -> Ints:
    """Return clip(round(f32(acc) · f32(m)) + z, qmin, qmax), one float32 product (onnxruntime, TensorRT, FBGEMM).

    `acc`: integers, any shape; `multiplier`: s_x·s_w/s_y, a scalar or `[C]` along `axis`.
    """
    integers = _as_int64(acc)
    product = integers.astype(np.float32) * along(np.asarray(multiplier, dtype=np.float32), axis, integers.ndim)
    return np.clip(round_real(product, rounding) + zero_point, qmin, qmax).astype(np.int64)


def requantize_shift(
    acc: ArrayLike,
    shift: ArrayLike,
    zero_point: int,
    *,
    qmin: int,
    qmax: int,
    axis: int | None = None,
    rounding: Rounding = Rounding.HALF_UP,
) -> Ints:
    """Return clip(((acc + 2^(n-1)) >> n) + z, qmin, qmax), arithmetic, in int64 (VTA and other power-of-two devices).

    `shift`: n, a scalar or `[C]` along `axis`, -31..62; n = 0 keeps the accumulator, n < 0 shifts left by -n.
    `rounding` other than half_up replaces the added half by the mode's rule; floor is the bare shift.
    """
    integers = _as_int64(acc)
    n = along(_as_int64(shift), axis, integers.ndim)
    if (n > 62).any() or (n < -31).any():
        raise HardwareError(f"a shift of {n.min()}..{n.max()} bits is outside the 64-bit accumulator; legal: -31..62")
    right = np.maximum(n, 0)
    below = integers >> right
    half = (np.int64(1) << right) >> 1  # 0 where n = 0, and nothing remains there
    up = _rounds_up(below, integers - (below << right), half, Rounding(rounding))
    return np.asarray(np.clip(((below + up) << np.maximum(-n, 0)) + zero_point, qmin, qmax))


def _rounds_up(below: Ints, remainder: Ints, half: Ints, mode: Rounding) -> NDArray[np.bool_]:
    """Return whether floor + 1 is the rounded value, from the floor, the remainder (>= 0) and half the divisor."""
    if mode is Rounding.FLOOR:
        return np.zeros(below.shape, dtype=np.bool_)
    tie = (remainder == half) & (half > 0)
    if mode is Rounding.HALF_EVEN:
        tie &= (below & 1) == 1
    elif mode is Rounding.HALF_AWAY:
        tie &= below >= 0
    return np.asarray((remainder > half) | tie)


def requantize_fixed_point(
    acc: ArrayLike,
    multiplier: tuple[ArrayLike, ArrayLike],
    zero_point: int,
    *,
    qmin: int,
    qmax: int,
    rounding: Literal["double", "single", "single_away"] = "double",
    axis: int | None = None,
) -> Ints:
    """Return clip(round(acc · M · 2^(shift - 31)) + z, qmin, qmax), computed with integers only.

    (M, shift) comes from `quantize_multiplier`. double (gemmlowp, TFLite default, CMSIS-NN): saturating rounding
    doubling high multiplication, then a rounding division by 2^-shift, ties away from zero. A left shift (shift > 0)
    comes first and saturates at int32. single (TFLITE_SINGLE_ROUNDING): (acc · M + 2^(30 - shift)) >> (31 - shift) in
    int64, saturated to int32; single_away: the same with ties away from zero. `acc`: int32 values, any shape;
    `multiplier`: M and shift, scalars or `[C]` along `axis`; shift in -31..30.
    """
    integers = _as_int64(acc)
    m, exponent = (along(_as_int64(part), axis, integers.ndim) for part in multiplier)
    if (exponent > 30).any() or (exponent < -31).any():
        raise HardwareError(f"a fixed-point shift of {exponent.min()}..{exponent.max()} is illegal; legal: -31..30")
    if rounding == "single":
        scaled = (integers * m + (np.int64(1) << (30 - exponent))) >> (31 - exponent)
    elif rounding == "single_away":
        product = integers * m
        scaled = np.sign(product) * ((np.abs(product) + (np.int64(1) << (30 - exponent))) >> (31 - exponent))
    elif rounding == "double":
        shifted = _int32(integers << np.maximum(exponent, 0))
        scaled = divide_by_power(doubling_high_multiply(shifted, m), np.maximum(-exponent, 0))
    else:
        raise HardwareError(f"fixed-point rounding {rounding!r} is unknown; legal: 'double', 'single', 'single_away'")
    return np.clip(_int32(scaled) + zero_point, qmin, qmax)


def _int32(x: Ints) -> Ints:
    return np.clip(x, DType.INT32.qmin, DType.INT32.qmax)


def doubling_high_multiply(a: Ints, b: Ints) -> Ints:
    """Return round(2ab / 2^32) as gemmlowp's SaturatingRoundingDoublingHighMul does.

    Ties go up; only min·min saturates.
    """
    product = a * b
    nudged = product + np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    # C's division truncates towards zero, a shift floors.
    return _int32(np.where(nudged >= 0, nudged >> 31, -(-nudged >> 31)))


def divide_by_power(x: Ints, exponent: Ints) -> Ints:
    """Return round(x / 2^exponent), ties away from zero, as gemmlowp's RoundingDivideByPOT does."""
    below = x >> exponent
    half = (np.int64(1) << exponent) >> 1
    return below + _rounds_up(below, x - (below << exponent), half, Rounding.HALF_AWAY)


def quantize_multiplier(m: float) -> tuple[int, int]:
    """Return (M, shift) with m = M · 2^(shift - 31), M in [2^30, 2^31): TFLite's QuantizeMultiplier.

    0, and anything below 2^-32 (it moves no int32), gives (0, 0). Raises DataError unless 0 <= m < 2^30 is finite.
    """
    if not (math.isfinite(m) and 0.0 <= m < 2.0**30):
        raise DataError(f"{m} is no requantize multiplier; legal: 0 <= m < 2^30")
    fraction, shift = math.frexp(m)
    q31 = int(round_real(fraction * 2.0**31, Rounding.HALF_AWAY))
    if q31 == 1 << 31:
        q31, shift = q31 >> 1, shift + 1
    return (q31, shift) if shift >= -31 else (0, 0)


def narrow_multiplier(multiplier: ArrayLike, bits: int) -> Ints:
    """Return multipliers of 31 bits rounded to fewer, ties up; overflows become the largest one."""
    drop = MULTIPLIER_BITS - bits
    return np.asarray(np.minimum((_as_int64(multiplier) + ((1 << drop) >> 1)) >> drop, (1 << bits) - 1))


def quantize_multipliers(m: ArrayLike) -> tuple[Ints, Ints]:
    """Return `quantize_multiplier` of each element: (M, shift), int64 in the shape of `m`."""
    real = np.asarray(m, np.float64)
    pairs = np.asarray([quantize_multiplier(float(v)) for v in real.reshape(-1)], np.int64).reshape(-1, 2)
    return pairs[:, 0].reshape(real.shape), pairs[:, 1].reshape(real.shape)
