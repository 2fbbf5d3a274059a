"""Weights in blocks with float scales, as a quantized file gives them: MatMulNBits, DequantizeLinear with block_size.

A device of weights alone takes such integers and scales over as they are, where its blocks are as long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.plan.weight_blocks import as_weight
from quantpipe.types import BlockGrid, DType, GivenWeight, Symmetry, TensorSchema, WeightSite, WeightTensor

MOST_BITS = 8


@dataclass(frozen=True, eq=False)
class GivenBlocks:
    """Hold a dense weight of C output and I input channels in B blocks: real = scale · (code - zero).

    `codes` `[C, I]` and `zero` `[C, B]` int64 about the middle of `bits`, `scale` `[C, B]` float32.
    """

    codes: NDArray[np.int64]
    scale: NDArray[np.float32]
    zero: NDArray[np.int64]
    bits: int


def given_blocks(weight: GivenWeight, site: WeightSite, how: TensorSchema) -> GivenBlocks | str:
    """Return a given weight in the blocks of its site, or why the device cannot have it so.

    `site`: its place, whose blocks have float scales.
    """
    grid, size, values = weight.grid, site.block.size if site.block is not None else 0, weight.values
    bits, inner = grid.bits, 1 - site.channel_axis
    if values.ndim != 2:
        return f"{values.ndim} axes, and blocks with float scales are of dense layers"
    if bits > min(site.max_bits, MOST_BITS):
        return f"{bits} bits, and it has {min(site.max_bits, MOST_BITS)} here"
    if weight.block not in (None, size):
        return f"blocks of {weight.block}, and blocks have {size} here (hardware.weights.block={weight.block})"
    along = grid.axis % 2 if grid.axis is not None and not grid.single else None
    if along not in (None, inner if weight.block is not None else site.channel_axis):
        return f"scales along axis {along}, and output channels lie along axis {site.channel_axis}"
    middle = 0 if grid.low < 0 else 1 << (bits - 1)
    codes = np.moveaxis(values, site.channel_axis, 0).astype(np.int64) - middle
    shape = (codes.shape[0], -(-codes.shape[1] // size))
    scale, zero = (
        np.moveaxis(n, site.channel_axis, 0) if n.ndim == 2 else np.broadcast_to(n.reshape(-1, 1), shape)
        for n in (grid.scale, grid.zero.astype(np.int64) - middle)
    )
    free = site.frozen or how.symmetry is Symmetry.ASYMMETRIC  # of a frozen site it was decided that zero points stay
    if not free and np.any(zero):
        return f"zero points, and weights are {how.symmetry} here"
    if not free and how.narrow and codes.min(initial=0) == -(1 << (bits - 1)):
        return f"the integer {codes.min()}, which weights do not have here"
    return GivenBlocks(codes, np.ascontiguousarray(scale, np.float32), np.ascontiguousarray(zero), bits)


def kept_weight(weight: GivenWeight, site: WeightSite, dtype: DType, how: TensorSchema) -> WeightTensor | None:
    """Return a given weight with its very codes, scales and zero points; None where the device cannot have it so.

    `site`: its place, whose blocks have float scales.
    """
    found = given_blocks(weight, site, how)
    if isinstance(found, str) or site.block is None:
        return None
    half = 1 << (found.bits - 1)
    grid = BlockGrid(site.block.size, np.ones(found.zero.shape, np.int64), found.zero, 1, -half, half - 1)
    codes = as_weight(found.codes, weight.values.shape, site.channel_axis).astype(dtype.numpy)
    return WeightTensor(site.tensor, codes, found.scale, site.axis, dtype, found.bits, block=grid)
