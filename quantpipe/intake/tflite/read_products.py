"""Read TFLite's convolutions, dense layers, products, pools and reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from quantpipe.intake.tflite.contents import NO_TENSOR, FileOperator, names_of
from quantpipe.intake.tflite.intake import Reader, TfliteIntake, UnreadOperator
from quantpipe.intake.tflite.layout import Order, channels_first, place, plain, without_axes
from quantpipe.intake.tflite.operators import POOLS, REDUCTIONS

MAP_AXES = 4
FILTERS: Order = (0, 3, 1, 2)
"""Filters [O, H, W, I] of a convolution as ONNX has them; of a transposed one, TURNED_FILTERS."""
TURNED_FILTERS: Order = (3, 0, 1, 2)


def window_attributes(
    intake: TfliteIntake, operator: FileOperator, kernel: Sequence[int], dilations: Sequence[int] = (1, 1)
) -> dict[str, Any]:
    """Return strides, dilations and pads of a window over the first input, as ONNX has them.

    The pads of SAME are numbers where the size of the map is known.
    """
    strides = _strides(operator)
    if min((*dilations, *kernel)) < 1:
        raise UnreadOperator(
            f"its window is {list(kernel)}, its dilations {list(dilations)}; legal are sizes from 1 on"
        )
    found: dict[str, Any] = {"strides": strides}
    if tuple(dilations) != (1, 1):
        found["dilations"] = list(dilations)
    if names_of("Padding").get(operator.option("padding", 0)) != "SAME":
        return found
    tensor = intake.tensor(operator.inputs[0])
    if tensor.free & {1, 2}:
        return found | {"auto_pad": "SAME_UPPER"}
    rows = zip(tensor.shape[1:3], strides, kernel, dilations, strict=True)
    whole = [max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0) for n, s, k, d in rows]
    return found | {"pads": [w // 2 for w in whole] + [w - w // 2 for w in whole]}


def _strides(operator: FileOperator) -> list[int]:
    found = [operator.option("strideH", 1), operator.option("strideW", 1)]
    if min(found) < 1:
        raise UnreadOperator(f"its strides are {found}; legal are numbers from 1 on")
    return found


def _as_maps(intake: TfliteIntake, numbers: Sequence[int]) -> None:
    if any(intake.rank(n) != MAP_AXES for n in numbers):
        shapes = [list(intake.tensor(n).shape) for n in numbers]
        raise UnreadOperator(f"its tensors have the shapes {shapes}; legal are {MAP_AXES} axes")


def _bias(intake: TfliteIntake, operator: FileOperator, port: int) -> list[str]:
    given = operator.inputs[port] if len(operator.inputs) > port else NO_TENSOR
    return [intake.value(given)] if given != NO_TENSOR else []


def convolution(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read CONV_2D and DEPTHWISE_CONV_2D."""
    data, weight = operator.inputs[:2]
    _as_maps(intake, (data, weight))
    shape, channels = intake.tensor(weight).shape, intake.tensor(data).shape[3]
    deep = operator.op == "DEPTHWISE_CONV_2D"
    depth = shape[3]
    if not depth or channels % (channels if deep else depth) or (deep and (shape[0] != 1 or depth % channels)):
        raise UnreadOperator(f"its filters are {list(shape)} for {channels} channels")
    dilations = [operator.option("dilationHFactor", 1), operator.option("dilationWFactor", 1)]
    window = window_attributes(intake, operator, shape[1:3], dilations)
    order = channels_first(MAP_AXES)
    filters = intake.value(weight, TURNED_FILTERS if deep else FILTERS)
    group = channels if deep else channels // depth
    inputs = [intake.value(data, order), filters, *_bias(intake, operator, 2)]
    intake.make(operator, order, "Conv", inputs, group=group, **window)


def transposed(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read TRANSPOSE_CONV; what its window covers beyond the size of its result is cut off."""
    target, weight, data = operator.inputs[:3]
    _as_maps(intake, (weight, data))
    size, kernel = _result_size(intake, operator, target), intake.tensor(weight).shape[1:3]
    before, strides = intake.tensor(data).shape[1:3], _strides(operator)
    if len(size) != 2 or intake.tensor(data).free & {1, 2}:
        raise UnreadOperator("the size of its result is not known")
    cut = [(n - 1) * s + k - m for n, s, k, m in zip(before, strides, kernel, size, strict=True)]
    begin = [max(c, 0) // 2 for c in cut]
    behind = [c - b for c, b in zip(cut, begin, strict=True)]
    more = [max(-b, 0) for b in behind]
    if any(m >= s for m, s in zip(more, strides, strict=True)):
        raise UnreadOperator(f"its result of {size} reaches beyond what the window covers")
    attributes: dict[str, Any] = {"strides": strides, "pads": [*begin, *(max(b, 0) for b in behind)]}
    if any(more):
        attributes["output_padding"] = more
    order = channels_first(MAP_AXES)
    inputs = [intake.value(data, order), intake.value(weight, TURNED_FILTERS), *_bias(intake, operator, 3)]
    intake.make(operator, order, "ConvTranspose", inputs, **attributes)


def _result_size(intake: TfliteIntake, operator: FileOperator, target: int) -> list[int]:
    """Return height and width of a result: those that the file declares, where the operand is computed."""
    made = intake.tensor(operator.outputs[0])
    if intake.tensor(target).data is None and len(made.shape) == MAP_AXES and not made.free & {1, 2}:
        return list(made.shape[1:3])
    return intake.numbers(target)[1:3]


def dense(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read FULLY_CONNECTED."""
    data, weight = operator.inputs[:2]
    shape, rank = intake.tensor(weight).shape, intake.rank(data)
    made = intake.rank(operator.outputs[0])
    if names_of("FullyConnectedOptionsWeightsFormat").get(operator.option("weightsFormat", 0)) != "DEFAULT":
        raise UnreadOperator("its weights are shuffled; legal is the format DEFAULT")
    if len(shape) != 2:
        raise UnreadOperator(f"its weights are {list(shape)}; legal is a matrix")
    if made > 2 and operator.option("keepNumDims", default=False):
        product = (intake.value(data), intake.value(weight, (1, 0)))
        bias, order = _bias(intake, operator, 2), plain(made)
        if not bias:
            intake.make(operator, order, "MatMul", product)
            return
        name = f"{intake.name_of(operator)}/product"
        intake.make(operator, order, "Add", [intake.node("MatMul", product, name=name), *bias])
        return
    value = intake.value(data)
    if rank != 2 or intake.tensor(data).shape[1] != shape[1]:
        rows = intake.constant(f"{intake.tensor(data).name}/rows", np.asarray([-1, shape[1]]))
        value = intake.node("Reshape", [value, rows], name=f"{intake.tensor(data).name.split(';')[0]}/flat")
    inputs = [value, intake.value(weight), *_bias(intake, operator, 2)]
    if made == 2:
        intake.make(operator, plain(2), "Gemm", inputs, transB=1)
        return
    raise UnreadOperator(f"its result has {made} axes; legal are 2, or those of its input with keep_num_dims")


def product(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read BATCH_MATMUL."""
    inputs = []
    for number, turned in zip(operator.inputs, ("adjX", "adjY"), strict=True):
        order = plain(intake.rank(number))
        if operator.option(turned, default=False):
            order = (*order[:-2], order[-1], order[-2])
        inputs.append(intake.value(number, order))
    intake.make(operator, plain(intake.rank(operator.outputs[0])), "MatMul", inputs)


def pool(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read AVERAGE_POOL_2D and MAX_POOL_2D; averages are over the elements within the map."""
    _as_maps(intake, operator.inputs[:1])
    kernel, order = [operator.option("filterHeight", 1), operator.option("filterWidth", 1)], channels_first(MAP_AXES)
    window = window_attributes(intake, operator, kernel)
    value = intake.value(operator.inputs[0], order)
    intake.make(operator, order, _POOLS[operator.op], [value], kernel_shape=kernel, **window)


def reduced(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read MEAN, SUM, REDUCE_MAX, REDUCE_MIN and REDUCE_PROD."""
    data, rank, keep = operator.inputs[0], intake.rank(operator.inputs[0]), bool(operator.option("keepDims", False))
    axes = sorted({axis_of(axis, rank) for axis in intake.numbers(operator.inputs[1])})
    order = intake.common_order([data], rank)
    name = intake.name_of(operator)
    places = intake.constant(f"{name}/axes", np.asarray(sorted(place(a, order) for a in axes), np.int64))
    op = _REDUCTIONS[operator.op]
    made = order if keep else without_axes(order, axes)
    inputs = [intake.value(data, order), places]
    intake.make(operator, made, op, inputs, keepdims=int(keep), noop_with_empty_axes=1)


def axis_of(axis: int, rank: int) -> int:
    """Return an axis counted from the first one.

    Raises UnreadOperator for an axis that a tensor of this rank does not have.
    """
    if not -rank <= axis < rank:
        raise UnreadOperator(f"its axis is {axis}, and its tensor has {rank} axes")
    return axis % rank


_POOLS = {own: op for op, own in POOLS.items()}
_REDUCTIONS = {**{own: op for op, own in REDUCTIONS.items()}, "REDUCE_PROD": "ReduceProd"}

READERS: Mapping[str, Reader] = {
    **dict.fromkeys(("CONV_2D", "DEPTHWISE_CONV_2D"), convolution),
    "TRANSPOSE_CONV": transposed,
    "FULLY_CONNECTED": dense,
    "BATCH_MATMUL": product,
    **dict.fromkeys(_POOLS, pool),
    **dict.fromkeys(_REDUCTIONS, reduced),
}
"""Operator -> what reads it."""
