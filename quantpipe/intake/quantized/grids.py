"""Read a quantized file's integers: grids from scales and zero points, and constants as real values again.

Every contradiction is rejected here, in one sentence that names the node.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import ModelError
from quantpipe.graph.edit import attribute, constant
from quantpipe.graph.io import STAGE
from quantpipe.types import DType, ImportedGrid

INTEGERS = {kind.value for kind in DType if not kind.is_float}


def refused(node: ir.Node, problem: str) -> ModelError:
    """Return the error for a node of a quantized file that contradicts itself."""
    return ModelError(problem, stage=STAGE, where=f"{node.op_type} {node.name!r}")


def type_of(value: ir.Value | None) -> DType | None:
    """Return the integer type of a value; None where the file does not say or it is no integer type."""
    kind = None
    if value is not None:
        kind = value.const_value.dtype if value.const_value is not None else value.dtype
    name = kind.name.lower() if kind is not None else ""
    return DType(name) if name in INTEGERS else None


def whole(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the integers of a constant, of 2 and 4 bits in 8-bit arrays; None for what is no constant."""
    found = constant(value)
    kind = type_of(value)
    return None if found is None else found.astype(kind.numpy) if kind is not None else found


def grid_of(
    node: ir.Node, scale: ir.Value | None, zero: ir.Value | None, stored: ir.Value | None, *, axis: int | None = None
) -> ImportedGrid | None:
    """Return the grid of a node's scale and zero point; None where they are computed at run time.

    A zero point of None is 0; `stored` gives the type in that case. `axis` is the axis of channels, for a scale with
    several elements.

    Raises ModelError for scales that are not positive (constants may have negative ones), zero points of another type
    or out of range, and different numbers of scales and zero points.
    """
    steps, offset = constant(scale), whole(zero)
    if steps is None or (zero is not None and offset is None):
        return None
    kind = _type(node, zero, stored)
    if steps.dtype.kind != "f":
        raise refused(node, f"its scale is {steps.dtype.name}; legal are float16 and float32 numbers above 0")
    real = steps.astype(np.float32)
    refuse_scales(node, real, constant=stored is not None and stored.const_value is not None)
    offset = np.zeros(1, np.int64) if offset is None else offset.astype(np.int64)
    if offset.size not in (1, real.size):
        raise refused(node, f"it has {real.size} scales and {offset.size} zero points; legal is one for each scale")
    if np.any(offset < kind.qmin) or np.any(offset > kind.qmax):
        raise refused(node, f"its zero point is {offset.reshape(-1)[0]}; {kind} holds {kind.qmin} to {kind.qmax}")
    if real.size == 1:
        return ImportedGrid(real.reshape(()), offset.reshape(()), kind, kind.qmin, kind.qmax)
    blocks = attribute(node, "block_size", 0) or max(real.shape) < real.size
    shape = real.shape if blocks else (real.size,)  # NNCF writes [C, 1, 1] for channels
    return ImportedGrid(real.reshape(shape), np.broadcast_to(offset.reshape(-1), real.size).reshape(shape), kind,
                kind.qmin, kind.qmax, axis)  # fmt: skip


def refuse_scales(node: ir.Node, scale: NDArray[np.float32], *, constant: bool) -> None:
    """Reject, by ModelError, scales that no quantizer makes.

    Scales of blocks may have a sign (onnxruntime's quantizer divides the value farthest from 0 by -2^(bits - 1)), or be
    0 where all weights of a block are. Other constants are mirrored where a scale is negative (`signs`).
    """
    blocks = scale.ndim > 1
    legal = np.isfinite(scale) & (True if blocks else scale != 0 if constant else scale > 0)
    if not np.all(legal):
        wanted = "finite numbers" if blocks else f"finite numbers {'other than' if constant else 'above'} 0"
        raise refused(node, f"its scale is {scale[~legal].reshape(-1)[0]:g}; legal are {wanted}")


def _type(node: ir.Node, zero: ir.Value | None, stored: ir.Value | None) -> DType:
    """Return the type of the integers: what the file gives them, which the zero point has too."""
    own, of_zero = type_of(stored), type_of(zero)
    if zero is not None and of_zero is None:
        kind = zero.const_value.dtype if zero.const_value is not None else zero.dtype
        raise refused(node, f"its zero point is {kind.name.lower() if kind else 'of no type'}; legal are integers of "
                      "2, 4, 8, 16 or 32 bits")  # fmt: skip
    if own is not None and of_zero is not None and own is not of_zero:
        raise refused(node, f"its integers are {own} and its zero point is {of_zero}; legal is one type for both")
    named = attribute(node, "output_dtype", 0)
    if own is None and of_zero is None and named:
        name = ir.DataType(named).name.lower()
        own = DType(name) if name in INTEGERS else None
        if own is None:
            raise refused(node, f"it stores {name}; legal are integers of 2, 4, 8 or 16 bits")
    return of_zero or own or DType.UINT8


def hull(grids: Sequence[ImportedGrid]) -> ImportedGrid:
    """Return the grid of integers that come from several grids of one scale: it holds what any of them does."""
    return replace(grids[0], low=min(g.low for g in grids), high=max(g.high for g in grids))


def dequantized(node: ir.Node, values: NDArray[Any], grid: ImportedGrid, *, block: int = 0) -> NDArray[np.float32]:
    """Return the real values of a constant's integers, f32(q - z) · s, in the same shape.

    `block` integers along `grid.axis` share a scale; 0: all of a channel. Raises ModelError for an axis that the
    constant does not have, or whose length does not fit the scales.
    """
    if grid.single:
        return intmath.dequantize(values, grid.scale, grid.zero)
    axis = grid.axis if grid.axis is not None else 1
    if not -values.ndim <= axis < values.ndim:
        raise refused(node, f"its axis is {axis}, and {list(values.shape)} has {values.ndim} axes")
    axis %= values.ndim
    if block:
        return _blocks(node, values, grid, axis=axis, block=block)
    if grid.scale.ndim != 1 or values.shape[axis] != grid.scale.size:
        fitting = [str(a) for a, size in enumerate(values.shape) if size == grid.scale.size]
        also = f" (axis {' or '.join(fitting)} would fit)" if fitting else ""
        raise refused(
            node,
            f"it has {grid.scale.size} scales along axis {axis}, and the weight {list(values.shape)} has "
            f"{values.shape[axis]} channels there; legal is one scale for each{also}",
        )
    return intmath.dequantize(values, grid.scale, grid.zero, axis)


def _blocks(node: ir.Node, values: NDArray[Any], grid: ImportedGrid, *, axis: int, block: int) -> NDArray[np.float32]:
    wanted = [-(-n // block) if a == axis else n for a, n in enumerate(values.shape)]
    if list(grid.scale.shape) != wanted:
        raise refused(
            node,
            f"it has scales of shape {list(grid.scale.shape)} for blocks of {block} along axis {axis} of a weight "
            f"{list(values.shape)}; legal is {wanted}",
        )
    keep = [slice(0, n) for n in values.shape]
    scale = np.repeat(grid.scale, block, axis)[tuple(keep)]
    zero = np.repeat(grid.zero, block, axis)[tuple(keep)]
    return np.asarray((values.astype(np.int64) - zero).astype(np.float32) * scale)


def unpacked(packed: NDArray[np.uint8], bits: int, count: int) -> NDArray[np.uint8]:
    """Return integers `[..., count]` uint8 of 2, 4 or 8 bits, packed along the last axis, the first in the low bits."""
    each = 8 // bits
    shifts = np.arange(each, dtype=np.uint8) * np.uint8(bits)
    parts = (packed[..., np.newaxis] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(parts.reshape(*packed.shape[:-1], -1)[..., :count])
