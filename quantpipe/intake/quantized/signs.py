"""Constants with a negative scale: the same real values on a positive scale, with mirrored integers.

NNCF's symmetric weights and onnxruntime's 4-bit ones have such scales where the element of the largest magnitude is
positive: -128 · -s is then that element exactly. Its mirror image is +128, which the type does not hold. Such a grid
uses the next wider type, and a device with the same bits clips that element, which the report counts. Blocks keep their
signs: kernels with float scales of blocks take them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.intake.quantized.grids import refused
from quantpipe.types import DType, ImportedGrid

WIDER = {
    DType.INT2: DType.INT8,
    DType.UINT2: DType.INT8,
    DType.INT4: DType.INT8,
    DType.UINT4: DType.INT8,
    DType.INT8: DType.INT16,
    DType.UINT8: DType.INT16,
}


def upright(node: ir.Node, values: NDArray[Any], grid: ImportedGrid) -> tuple[NDArray[Any], ImportedGrid]:
    """Return integers and a grid of positive scales with the same real values; unchanged if scales are positive.

    The integers are q where s > 0 and 2·z - q where s < 0, on the grid of |s|. Where the type does not hold them, they
    are less z, in a wider signed type. Raises ModelError for 16-bit integers whose mirror image does not fit.
    """
    if grid.scale.ndim > 1 or np.all(grid.scale >= 0) or grid.dtype.bits > 16:
        return values, grid
    negative, zero = (_spread(a, values.shape, grid.axis) for a in (grid.scale < 0, grid.zero))
    mirrored = np.where(negative, 2 * zero - values.astype(np.int64), values.astype(np.int64))
    made = replace(grid, scale=np.abs(grid.scale))
    least, greatest = int(mirrored.min(initial=grid.high)), int(mirrored.max(initial=grid.low))
    if least < grid.low or greatest > grid.high:
        if grid.dtype not in WIDER:
            raise refused(
                node,
                f"its scale is negative, and the integers mirrored about the zero point reach from {least} to "
                f"{greatest}; legal are those that {grid.dtype} holds",
            )
        mirrored = mirrored - zero
        low, high = int(mirrored.min()), int(mirrored.max())
        made = replace(made, dtype=WIDER[grid.dtype], zero=np.zeros_like(grid.zero), low=low, high=high)
    return mirrored.astype(made.dtype.numpy), made


def _spread(array: NDArray[Any], shape: tuple[int, ...], axis: int | None) -> NDArray[Any]:
    """Return a grid's number for all values or per channel, so that it broadcasts to the constant."""
    if array.ndim == 0:
        return array
    at = (axis if axis is not None else 1) % len(shape)
    if array.size != shape[at]:
        return np.zeros((), array.dtype)  # scales and channels contradict each other: said where they are multiplied
    return array.reshape([-1 if a == at else 1 for a in range(len(shape))])
