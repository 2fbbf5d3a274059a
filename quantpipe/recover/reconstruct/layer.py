"""One layer: from moments and float weights to integer weights, a scale and a bias. Pure linear algebra in float64.

Shapes: weights `[G, O, K]`, scales `[G, O]` (equal where the tensor has one scale), moments per group `[G, K, K]`. What
is done to rows of weights alone is done to some of them at a time, so that a large layer takes little more than its
moments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Floats
from quantpipe.recover.reconstruct.gptq import ROUNDINGS, PairBound, Rounding, undamped
from quantpipe.recover.reconstruct.moments import Moments
from quantpipe.recover.reconstruct.threads import in_threads
from quantpipe.types import PowerOfTwo, Symmetry, TensorSchema

AROUND = (0.9, 1.0, 1.1)
TOGETHER = 1 << 20
"""Weights that are looked at together, times the scales that they are rounded at: 8 MiB for each array of them."""

WIDE = 1024
"""Columns from which a factorization takes longer than the start of a thread."""

FEW_BITS = 6
"""With more of them no neighbour of a scale was better (efficientnet_lite0, resnet20, 8 bits), and the error of a
shortcut was not worth regressing."""

SHARES = np.linspace(1.0, 0.35, 28)
"""Shares of the full range that a scale is chosen from by the diagonal of H."""

WIDER = np.geomspace(2.0, 1.0, 9)[:-1]
"""Those beyond the full range, where two weights together have a limit: at 2 every pair of weights fits."""


@dataclass(frozen=True)
class LayerOptions:
    """State how the weights of a layer are found.

    `propagate`: regress the float output on the quantized input. `rounding`: nearest | gptq | coordinate_descent.
    `ridge`, `damping`: of the mean diagonal of H, for the regression and for the rounding; both are multiplied by
    `shrinkage_factor` times what the samples leave open of H, where that is more than 1 (with the defaults the damping
    is then half of what is nearest to the true H, and the ridge ten times that). `scale_search`: candidate shares of
    the range.

    `correct_bias`: a bias takes up what the output's mean loses; without one, moments are taken about zero instead of
    the mean, so that the weights answer for it. `own_bias`: the bias answers for what rounding does to this layer, not
    for what earlier layers did to the mean of its input. `shortcuts`: with `propagate`, a layer of few bits whose
    result is added to something known answers for the error of that besides.
    """

    propagate: bool = True
    rounding: str = "gptq"
    correct_bias: bool = True
    own_bias: bool = False
    ridge: float = 0.5
    damping: float = 0.05
    shrinkage_factor: float = 10.0
    scale_search: bool = True
    shortcuts: bool = True

    @property
    def wants_float(self) -> bool:
        """Return whether a layer answers for its output in the float model, and not for its own rounding alone."""
        return self.propagate or not self.own_bias


@dataclass(frozen=True, eq=False)
class WeightGrid:
    """State the integers that a weight may have.

    `bounds` are the minimum and maximum of them less the zero point (which stays as it is), scalars or `[G, O]`.
    `per_channel`: whether each output channel has a scale of its own. `pairs`: what limits two weights together.
    """

    bits: int
    bounds: tuple[Any, Any]
    schema: TensorSchema
    per_channel: bool
    pairs: PairBound | None = None

    def spread(self, shape: tuple[int, ...]) -> WeightGrid:
        """Return the same with bounds of one shape, float64."""
        low, high = (np.broadcast_to(np.asarray(b, np.float64), shape) for b in self.bounds)
        return replace(self, bounds=(low, high))


@dataclass(frozen=True, eq=False)
class Solved:
    """Hold the weights that were found for a layer.

    `integers` `[G, O, K]` as float64, `scale` `[G, O]` float32, `bias_shift` `[G, O]` to add to the float bias; errors
    are (ŵ - w)·H·(ŵ - w) summed over outputs, for nearest rounding of the float weights and for the result.
    """

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
    *,
    grid: WeightGrid,
    options: LayerOptions,
) -> Solved:
    """Return the integers and scales of smallest expected error for one layer.

    `weight`: the float weights, `[G, O, K]`. `start`: the scale that the plan would use, `[G, O]`. `floor`: the
    smallest scale that the bias allows, `[G, O]`.
    """
    unit = unit_of(moments, options)
    about = moments if options.correct_bias else moments.about_zero
    target, rounded = prepared(weight, about, unit, options=options, pairs=grid.pairs)
    grid = grid.spread(start.shape)
    low, high = bounds = grid.bounds
    found = _candidates(target, about.hessian, start, grid) if options.scale_search else [start]
    scales = np.stack([_at_least(s, floor, grid.schema) for s in found])
    integers, best, errors = _best(target, scales.astype(np.float64), bounds, rounded, per_channel=grid.per_channel)
    scale = np.take_along_axis(scales, best[None], axis=0)[0]
    shift = mean_output(weight, moments, options).copy()
    before, after = np.empty(start.shape), np.empty(start.shape)
    plain = ROUNDINGS["nearest"](about.hessian, grid.pairs)

    def weigh(rows: slice) -> None:
        real = integers[:, rows] * scale[:, rows, None].astype(np.float64)
        shift[:, rows] -= np.einsum("gok,gk->go", real, moments.mean)
        after[:, rows] = undamped(errors[:, rows], real - target[:, rows], options.damping * unit)
        _, found = plain(weight[:, rows], start[None, :, rows].astype(np.float64), (low[:, rows], high[:, rows]))
        before[:, rows] = found[0]

    in_threads(weigh, parts(weight.shape))
    return Solved(
        integers,
        scale,
        shift if options.correct_bias else np.zeros_like(shift),
        float(before.sum()),
        float(after.sum()),
    )


def _best(
    target: Floats, scales: Floats, bounds: tuple[Floats, Floats], rounded: Rounding, *, per_channel: bool
) -> tuple[Floats, NDArray[np.int64], Floats]:
    """Return integers at the scales of smallest error, which of the `[S, G, O]` scales these are, and errors, `[G, O]`.

    The scale is chosen for each channel, or for the tensor.
    """
    errors = np.empty(scales.shape)

    def round_rows(rows: slice) -> NDArray[Any]:
        found, errors[:, :, rows] = rounded(
            target[:, rows], scales[:, :, rows], (bounds[0][:, rows], bounds[1][:, rows])
        )
        return _at(found, errors[:, :, rows].argmin(axis=0)) if per_channel else found.astype(np.int32)

    integers = in_threads(round_rows, parts(target.shape, len(scales)))
    if per_channel:
        return np.concatenate(integers, axis=1), errors.argmin(axis=0), errors.min(axis=0)
    best = errors.sum(axis=(1, 2)).argmin()
    whole = np.concatenate([part[best] for part in integers], axis=1).astype(np.float64)
    return whole, np.full(scales.shape[1:], best), errors[best]


def _at(integers: Floats, best: NDArray[np.int64]) -> Floats:
    """Of `[S, G, O, K]` those at `best` `[G, O]`."""
    return np.asarray(np.take_along_axis(integers, best[None, ..., None], axis=0)[0])


def parts(shape: tuple[int, ...], scales: int = 1) -> Iterator[slice]:
    """Return slices of the output rows of weights `[G, O, K]`, as many as `TOGETHER` allows at so many scales."""
    groups, outs, width = shape
    step = max(1, TOGETHER // max(1, scales * groups * width))
    return (slice(first, min(first + step, outs)) for first in range(0, outs, step))


def prepared(
    weight: Floats, moments: Moments, unit: Floats, *, options: LayerOptions, pairs: PairBound | None = None
) -> tuple[Floats, Rounding]:
    """Return the weights that a layer is rounded from, and the rounding; both follow from its moments.

    `weight`: the float weights, `[G, O, K]`. `unit`: what `ridge` and `damping` are shares of, `[G]`.
    """

    def aim() -> Any:
        return regression(weight, moments, options.ridge * unit) if options.propagate else weight

    def factorize() -> Any:
        return ROUNDINGS[options.rounding](damped(moments.hessian, options.damping * unit), pairs)

    if weight.shape[2] < WIDE:
        return aim(), factorize()
    target, rounded = in_threads(lambda job: job(), (aim, factorize))
    return target, rounded


def regression(weight: Floats, moments: Moments, ridge: Floats) -> Floats:
    """Return the weights that reproduce the wanted output from the quantized input: W* = (Y + λW)(H + λI)^-1.

    `weight`: the float weights W, `[G, O, K]`. `ridge`: λ per group, `[G]`. Returns the weights W*, `[G, O, K]`
    float64; W itself where a layer answers for its own rounding alone.
    """
    if moments.output is None:
        return weight  # x̂ is the float input itself
    left = moments.output.cross + ridge[:, None, None] * weight
    right = damped(moments.hessian, ridge)
    if weight.shape[2] < WIDE:
        return np.asarray(np.linalg.solve(right, left.transpose(0, 2, 1)).transpose(0, 2, 1))
    from scipy.linalg import cho_factor, cho_solve  # half the work of numpy's; the import takes half a second

    for found, matrix in zip(left, right, strict=True):
        factor = cho_factor(matrix.T, lower=True, overwrite_a=True, check_finite=False)
        found[:] = cho_solve(factor, found.T, overwrite_b=True, check_finite=False).T
    return left


def mean_output(weight: Floats, moments: Moments, options: LayerOptions) -> Floats:
    """Return what the layer gives on average, `[G, O]`: of its float input, or of the one that it has."""
    if moments.output is None or options.own_bias:
        return np.asarray(np.einsum("gok,gk->go", weight, moments.mean))
    return moments.output.mean


def _candidates(
    target: Floats, hessian: Floats, start: NDArray[np.float32], grid: WeightGrid
) -> list[NDArray[np.float32]]:
    """Return scales to try.

    They are powers of two around the full range, or the one that minimizes Σ H_kk (ŵ_k - w_k)², where bits are few with
    its neighbours: that sum does not see how the rounding of one weight makes up for another's.
    """
    schema, bits, per_channel = grid.schema, grid.bits, grid.per_channel
    if schema.symmetry is Symmetry.ASYMMETRIC:
        low, high = grid.bounds
        full = _least_scale(target, grid.bounds, start, per_channel)
    else:
        peak = np.abs(target).max(axis=2) if per_channel else np.full(start.shape, np.abs(target).max())
        levels = float(intmath.symmetric_steps(bits, intmath.signed_storage(bits), schema))
        full = np.where(peak > 0, peak / levels, start)
        high = np.full(start.shape, float((1 << (bits - 1)) - 1))
        low = -high
    if schema.power_of_two is not PowerOfTwo.NONE:
        exponent = np.ceil(np.log2(full))
        return [(2.0 ** (exponent - step)).astype(np.float32) for step in range(0 if grid.pairs is None else -1, 3)]
    diagonal = np.maximum(np.einsum("gkk->gk", hessian), 0.0)[:, None, :]
    best = np.full(full.shape, np.inf)
    chosen = full.copy()
    for share in SHARES if grid.pairs is None else (*WIDER, *SHARES):
        scale, error = full * share, np.empty(full.shape)
        for rows in parts(target.shape):
            part, at = target[:, rows], scale[:, rows, None]
            ends = low[:, rows, None], high[:, rows, None]
            steps = (
                intmath.nearest_step(part / at, *ends) if grid.pairs is None else grid.pairs.nearest(part / at, *ends)
            )
            error[:, rows] = np.sum(diagonal * (steps * at - part) ** 2, axis=2)
        if not per_channel:
            error = np.full(error.shape, error.sum())
        better = error < best
        best, chosen = np.where(better, error, best), np.where(better, scale, chosen)
    around = AROUND if bits <= FEW_BITS else (1.0,)
    return [(chosen * factor).astype(np.float32) for factor in around]


def _least_scale(
    target: Floats, bounds: tuple[Floats, Floats], start: NDArray[np.float32], per_channel: bool
) -> Floats:
    """The smallest scale `[G, O]` at which the integers low..high hold a target; `start` where nothing needs one."""
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


def damped(hessian: Floats, amount: Floats) -> Floats:
    """Return H + amount · I, one amount per group `[G]`."""
    found = hessian.copy()
    width = hessian.shape[1]
    found[:, np.arange(width), np.arange(width)] += amount[:, None]
    return found


def unit_of(moments: Moments, options: LayerOptions) -> Floats:
    """Return what `ridge` and `damping` are shares of, per group `[G]`."""
    return _mean_diagonal(moments.hessian) * max(1.0, options.shrinkage_factor * moments.uncertainty)


def _mean_diagonal(hessian: Floats) -> Floats:
    """Mean of the diagonal per group `[G]`; 1 where a group's inputs are constant."""
    mean = np.einsum("gkk->g", hessian) / hessian.shape[1]
    return np.where(mean > 0, mean, 1.0)
