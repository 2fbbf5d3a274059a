"""Choose clip ranges of weights from their values: maximum magnitude, minimum squared error, or an estimator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from quantpipe.calibrate.collector import StatsCollector
from quantpipe.calibrate.estimators import Estimator
from quantpipe.errors import ConfigError, ModelError
from quantpipe.intmath import nearest_step, scales_zero_points, signed_storage, symmetric_steps
from quantpipe.types import Denominator, DType, PowerOfTwo, Range, Symmetry, TensorSchema, TensorStats

SHRINK = np.linspace(0.2, 1.0, 41)
"""Candidate clip ranges as shares of the full one; two bits want about a third of it, eight bits nearly all."""

EXPONENTS = 2.0 ** np.arange(-4, 1)
"""The same for power-of-two scales: the full range's exponent and the four below it."""

BLOCK = 32768
"""Values worked on at once, so that the three float32 buffers stay in the cache."""


def weight_ranges(
    weight: NDArray[Any],
    axis: int | None,
    bits: int,
    schema: TensorSchema,
    *,
    method: Literal["max_range", "mse"] = "mse",
) -> list[Range]:
    """Return one clip range per channel along `axis` (`[C]` of them), or one for the tensor (`axis=None`).

    max_range: T = max|w| (symmetric), or [min(0, w), max(0, w)] (asymmetric). mse: the candidate with the minimum Σ (w
    - s·(clip(round(w/s) + z) - z))² over the channel's values, with s and z from `scale_zero_point`. Candidates are 41
    shares 0.2..1 of the full range, or 5 successive exponents when scales are powers of two.

    With `denominator: range` the full range is max|w|·R/(R-1), at which max|w| is itself an integer. A channel of zeros
    gets a range whose scale is 1. Ranges are in real units. Raises ModelError for non-finite weights.
    """
    if method not in ("max_range", "mse"):
        raise ConfigError(f"weights.method {method!r} is unknown; legal: 'max_range', 'mse'")
    values = np.asarray(weight, dtype=np.float32)
    rows = values.reshape(1, -1) if axis is None else np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)
    rows = np.ascontiguousarray(rows)
    low = rows.min(axis=1, initial=0.0).astype(np.float64)
    high = rows.max(axis=1, initial=0.0).astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ModelError("weights hold NaN or infinite values; legal: finite weights")
    dtype = signed_storage(bits)
    # symmetric_with_uint8 is for weights what symmetric is, unless no weight at all is negative.
    mirrored = schema.symmetry is Symmetry.SYMMETRIC or (
        schema.symmetry is Symmetry.SYMMETRIC_UNSIGNED and bool((low < 0.0).any())
    )
    if mirrored:
        high = np.maximum(-low, high)
        low = -high
    if method == "mse":
        low, high = _least_error(rows, low, high, bits, dtype=dtype, schema=schema)
    if mirrored:
        high = np.where(high == 0.0, float(symmetric_steps(bits, dtype, schema)), high)
        low = -high
    return [Range(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]


def channel_stats(weight: NDArray[Any], axis: int | None) -> list[TensorStats]:
    """Return the statistics of each channel along `axis`, or of the whole tensor (`axis=None`), as of one batch."""
    values = np.asarray(weight, dtype=np.float32)
    parts = [values] if axis is None else list(np.moveaxis(values, axis, 0))
    collectors = [StatsCollector(str(c)) for c in range(len(parts))]
    for collector, part in zip(collectors, parts, strict=True):
        collector.update(np.atleast_1d(part), 0)
    return [collector.finish() for collector in collectors]


def estimated_ranges(
    channels: Sequence[TensorStats], bits: int, schema: TensorSchema, estimator: Estimator
) -> list[Range]:
    """Return the estimator's range of each channel, in real units; a channel of zeros gets a scale of 1.

    Raises ModelError for non-finite weights.
    """
    if any(channel.nonfinite for channel in channels):
        raise ModelError("weights hold NaN or infinite values; legal: finite weights")
    ones = float(symmetric_steps(bits, signed_storage(bits), schema))
    zeros = Range(-ones, ones) if schema.symmetry is not Symmetry.ASYMMETRIC else Range(0.0, 0.0)
    return [estimator(c, bits, schema) if c.absolute_maximum > 0.0 else zeros for c in channels]


def _least_error(
    rows: NDArray[np.float32],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    bits: int,
    *,
    dtype: DType,
    schema: TensorSchema,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the best candidate's (low, high), `[C]` each; ties go to the wider range."""
    shares = SHRINK if schema.power_of_two is PowerOfTwo.NONE else EXPONENTS
    if schema.power_of_two is PowerOfTwo.NONE and schema.denominator is Denominator.RANGE:
        steps = symmetric_steps(bits, dtype, schema)
        shares = shares * (steps / (steps - 1))
    best = np.full(len(rows), np.inf)
    chosen = np.ones(len(rows))
    for share in shares[::-1]:
        scale, zero, qmin, qmax = scales_zero_points(low * share, high * share, bits, dtype, schema=schema)
        error = _squared_errors(rows, scale, qmin - zero, qmax - zero)
        better = error < best
        best[better], chosen[better] = error[better], share
    return low * chosen, high * chosen


def _squared_errors(
    rows: NDArray[np.float32], scale: NDArray[np.float32], least: NDArray[np.int64], greatest: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return the sum over each row of (w - s·clip(round(w/s), `least`, `greatest`))²; `[C]`, by blocks in float32."""
    s = scale[:, None]
    below, above = least.astype(np.float32)[:, None], greatest.astype(np.float32)[:, None]
    errors = np.zeros(len(rows))
    steps, whole = np.empty(BLOCK, dtype=np.float32), np.empty(BLOCK, dtype=np.float32)
    for channels, columns in _blocks(*rows.shape):
        block = rows[channels, columns]
        t, q = steps[: block.size].reshape(block.shape), whole[: block.size].reshape(block.shape)
        np.divide(block, s[channels], out=t)
        nearest_step(t, below[channels], above[channels], out=q)
        np.subtract(t, q, out=t)
        errors[channels] += np.einsum("ij,ij->i", t, t)
    return errors * scale.astype(np.float64) ** 2


def _blocks(rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of a matrix with at most BLOCK values: whole rows where they fit, else parts of one."""
    tall = max(1, BLOCK // max(columns, 1))
    for i in range(0, rows, tall):
        for j in range(0, columns, BLOCK):
            yield slice(i, i + tall), slice(j, j + BLOCK)
