"""Weights whose output channels are divided into blocks: multipliers, zero points and integers, from the values.

Inside, a weight is `[C, I, T]`: output channels, input channels, taps. Numbers of blocks are `[C, B]` with
B = ceil(I / size).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from quantpipe import intmath
from quantpipe.arrays import Floats
from quantpipe.graph.external_weights import row_blocks
from quantpipe.types import BlockGrid, Blocks, DType, PowerOfTwo, Symmetry, TensorSchema, WeightTensor

IN_CACHE = 1 << 16
"""Elements of a weight whose blocks are searched at a time."""
FITS = 2
"""Fits of a float scale to the codes: further ones change little."""

SHARES = np.linspace(1.0, 0.4, 16)
"""Shares of the multiplier that a block's own range needs, the widest first: ties go to it."""


def rows_of(weight: NDArray[Any], channel_axis: int) -> NDArray[Any]:
    """Return a weight `[..]` of at least two axes, of which the first two are channels, as `[C, I, T]`."""
    turned = np.moveaxis(weight, channel_axis, 0)
    return turned.reshape(turned.shape[0], turned.shape[1], -1)


def as_weight(rows: NDArray[Any], shape: tuple[int, ...], channel_axis: int) -> NDArray[Any]:
    """Return `[C, I, T]` in a weight's own shape, contiguous: the inverse of `rows_of`."""
    turned = (shape[channel_axis], shape[1 - channel_axis], *shape[2:])
    return np.ascontiguousarray(np.moveaxis(rows.reshape(turned), 0, channel_axis))


def spread(numbers: NDArray[Any], size: int, inputs: int) -> NDArray[Any]:
    """Return numbers of blocks `[C, B]` for every input channel, `[C, I, 1]`."""
    return np.repeat(numbers, size, axis=1)[:, :inputs, np.newaxis]


def greatest_multiplier(blocks: Blocks, bits: int, widest: int, schema: TensorSchema) -> int:
    """Return the largest multiplier with which every product by a code less its zero point fits a type."""
    furthest = (1 << bits) - 1 if schema.symmetry is Symmetry.ASYMMETRIC else 1 << (bits - 1)
    return max(1, min((1 << blocks.multiplier_bits) - 1, widest // furthest))


def in_blocks(
    rows: NDArray[np.float32],
    ends: tuple[Floats, Floats],
    bits: int,
    *,
    widest: int,
    blocks: Blocks,
    schema: TensorSchema,
) -> tuple[NDArray[np.int64], NDArray[np.float32], BlockGrid]:
    """Return the integers of a weight in blocks with integer multipliers: w = s_c · m_b · (code - z_b).

    `rows`: the real weights, `[C, I, T]`. `ends`: the minimum and maximum real value of each channel, `[C]` or `[1]`.
    Returns the integers m_b · (code - z_b) `[C, I, T]`, the scales `[C]` or `[1]`, and what the blocks have.
    """
    most = greatest_multiplier(blocks, bits, widest, schema)
    least, greatest = (np.asarray(e, np.float64)[:, np.newaxis] for e in ends)
    code = intmath.signed_storage(bits)
    scale, _, least_code, most_code = intmath.scales_zero_points(
        least[:, 0] / most, greatest[:, 0] / most, bits, code, schema=schema
    )
    count = -(-rows.shape[1] // blocks.size)
    none = np.zeros((len(rows), count), np.int64)
    grid = BlockGrid(blocks.size, none, none, most, least_code, most_code)
    grid = fitted(np.clip(rows, least[..., np.newaxis], greatest[..., np.newaxis]), scale, grid, schema=schema)
    return integers(rows, scale, grid), scale, grid


def fitted(
    rows: NDArray[Any],
    scale: NDArray[np.float32],
    grid: BlockGrid,
    *,
    schema: TensorSchema,
    importance: Floats | None = None,
) -> BlockGrid:
    """Return the multiplier and zero point of each block, of smallest squared error at given scales of channels.

    The multiplier is the best of some shares of what a block's own range needs.

    `rows`: the real weights, `[C, I, T]`. `scale`: the scales, `[C]` or `[1]`. `importance`: what the square of an
    error counts, `[1 or C, I, T]`; None: all the same.
    """
    lanes, counts = (None if v is None else _lanes(v, grid.size) for v in (rows, importance))
    assert lanes is not None  # noqa: S101  (narrows the type)
    low, high = _ranges(lanes)
    affine = schema.symmetry is Symmetry.ASYMMETRIC
    needed = (high - low) / (grid.high - grid.low) if affine else np.maximum(-low, high) / grid.high
    step = np.broadcast_to(scale.astype(np.float64)[:, np.newaxis], needed.shape)
    full = np.maximum(needed / step, 1.0)
    best = np.full(needed.shape, np.inf)
    multiplier, zero = np.ones(needed.shape, np.int64), np.zeros(needed.shape, np.int64)
    for share in SHARES:
        tried = np.clip(np.ceil(full * share - 1e-6), 1, grid.most)
        at = np.zeros(needed.shape)
        if affine:
            at = intmath.nearest_step(grid.low - low / (step * tried), grid.low, grid.high)
        error = _errors(lanes, step * tried, at, grid, importance=counts)
        better = error < best
        best[better] = error[better]
        multiplier[better], zero[better] = tried[better].astype(np.int64), at[better].astype(np.int64)
    return replace(grid, multiplier=multiplier, zero_point=zero)


def with_scales(
    rows: NDArray[Any],
    ends: tuple[Floats, Floats],
    bits: int,
    dtype: DType,
    *,
    size: int,
    schema: TensorSchema,
    importance: Floats | None = None,
) -> tuple[NDArray[np.float32], BlockGrid]:
    """Return a float scale and a zero point of each block, of small squared error: w = s_cb · (code - z_cb).

    The range is the best of some shares of the block's own. Then the scale is fitted to the codes by least squares,
    `FITS` times, as the k-quants of llama.cpp are, and kept where the error falls.

    `rows`: the real weights, `[C, I, T]`. `ends`: the minimum and maximum real value of each channel, `[C]` or `[1]`.
    `importance`: what the square of an error counts, `[1 or C, I, T]`; None: all the same. Returns the scales `[C, B]`,
    and the grid with the zero points. Some channels are worked on at a time.
    """
    made = [
        _scales_of(
            rows[part],
            (_channels(ends[0], part), _channels(ends[1], part)),
            bits,
            dtype,
            size=size,
            schema=schema,
            importance=None if importance is None else _channels(importance, part),
        )
        for part in row_blocks(rows, IN_CACHE)
    ]
    zero = np.concatenate([grid.zero_point for _, grid in made])
    grid = replace(made[0][1], multiplier=np.ones(zero.shape, np.int64), zero_point=zero)
    return np.concatenate([scale for scale, _ in made]), grid


def _channels(numbers: NDArray[Any], part: slice) -> NDArray[Any]:
    """Return the numbers of some channels, `[C, ...]`, or the one that all have, `[1, ...]`."""
    return numbers if len(numbers) == 1 else numbers[part]


def _scales_of(
    rows: NDArray[Any],
    ends: tuple[Floats, Floats],
    bits: int,
    dtype: DType,
    *,
    size: int,
    schema: TensorSchema,
    importance: Floats | None,
) -> tuple[NDArray[np.float32], BlockGrid]:
    """Return the scales and the grid of channels that are worked on together."""
    lanes, counts = _lanes(rows, size), None if importance is None else _lanes(importance, size)
    low, high = _ranges(lanes)
    least, greatest = (np.asarray(e, np.float64)[:, np.newaxis] for e in ends)
    low, high = np.maximum(low, least), np.minimum(high, greatest)
    if schema.symmetry is not Symmetry.ASYMMETRIC:
        high = np.maximum(-low, high)
        low = -high
    best = np.full(low.shape, np.inf)
    scale, zero = np.ones(low.shape, np.float32), np.zeros(low.shape, np.int64)
    grid = BlockGrid(size, np.ones(low.shape, np.int64), zero, 1, 0, 0)
    for share in SHARES:
        lows, highs = (v.reshape(-1) * share for v in (low, high))
        tried, at, qmin, qmax = intmath.scales_zero_points(lows, highs, bits, dtype, schema=schema)
        tried, at = tried.reshape(low.shape), at.reshape(low.shape)
        grid = replace(grid, low=qmin, high=qmax)
        error = _errors(lanes, tried, at, grid, importance=counts)
        better = error < best
        best[better], scale[better], zero[better] = error[better], tried[better], at[better]
    grid = replace(grid, zero_point=zero)
    for _ in range(FITS if schema.power_of_two is PowerOfTwo.NONE else 0):
        tried = _least_squares(lanes, scale, grid, importance=counts)
        error = _errors(lanes, tried, zero, grid, importance=counts)
        better = error < best
        best[better], scale[better] = error[better], tried[better]
    return scale, grid


def steps_of(scale: NDArray[np.float32], grid: BlockGrid, inputs: int) -> Floats:
    """Return what one step of a code is worth in real units at each input channel, `[C, I, 1]`.

    `scale`: the scales, `[C]` or `[1]` of channels, or `[C, B]` of blocks. Returns the steps, float64.
    """
    own = scale.astype(np.float64) if scale.ndim == 2 else scale.astype(np.float64)[:, np.newaxis]
    return spread(own * grid.multiplier, grid.size, inputs)


def integers(
    rows: NDArray[Any], scale: NDArray[np.float32], grid: BlockGrid, kind: DTypeLike = np.int64
) -> NDArray[Any]:
    """Return what a weight in blocks is held in, `[C, I, T]`, of real weights rounded to the nearest code.

    `rows`: the real weights, `[C, I, T]`. `scale`: the scales, `[C]` or `[1]` of channels, or `[C, B]` of blocks.
    Returns m_b · (code - z_b), which kernels multiply by, or the code where blocks have float scales; of type `kind`.
    """
    inputs, found = rows.shape[1], np.empty(rows.shape, kind)
    for part in row_blocks(rows):
        own = replace(grid, zero_point=grid.zero_point[part], multiplier=grid.multiplier[part])
        zero, multiplier = (spread(v, grid.size, inputs) for v in (own.zero_point, own.multiplier))
        steps = rows[part] / steps_of(_channels(scale, part), own, inputs)
        nearest = intmath.nearest_step(steps, grid.low - zero, grid.high - zero).astype(np.int64)
        found[part] = nearest + zero if scale.ndim == 2 else nearest * multiplier
    return found


def real_weight(weight: WeightTensor, channel_axis: int) -> NDArray[np.float32]:
    """Return the real values of a weight whose blocks have float scales, as DequantizeLinear gives them."""
    grid, rows = weight.block, rows_of(weight.values, channel_axis)
    assert grid is not None  # noqa: S101  (asked by the caller; narrows the type)
    scale, zero = weight.scale, grid.zero_point.astype(np.float32)
    # Numbers of blocks lie in memory as the weight does: other orders take several times as long.
    if channel_axis:
        scale, zero = (np.repeat(v.T.copy(), grid.size, axis=0)[: rows.shape[1]].T[..., None] for v in (scale, zero))
    else:
        scale, zero = (spread(v, grid.size, rows.shape[1]) for v in (scale, zero))
    real = rows.astype(np.float32)  # codes and zero points of few bits are exact
    real -= zero
    real *= scale
    return as_weight(real, weight.values.shape, channel_axis)


def codes(values: NDArray[Any], grid: BlockGrid) -> NDArray[np.int64]:
    """Return the codes that the integers `[C, I, T]` of a weight in blocks are made of, int64."""
    inputs = values.shape[1]
    multiplier, zero = (spread(v, grid.size, inputs) for v in (grid.multiplier, grid.zero_point))
    return np.asarray(values.astype(np.int64) // multiplier + zero)


def _lanes(rows: NDArray[Any], size: int) -> NDArray[np.float32]:
    """Return `[C, I, T]` as `[size · T, C, B]`, zeros after the last input channel.

    Blocks lie side by side then, so that what is done to all of them runs along memory.
    """
    channels, inputs, taps = rows.shape
    count = -(-inputs // size)
    whole = np.zeros((channels, count * size, taps), np.float32)
    whole[:, :inputs] = rows
    blocks = whole.reshape(channels, count, size * taps)
    return np.ascontiguousarray(blocks.transpose(2, 0, 1))


def _ranges(lanes: NDArray[np.float32]) -> tuple[Floats, Floats]:
    """The minimum and maximum value of each block, `[C, B]` each, zero within."""
    low, high = np.minimum(lanes.min(axis=0), 0.0), np.maximum(lanes.max(axis=0), 0.0)
    return low.astype(np.float64), high.astype(np.float64)


def _least_squares(
    lanes: NDArray[np.float32], scale: NDArray[np.float32], grid: BlockGrid, *, importance: NDArray[np.float32] | None
) -> NDArray[np.float32]:
    """The scales `[C, B]` of smallest squared error for the codes that other scales give."""
    zero = grid.zero_point.astype(np.float32)
    steps = intmath.nearest_step(lanes / scale, grid.low - zero, grid.high - zero)
    weighed = steps if importance is None else steps * importance
    products, squares = ((weighed * other).sum(axis=0, dtype=np.float64) for other in (lanes, steps))
    fitted_scale = products / np.where(squares > 0, squares, 1.0)
    return np.where(fitted_scale > intmath.SMALLEST_SCALE, fitted_scale, scale).astype(np.float32)


def _errors(
    lanes: NDArray[np.float32],
    step: NDArray[Any],
    zero: NDArray[Any],
    grid: BlockGrid,
    *,
    importance: NDArray[np.float32] | None,
) -> Floats:
    """Sum over each block of (w - s·(code - z))², `[C, B]`."""
    s, z = step.astype(np.float32, copy=False), zero.astype(np.float32)
    steps = lanes / s
    lost = np.subtract(steps, intmath.nearest_step(steps, grid.low - z, grid.high - z), out=steps)
    lost *= s
    squares = np.square(lost, out=lost)
    if importance is not None:
        squares *= importance
    return np.asarray(squares.sum(axis=0, dtype=np.float64))
