"""One layer: from moments and float weights to integer weights, a scale and a bias. Pure linear algebra in float64.

Shapes: weights `[G, O, K]`, scales `[G, O]` (equal where the tensor has one scale), moments per group `[G, K, K]`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from quantpipe import intmath
from quantpipe.recover.moments import Moments
from quantpipe.types import PowerOfTwo, Symmetry, TensorSchema

Floats = NDArray[np.float64]
BLOCK = 64


@dataclass(frozen=True)
class LayerOptions:
    """`propagate`: regress the float output on the quantized input. `rounding`: nearest | hessian. `ridge`,
    `damping`: of the mean diagonal of H, for the regression and for the rounding. `scale_search`: candidate shares of
    the range.

    A layer with fewer than `rows_per_input` sampled rows per input keeps its float weights as the target and is
    damped ten times as much: there the moments describe the samples, not the model.
    """

    propagate: bool = True
    rounding: str = "hessian"
    correct_bias: bool = True
    ridge: float = 0.05
    damping: float = 0.01
    rows_per_input: float = 2.0
    scale_search: bool = True


@dataclass(frozen=True, eq=False)
class Solved:
    """`integers` `[G, O, K]` as float64, `scale` `[G, O]` float32, `bias_shift` `[G, O]` to add to the float bias;
    errors are (ŵ - w)·H·(ŵ - w) summed over outputs, for nearest rounding of the float weights and for the result."""

    integers: Floats
    scale: NDArray[np.float32]
    bias_shift: Floats
    error_before: float
    error_after: float


def solve(
    weight: Floats,
    moments: Moments,
    start: NDArray[np.float32],
    floor: Floats,
    bits: int,
    bounds: tuple[ArrayLike, ArrayLike],
    schema: TensorSchema,
    per_channel: bool,
    options: LayerOptions,
) -> Solved:
    """`start`: the scale that the plan would use; `floor`: the least that the bias allows, `[G, O]`. `bounds`: least
    and greatest integer less the zero point (which stays as it is), scalars or `[G, O]`."""
    thin = moments.rows < options.rows_per_input * weight.shape[2]
    damping = options.damping * (10.0 if thin else 1.0)
    target = _target(weight, moments, options.ridge) if options.propagate and not thin else weight
    low, high = (np.broadcast_to(np.asarray(b, np.float64), start.shape) for b in bounds)
    found = _candidates(target, moments.hessian, start, bits, (low, high), schema, per_channel, options)
    scales = [_at_least(s, floor, schema) for s in found]
    factor = _factor(moments.hessian, damping) if options.rounding == "hessian" else None
    best: tuple[float, Floats, NDArray[np.float32]] | None = None
    for scale in scales:
        integers = _round(target, scale, (low, high), factor, moments.hessian)
        error = quadratic(integers * scale[..., None] - target, moments.hessian)
        if best is None or error < best[0]:
            best = (error, integers, scale)
    assert best is not None  # noqa: S101  (there is always at least one candidate)
    error, integers, scale = best
    real = integers * scale[..., None].astype(np.float64)
    shift = np.einsum("gok,gk->go", weight, moments.mean_float) - np.einsum("gok,gk->go", real, moments.mean_quantized)
    nearest = _round(weight, start, (low, high), None, moments.hessian) * start[..., None]
    return Solved(
        integers,
        scale,
        shift if options.correct_bias else np.zeros_like(shift),
        quadratic(nearest - weight, moments.hessian),
        error,
    )


def quadratic(difference: Floats, hessian: Floats) -> float:
    """Σ d·H·d over outputs and groups: the expected squared output error of a weight difference."""
    return float(np.einsum("gok,gok->", difference @ hessian, difference))


def _target(weight: Floats, moments: Moments, ridge: float) -> Floats:
    """W* = (W·C + λW)(H + λI)^-1: the weights that reproduce the float output from the quantized input."""
    amount = ridge * _mean_diagonal(moments.hessian)
    left = weight @ moments.cross + amount[:, None, None] * weight
    right = moments.hessian + amount[:, None, None] * np.eye(weight.shape[2])
    return np.asarray(np.linalg.solve(right, left.transpose(0, 2, 1)).transpose(0, 2, 1))


def _candidates(
    target: Floats,
    hessian: Floats,
    start: NDArray[np.float32],
    bits: int,
    bounds: tuple[Floats, Floats],
    schema: TensorSchema,
    per_channel: bool,
    options: LayerOptions,
) -> list[NDArray[np.float32]]:
    """Scales to try: powers of two around the full range, or the one that minimizes Σ H_kk (ŵ_k - w_k)²."""
    if not options.scale_search:
        return [start]
    if schema.symmetry is Symmetry.ASYMMETRIC:
        low, high = bounds
        full = _least_scale(target, bounds, start, per_channel)
    else:
        peak = np.abs(target).max(axis=2) if per_channel else np.full(start.shape, np.abs(target).max())
        levels = float(intmath.symmetric_steps(bits, intmath.signed_storage(bits), schema))
        full = np.where(peak > 0, peak / levels, start)
        high = np.full(start.shape, float((1 << (bits - 1)) - 1))
        low = -high
    if schema.power_of_two is not PowerOfTwo.NONE:
        exponent = np.ceil(np.log2(full))
        return [(2.0 ** (exponent - step)).astype(np.float32) for step in range(3)]
    diagonal = np.maximum(np.einsum("gkk->gk", hessian), 0.0)[:, None, :]
    best = np.full(full.shape, np.inf)
    chosen = full.copy()
    for share in np.linspace(1.0, 0.35, 28):
        scale = full * share
        steps = intmath.nearest_step(target / scale[..., None], low[..., None], high[..., None])
        error = np.sum(diagonal * (steps * scale[..., None] - target) ** 2, axis=2)
        if not per_channel:
            error = np.full(error.shape, error.sum())
        better = error < best
        best, chosen = np.where(better, error, best), np.where(better, scale, chosen)
    return [chosen.astype(np.float32)]


def _least_scale(
    target: Floats, bounds: tuple[Floats, Floats], start: NDArray[np.float32], per_channel: bool
) -> Floats:
    """The least scale `[G, O]` at which the integers low..high hold a whole target; `start` where nothing needs one."""
    needed = np.zeros(start.shape)
    for end, steps in ((target.min(axis=2), bounds[0]), (target.max(axis=2), bounds[1])):
        needed = np.maximum(needed, np.divide(end, steps, out=np.zeros_like(needed), where=steps != 0))
    full = np.where(needed > 0, needed, start)
    return full if per_channel else np.full(start.shape, full.max())


def _at_least(scale: NDArray[np.float32], floor: Floats, schema: TensorSchema) -> NDArray[np.float32]:
    """Scales raised to the floor, to a power of two above it where the schema wants powers of two."""
    if schema.power_of_two is not PowerOfTwo.NONE:
        floor = 2.0 ** np.ceil(np.log2(np.maximum(floor, float(np.finfo(np.float32).tiny))))
    return np.maximum(scale, floor).astype(np.float32)


def _factor(hessian: Floats, damping: float) -> tuple[NDArray[np.int64], Floats]:
    """(column order by falling H_kk, upper Cholesky factor of (H + δI)^-1 in that order), per group."""
    order = np.argsort(-np.einsum("gkk->gk", hessian), axis=1, kind="stable")
    groups = np.arange(len(hessian))[:, None, None]
    damped = hessian + (damping * _mean_diagonal(hessian))[:, None, None] * np.eye(hessian.shape[1])
    sorted_ = damped[groups, order[:, :, None], order[:, None, :]]
    inverse = np.linalg.inv(sorted_)
    upper = np.linalg.cholesky((inverse + inverse.transpose(0, 2, 1)) / 2).transpose(0, 2, 1)
    return order, np.ascontiguousarray(upper)


def _round(
    target: Floats,
    scale: NDArray[np.float32],
    bounds: tuple[Floats, Floats],
    factor: tuple[NDArray[np.int64], Floats] | None,
    hessian: Floats,
) -> Floats:
    """Integers of a target: to the nearest, or column by column, each column's error spread over those still to come
    (optimal brain quantization in the order and block form of GPTQ, Frantar et al. 2022)."""
    low, high = bounds
    wide = scale.astype(np.float64)
    if factor is None:
        return intmath.nearest_step(target / wide[..., None], low[..., None], high[..., None])
    order, upper = factor
    groups = np.arange(len(target))[:, None]
    work = np.ascontiguousarray(target.transpose(2, 0, 1)[order.T, groups.T, :])  # [K, G, O], columns in order
    found = np.empty_like(work)
    width = len(work)
    for first in range(0, width, BLOCK):
        last = min(first + BLOCK, width)
        errors = np.empty((last - first, *work.shape[1:]))
        for k in range(first, last):
            found[k] = intmath.nearest_step(work[k] / wide, low, high)
            error = (work[k] - found[k] * wide) / upper[:, k, k, None]
            work[k + 1 : last] -= upper[:, k, k + 1 : last].T[:, :, None] * error
            errors[k - first] = error
        if last < width:
            work[last:] -= np.einsum("gbr,bgo->rgo", upper[:, first:last, last:], errors, optimize=True)
    result = np.empty_like(target)
    result.transpose(2, 0, 1)[order.T, groups.T, :] = found
    return result


def _mean_diagonal(hessian: Floats) -> Floats:
    """Mean of the diagonal per group `[G]`; 1 where a group's inputs are constant."""
    mean = np.einsum("gkk->g", hessian) / hessian.shape[1]
    return np.where(mean > 0, mean, 1.0)
