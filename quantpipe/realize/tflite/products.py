"""Kernels that multiply and add: convolutions, dense layers, products of activations, averages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Node
from quantpipe.intake.tflite.layout import channels_last, place, plain
from quantpipe.intake.tflite.operators import POOLS, SUMS
from quantpipe.oprules.rows import row_axes
from quantpipe.realize.tflite.clamps import clamped
from quantpipe.realize.tflite.container import TensorQuantization
from quantpipe.realize.tflite.walk import TfliteWalk, Writer
from quantpipe.realize.tflite.windows import Window, as_map, padded, plain_padding, window_of
from quantpipe.types import (
    Accumulate,
    Average,
    Contract,
    DType,
    Form,
    Kernel,
    Program,
    Quantizer,
    Requantize,
    WeightTensor,
)


def accumulator(walk: TfliteWalk, kernel: Kernel) -> tuple[Accumulate, Requantize, WeightTensor]:
    """Return the numbers of a kernel with a weight, as far as TFLite can hold them.

    Raises HardwareError for a result that stays an accumulator, weights with zero points, and sums that overflow or
    saturate by pairs.
    """
    plan = walk.plan.kernels[kernel.node]
    assert isinstance(plan, Accumulate)  # noqa: S101  (the planner pairs families with plans; narrows the type)
    weight = walk.plan.weights[plan.weight]
    if weight.has_zero_point:
        raise walk.refused("its weights have zero points; TFLite's integer kernels take weights without")
    if plan.limit is not None or plan.pairs is not None:
        raise walk.refused("its sums can overflow; TFLite's kernels add in int32 without a limit")
    return plan, narrowing(walk, plan.output), weight


def narrowing(walk: TfliteWalk, output: Requantize | None) -> Requantize:
    """Return how a kernel stores its result.

    Raises HardwareError where its result stays an accumulator, or is narrowed otherwise than by a fixed-point
    multiplier.
    """
    if output is None:
        raise walk.refused("its result leaves as an accumulator; legal is a stored type in `out` of the hardware file")
    return output


def convolution(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Conv as CONV_2D or DEPTHWISE_CONV_2D."""
    _, output, weight = accumulator(walk, kernel)
    spatial = weight.values.ndim - 2
    if spatial > 2:
        raise walk.refused("it slides over three axes; TFLite's integer convolutions slide over one or two")
    source, shapes = kernel.operands[0].tensor, walk.graph.shapes
    order = channels_last(spatial + 2)
    value = as_map(walk, walk.operand(kernel.operands[0], order), source)
    q = walk.plan.quantizers[source]
    window = window_of(node, weight.values.shape[2:], shapes[source][2:], shapes[node.outputs[0]][2:])
    value, padding = padded(walk, window, value, q, fill=q.zero_point)
    group, channels = node.attr("group", 1), shapes[source][1]
    values = weight.values if spatial == 2 else weight.values[:, :, None]
    deep = group > 1 and group == channels  # other groups follow from the depth of CONV_2D's filters
    axis = 3 if deep else 0
    laid_out = np.transpose(values, (1, 2, 3, 0) if deep else (0, 2, 3, 1))
    packed = not (deep and q.dtype.bits > 8)  # LiteRT's kernel of 16-bit depthwise convolutions reads bytes
    weights = _weight(walk, weight, laid_out, axis, packed=packed)
    inputs = [value, weights, _bias(walk, kernel, weight)]
    common = window.options(padding) | _dilated(window)
    if deep:
        common |= {"kind": "DepthwiseConv2DOptions", "depthMultiplier": weight.values.shape[0] // channels}
    else:
        common |= {"kind": "Conv2DOptions"}
    op, version = ("DEPTHWISE_CONV_2D", 3) if deep else ("CONV_2D", 3)

    def write(result: int, activation: int) -> None:
        target = _map_result(walk, result, kernel.output)
        walk.file.operator(op, inputs, [target], version, fusedActivationFunction=activation, **common)
        if target != result:
            walk.reshape(target, result, walk.file.shape(result))

    clamped(walk, kernel, output, order, write=write)


def _map_result(walk: TfliteWalk, result: int, like: str) -> int:
    """Return the tensor that a kernel over maps writes, where the result has one spatial axis."""
    shape = walk.file.shape(result)
    if len(shape) == 4:
        return result
    return walk.temporary(f"{walk.file.name(result)} (map)", [shape[0], 1, *shape[1:]], like)


def _dilated(window: Window) -> dict[str, Any]:
    return {"dilationHFactor": window.dilations[0], "dilationWFactor": window.dilations[1]}


def _weight(walk: TfliteWalk, weight: WeightTensor, values: NDArray[Any], axis: int, *, packed: bool = True) -> int:
    """Write integer weights with their scales (perhaps per channel); `packed`: two of 4 bits to the byte."""
    grid = TensorQuantization(np.asarray(weight.scale), 0, axis)
    dtype = DType.INT4 if weight.dtype.bits == 4 and packed else DType.INT8
    if weight.dtype.bits > 8:
        raise walk.refused(f"its weights are {weight.dtype}; legal are int8 and int4")
    return walk.file.constant(weight.tensor, np.asarray(values, np.int8), dtype, grid)


def _bias(walk: TfliteWalk, kernel: Kernel, weight: WeightTensor) -> int:
    """Return the bias at the scale of the products."""
    plan = walk.plan.kernels[kernel.node]
    assert isinstance(plan, Accumulate)  # noqa: S101
    dtype = _bias_type(walk.plan.quantizers[kernel.operands[0].tensor])
    channels = weight.values.shape[walk.topology.weight_of[weight.tensor].channel_axis]
    given = np.zeros(1, np.int64) if plan.bias is None else plan.bias.reshape(-1)  # convolutions need one
    values = np.broadcast_to(given, (channels,)).astype(dtype.numpy)
    name = kernel.bias or f"{kernel.node}/bias"
    return walk.file.constant(name, values, dtype, TensorQuantization(np.asarray(plan.acc_scale, np.float32), 0, 0))


def _bias_type(data: Quantizer) -> DType:
    """Return the type of biases, which is the type of the sums."""
    return DType.INT64 if data.dtype.bits > 8 else DType.INT32


def transposed(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write ConvTranspose as TRANSPOSE_CONV without padding, and the slice of it that ONNX keeps."""
    _, output, weight = accumulator(walk, kernel)
    if weight.values.ndim != 4 or node.attr("group", 1) != 1 or any(d != 1 for d in node.attr("dilations") or ()):
        raise walk.refused("legal are transposed convolutions of two axes, one group, without dilations")
    order, shapes = channels_last(4), walk.graph.shapes
    value = walk.operand(kernel.operands[0], order)
    stride = list(node.attr("strides") or [1, 1])
    window = weight.values.shape[2:]
    size = shapes[kernel.operands[0].tensor][2:]
    whole = [(n - 1) * s + k for n, s, k in zip(size, stride, window, strict=True)]
    kept = shapes[node.outputs[0]][2:]
    before = list(node.attr("pads") or [0, 0, 0, 0])[:2]
    if node.attr("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        raise walk.refused("legal are explicit pads")
    if any(b + n > w for b, n, w in zip(before, kept, whole, strict=True)):
        raise walk.refused("its output_padding reaches beyond what the window covers")
    # LiteRT's kernel takes int8 alone.
    weights = _weight(walk, weight, np.transpose(weight.values, (1, 2, 3, 0)), 0, packed=False)
    batch, channels = shapes[node.outputs[0]][:2]
    shape = walk.numbers(f"{node.name}/shape", [batch, *whole, channels])
    inputs = [shape, weights, value]
    inputs.append(_bias(walk, kernel, weight))
    walk.single = True  # the shape of the result is a constant of the file

    def write(result: int, activation: int) -> None:
        cut = list(whole) != list(kept)
        target = walk.temporary(f"{kernel.output} (whole)", [batch, *whole, channels], kernel.output) if cut else result
        options = {"padding": walk.file.enum("Padding", "VALID"), "strideH": stride[0], "strideW": stride[1]}
        walk.file.operator(
            "TRANSPOSE_CONV",
            inputs,
            [target],
            3,
            kind="TransposeConvOptions",
            fusedActivationFunction=activation,
            **options,
        )
        if cut:
            begin = walk.numbers(f"{node.name}/begin", [0, *before, 0])
            length = walk.numbers(f"{node.name}/size", [batch, *kept, channels])
            walk.file.operator("SLICE", [target, begin, length], [result], 2, kind="SliceOptions")

    clamped(walk, kernel, output, order, write=write)


def dense(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Gemm or MatMul by a weight as FULLY_CONNECTED, MatMul of two activations as BATCH_MATMUL."""
    if kernel.weight is None:
        contract(walk, node, kernel)
        return
    _, output, weight = accumulator(walk, kernel)
    if weight.values.ndim != 2:
        raise walk.refused("its weight has more than two axes; legal is a matrix")
    values = weight.values if node.attr("transB", 0) else weight.values.T
    rank = len(walk.graph.shapes[kernel.output])
    value = walk.operand(kernel.operands[0])
    weights = _weight(walk, weight, values, 0)
    inputs = [value, weights, _bias(walk, kernel, weight)]
    version = 7 if weight.dtype.bits == 4 else 5

    def write(result: int, activation: int) -> None:
        walk.file.operator(
            "FULLY_CONNECTED",
            inputs,
            [result],
            version,
            kind="FullyConnectedOptions",
            fusedActivationFunction=activation,
            keepNumDims=rank > 2,
        )

    clamped(walk, kernel, output, plain(rank), write=write)


def contract(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write a product of two activations."""
    plan = walk.plan.kernels[kernel.node]
    assert isinstance(plan, Contract)  # noqa: S101
    inputs = [walk.operand(o) for o in kernel.operands]
    ranks = [len(walk.file.shape(i)) for i in inputs]
    if min(ranks) < 2 or max(ranks) > 5:
        raise walk.refused("legal are products of tensors of two to five axes")

    def write(result: int, activation: int) -> None:
        walk.file.operator("BATCH_MATMUL", inputs, [result], 4, kind="BatchMatMulOptions")

    order = plain(len(walk.graph.shapes[kernel.output]))
    clamped(walk, kernel, narrowing(walk, plan.output), order, write=write, fuses=False)


def average(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write an average over the whole map as MEAN, one over a window as a depthwise convolution with weights of 1/n."""
    plan = walk.plan.kernels[kernel.node]
    if isinstance(plan, Program):
        divided(walk, node, kernel)
        return
    assert isinstance(plan, Average)  # noqa: S101
    source, shapes = kernel.operands[0].tensor, walk.graph.shapes
    rank = len(shapes[source])
    order = channels_last(rank)
    value = walk.operand(kernel.operands[0], order)
    if "kernel_shape" not in node.attributes:
        axes = walk.numbers(f"{node.name}/axes", range(1, rank - 1))

        def mean(result: int, activation: int) -> None:
            walk.file.operator("MEAN", [value, axes], [result], 2, kind="ReducerOptions", keepDims=True)

        clamped(walk, kernel, plan.output, order, write=mean, fuses=False)
        return
    if rank > 4:
        raise walk.refused("it slides over three axes; legal are one or two")
    q, channels = walk.plan.quantizers[source], shapes[source][1]
    window = window_of(node, node.attr("kernel_shape"), shapes[source][2:], shapes[node.outputs[0]][2:])
    value, padding = padded(walk, window, as_map(walk, value, source), q, fill=q.zero_point)
    scale = np.full(channels, np.float32(1 / plan.count), np.float32)
    ones = np.ones((1, *window.kernel, channels), np.int8)
    dtype, grid = _bias_type(q), TensorQuantization(np.float32(q.scale) * scale, 0, 0)
    none = walk.file.constant(f"{node.name}/bias", np.zeros(channels, dtype.numpy), dtype, grid)
    weights = walk.file.constant(f"{node.name}/ones", ones, DType.INT8, TensorQuantization(scale, 0, 3))
    options = window.options(padding) | _dilated(window) | {"depthMultiplier": 1, "kind": "DepthwiseConv2DOptions"}

    def write(result: int, activation: int) -> None:
        target = _map_result(walk, result, kernel.output)
        walk.file.operator(
            "DEPTHWISE_CONV_2D", [value, weights, none], [target], 3, fusedActivationFunction=activation, **options
        )
        if target != result:
            walk.reshape(target, result, walk.file.shape(result))

    clamped(walk, kernel, plan.output, order, write=write)


def divided(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write an average whose sums are divided as integers as AVERAGE_POOL_2D; pads that count are elements of a Pad."""
    source, shapes = kernel.operands[0].tensor, walk.graph.shapes
    if any(d != 1 for d in node.attr("dilations") or ()):
        raise walk.refused("legal are averages without dilations")
    q, order = walk.plan.quantizers[kernel.output], channels_last(len(shapes[source]))
    window = window_of(node, node.attr("kernel_shape"), shapes[source][2:], shapes[node.outputs[0]][2:])
    value = as_map(walk, walk.operand(kernel.operands[0], order), source)
    padding = plain_padding(walk, window, walk.file.shape(value)[1:3])
    if node.attr("count_include_pad", 0) and any((*window.before, *window.behind)):
        value, padding = padded(walk, window, value, q, fill=q.zero_point, apart=True)
    if padding is None:
        raise walk.refused("legal are averages whose pads are TensorFlow's (SAME), or count")
    size = {"filterHeight": window.kernel[0], "filterWidth": window.kernel[1]}
    result = walk.make(kernel.output, order)
    target = _map_result(walk, result, kernel.output)
    walk.file.operator(
        POOLS["AveragePool"], [value], [target], 2, kind="Pool2DOptions", **size, **window.options(padding)
    )
    if target != result:
        walk.reshape(target, result, walk.file.shape(result))
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def reduced_sum(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write a mean or a sum over some axes as MEAN or SUM."""
    plan, source = walk.plan.kernels[kernel.node], kernel.operands[0].tensor
    assert isinstance(plan, Program) and plan.output is not None  # noqa: S101
    keep, axes = bool(node.attr("keepdims", 1)), row_axes(node, walk.graph)
    own, made = (walk.plan.quantizers[t] for t in (source, kernel.output))
    if SUMS[node.op] == "SUM" and (float(own.scale), own.zero_point) == (float(made.scale), made.zero_point):
        raise walk.refused("LiteRT adds up integers in their own type where a sum has the scale of its operand")
    rank = len(walk.graph.shapes[source])
    order = walk.common_order(kernel, source) if keep else plain(rank)
    value = walk.operand(kernel.operands[0], order)
    number = walk.numbers(f"{node.name}/axes", [place(a, order) for a in axes])

    def write(result: int, activation: int) -> None:
        walk.file.operator(SUMS[node.op], [value, number], [result], 2, kind="ReducerOptions", keepDims=keep)

    target = order if keep else plain(len(walk.graph.shapes[kernel.output]))
    clamped(walk, kernel, plan.output, target, write=write, fuses=False)


WRITERS: Mapping[str, Writer] = {
    "Conv": convolution,
    "ConvTranspose": transposed,
    "Gemm": dense,
    "MatMul": dense,
    "GlobalAveragePool": average,
    "AveragePool": average,
    **dict.fromkeys(SUMS, reduced_sum),
}
