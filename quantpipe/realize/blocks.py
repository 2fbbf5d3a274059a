"""Weights in blocks as constants of a model: codes and multipliers, and the ops that make integers of them.

A runtime computes these once, when it loads the model.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array
from quantpipe.graph.build import ir_dtype
from quantpipe.lowering import Context
from quantpipe.plan.weight_blocks import as_weight, codes, rows_of
from quantpipe.types import DType, WeightTensor

Writer = Callable[[str, Any], ir.Value]


def expanded(context: Context, write: Writer, weight: WeightTensor, *, channel_axis: int, turned: bool) -> ir.Value:
    """Write v = multiplier · (code - zero point) of a weight in blocks, in the type that kernels multiply by.

    `turned`: the matrix is transposed.
    """
    grid = weight.block
    assert grid is not None  # noqa: S101  (asked by the caller; narrows the type)
    b, name, axis = context.builder, weight.tensor, 0 if turned else 1
    axis = axis if channel_axis == 0 else 1 - axis

    def laid(rows: Array, inputs: int) -> Array:
        shape = list(weight.values.shape)
        shape[1 - channel_axis] = inputs
        array = as_weight(
            rows, (*shape[:2], *([1] * (len(shape) - 2) if rows.shape[2] == 1 else shape[2:])), channel_axis
        )
        return array.T if turned else array

    def at_inputs(numbers: Array, part: str) -> ir.Value:
        """Return numbers of blocks, at each input channel."""
        stored = write(f"{name}_{part}", laid(numbers[:, :, np.newaxis], numbers.shape[1]).astype(np.int8))
        wide = b.op("Cast", stored, name=f"{name}/{part}/int32", to=int(ir.DataType.INT32))
        places = write(f"{name}_block_of", np.arange(inputs, dtype=np.int32) // np.int32(grid.size))
        return b.op("Gather", wide, places, name=f"{name}/{part}/spread", axis=axis)

    rows = rows_of(weight.values, channel_axis)
    inputs = rows.shape[1]
    value = b.op("Cast", _codes(context, write, weight, laid(codes(rows, grid), inputs)),
                 name=f"{name}/codes", to=int(ir.DataType.INT32))  # fmt: skip
    if np.any(grid.zero_point):
        value = b.op("Sub", value, at_inputs(grid.zero_point, "block_zero"), name=f"{name}/centred")
    product = b.op("Mul", value, at_inputs(grid.multiplier, "multiplier"), name=f"{name}/multiplied")
    to = int(ir_dtype(np.dtype(weight.dtype.numpy).name))
    made = b.op("Cast", product, name=f"{name}/integers", output=f"{name}_q", to=to)
    made.shape = ir.Shape(list(weight.values.shape)[:: -1 if turned else 1])
    return made


def _codes(context: Context, write: Writer, weight: WeightTensor, array: Array) -> ir.Value:
    """Write the codes, two to the byte if they have at most four bits."""
    dtype = DType.INT4 if weight.bits <= 4 else DType.INT8
    if dtype is DType.INT8:
        return write(f"{weight.tensor}_code", array.astype(np.int8))
    packed = ir.tensor(np.ascontiguousarray(array).astype(ir_dtype(dtype).numpy()))
    return context.builder.constant(f"{weight.tensor}_code4", packed)


def is_turned(values: Array, weight: WeightTensor) -> bool | None:
    """Return whether an array holds a weight's integers the other way round; None where it holds others."""
    if values is weight.values or (values.shape == weight.values.shape and np.array_equal(values, weight.values)):
        return False
    if values.ndim == 2 and values.T.shape == weight.values.shape and np.array_equal(values.T, weight.values):
        return True
    return None


def dequantized(context: Context, weight: WeightTensor, channel_axis: int) -> ir.Value:
    """Write DequantizeLinear with a scale and a zero point of each block; return the real weight.

    A window of a convolution repeats the numbers of its block for each tap: ONNX has blocks along one axis only.
    """
    grid, b, name, shape = weight.block, context.builder, weight.tensor, weight.values.shape
    assert grid is not None  # noqa: S101  (asked by the caller; narrows the type)
    divided = list(shape)
    divided[1 - channel_axis] = weight.scale.shape[1]

    def laid(numbers: Array) -> Array:
        taps = int(np.prod(shape[2:]))
        return as_weight(np.repeat(numbers[:, :, np.newaxis], taps, axis=2), tuple(divided), channel_axis)

    def integers(part: str, array: Array) -> ir.Value:
        return b.constant(f"{name}_{part}", ir.tensor(array.astype(ir_dtype(weight.dtype).numpy())))

    inputs = [integers("q", weight.values), b.constant(f"{name}_scale", laid(weight.scale))]
    if np.any(grid.zero_point):
        inputs.append(integers("zero_point", laid(grid.zero_point)))
    return b.op("DequantizeLinear", *inputs, name=f"{name}/blocks", axis=1 - channel_axis, block_size=grid.size)
