"""Solve one layer with weights in blocks: multipliers of the blocks from the moments, then integers column by column.

As `layer.solve`, with a step of its own for each weight: the step of its channel times the multiplier of its block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array, Floats
from quantpipe.plan.weight_blocks import as_weight, fitted, rows_of, spread, steps_of, with_scales
from quantpipe.recover.reconstruct.gptq import ROUNDINGS, undamped
from quantpipe.recover.reconstruct.layer import LayerOptions, Solved, mean_output, parts, prepared, unit_of
from quantpipe.recover.reconstruct.moments import Moments
from quantpipe.recover.reconstruct.threads import in_threads
from quantpipe.types import BlockGrid, TensorSchema, WeightTensor


@dataclass(frozen=True, eq=False)
class BlockLayout:
    """Say where the weights of a layer lie.

    `matrix` takes a weight in its own shape to `[G, O, K]`, `weight` back. `channel_axis`: its axis of output channels.
    """

    shape: tuple[int, ...]
    channel_axis: int
    matrix: Callable[[Array], Array]
    weight: Callable[[Array], Array]

    def rows(self, matrix: Array) -> Array:
        """Return `[G, O, K]` as the blocks see it, `[C, I, T]`."""
        return rows_of(self.weight(matrix), self.channel_axis)

    def columns(self, numbers: Array) -> Array:
        """Return numbers of input channels, `[C, I, 1]` or `[C, I, T]`, as `[G, O, K]`."""
        turned = (self.shape[self.channel_axis], self.shape[1 - self.channel_axis])
        taps = int(np.prod(self.shape[2:]))
        whole = np.broadcast_to(numbers, (*turned, taps))
        return np.asarray(self.matrix(as_weight(whole, self.shape, self.channel_axis)))


def solve_blocks(
    weight: Floats,
    moments: Moments,
    start: WeightTensor,
    floor: Floats,
    *,
    schema: TensorSchema,
    options: LayerOptions,
    layout: BlockLayout,
) -> tuple[Solved, NDArray[np.float32], BlockGrid]:
    """Return the integers of smallest expected error for one layer in blocks.

    Multipliers (or float scales) and zero points of the blocks are chosen again, by the diagonal of H. The scale of a
    channel stays, unless its bias needs a greater one.

    `weight`: the float weights, `[G, O, K]`. `floor`: the smallest scale that the bias allows, `[C]`, or all alike.
    """
    assert start.block is not None  # noqa: S101  (chosen so by the caller; narrows the type)
    unit = unit_of(moments, options)
    about = moments if options.correct_bias else moments.about_zero
    target, rounded = prepared(weight, about, unit, options=options)
    scale, grid, inputs = start.scale, start.block, layout.shape[1 - layout.channel_axis]
    importance = layout.rows(np.broadcast_to(np.einsum("gkk->gk", about.hessian)[:, None], weight.shape))
    importance = importance[:1] if len(weight) == 1 else importance  # of one group, all channels have the same
    rows = layout.rows(target)
    if not start.has_real_blocks:
        scale = np.maximum(np.atleast_1d(scale), floor if scale.ndim else floor.max()).astype(np.float32)
        if options.scale_search:
            grid = fitted(rows, scale, grid, schema=schema, importance=importance)
    elif options.scale_search:
        ends = (rows.min(axis=(1, 2)), rows.max(axis=(1, 2)))
        scale, grid = with_scales(
            rows, ends, start.bits, start.dtype, size=grid.size, schema=schema, importance=importance
        )
    multiplier, zero = (layout.columns(spread(v, grid.size, inputs)) for v in (grid.multiplier, grid.zero_point))
    steps = layout.columns(steps_of(scale, grid, inputs))
    low, high = grid.low - zero.astype(np.float64), grid.high - zero.astype(np.float64)
    plain = ROUNDINGS["nearest"](about.hessian, None)
    integers, shift = np.empty(weight.shape), mean_output(weight, moments, options).copy()
    before, after = np.empty(weight.shape[:2]), np.empty(weight.shape[:2])

    def round_rows(part: slice) -> None:
        bounds, own = (low[:, part], high[:, part]), steps[None, :, part]
        found, errors = rounded(target[:, part], own, bounds)
        real = found[0] * own[0]
        integers[:, part] = found[0] + zero[:, part] if start.has_real_blocks else found[0] * multiplier[:, part]
        shift[:, part] -= np.einsum("gok,gk->go", real, moments.mean)
        after[:, part] = undamped(errors[0], real - target[:, part], options.damping * unit)
        before[:, part] = plain(weight[:, part], own, bounds)[1][0]

    in_threads(round_rows, parts(weight.shape))
    shift = shift if options.correct_bias else np.zeros_like(shift)
    whole = scale if start.has_real_blocks else np.broadcast_to(scale, weight.shape[0] * weight.shape[1])
    shown = whole if start.has_real_blocks else whole.reshape(weight.shape[:2])
    made = scale if start.scale.ndim else scale.reshape(())
    return Solved(integers, shown, shift, float(before.sum()), float(after.sum())), made, grid
