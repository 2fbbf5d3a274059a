"""Exact integer sums of products where no kernel of onnxruntime makes them: 16-bit operands, sums beyond int32.

Integers of 16 bits are split into bytes, x = 256·high + low, each pair of parts goes through ConvInteger or
MatMulInteger, and the partial sums are added in int64. Padding stays exact because each part has the zero point that
belongs to it: x - z = 256·(high - z_high) + (low - z_low).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array
from quantpipe.graph.view import Node
from quantpipe.lowering import fragments as fr
from quantpipe.lowering.context import Context
from quantpipe.lowering.fragments import ConstantWriter
from quantpipe.lowering.integers import IntegerWriter
from quantpipe.types import Accumulate, DType, Limit, Overflow, Quantizer, WeightTensor

BYTE_PEAK = 255
"""Greatest |x - z| of 8-bit values."""


def int32_accumulator(
    context: Context,
    constants: ConstantWriter,
    node: Node,
    data: ir.Value,
    *,
    zero: ir.Value | None,
    values: ir.Value,
    weight: WeightTensor,
) -> ir.Value:
    """Write Σ (q_x - z_x)·(q_w - z_w) in int32, without bias.

    `data` is q_x, `zero` z_x (None: 0) and `values` q_w. ConvInteger takes one zero point for all of its weights. With
    zero points per channel, the second sum of Σ (q_x - z_x)·q_w - z_w·Σ (q_x - z_x) is a window of ones (padding adds
    nothing to either).
    """
    b, own = context.builder, weight.zero
    if not weight.has_zero_point:
        return fr.integer_product(context, node, data, zero, weight=values)
    same = bool(np.all(own == own.reshape(-1)[0]))
    if same or weight.values.ndim == 2:
        offset = own.reshape(-1)[0] if same else own
        written = constants(f"{weight.tensor}_zero_point", np.asarray(offset))
        return fr.integer_product(context, node, data, zero, weight=values, weight_zero=written)
    product = fr.integer_product(context, node, data, zero, weight=values)
    name = f"{node.name}/window"
    rows = len(weight.values) if int(node.attr("group", 1)) > 1 else 1
    ones = constants(f"{name}_ones", np.ones((rows, *weight.values.shape[1:]), weight.values.dtype))
    sums = fr.integer_product(context, node, data, zero, weight=ones, part=name)
    offsets = fr.along_channels(own.astype(np.int32), context.graph, node.outputs[0])
    taken = b.op("Mul", sums, constants(f"{weight.tensor}_zero_int32", offsets), name=f"{name}/weighted")
    return b.op("Sub", product, taken, name=f"{name}/taken", output=f"{node.outputs[0]}_centred")


def exact_accumulator(
    context: Context, writer: IntegerWriter, node: Node, plan: Accumulate, *, q: Quantizer, stored: ir.Value
) -> ir.Value:
    """Write Σ (q_x - z_x)·(q_w - z_w) + bias in int64.

    `stored` is q_x, in any type that holds it.
    """
    b = writer.builder
    weight = context.plan.weights[plan.weight]
    axis = context.topology.weight_of[weight.tensor].channel_axis
    total: ir.Value | None = None
    for x_factor, x, zero in _data_parts(writer, node.name, q, stored):
        for number, (w_factor, values) in enumerate(_weight_parts(weight.centred(), axis)):
            name = f"{node.name}/part{x_factor}_{number}"
            matrix = writer.constants(f"{weight.tensor}/part{number}", fr.matrix_weight(node, values))
            acc = writer.cast(
                fr.integer_product(context, node, x, zero, weight=matrix, part=name), np.int64, f"{name}/int64"
            )
            if x_factor * w_factor != 1:
                factor = writer.constants(f"factor_{x_factor * w_factor}", np.int64(x_factor * w_factor))
                acc = b.op("Mul", acc, factor, name=f"{name}/weighted")
            total = acc if total is None else b.op("Add", total, acc, name=f"{name}/sum")
    assert total is not None  # noqa: S101  (there is always a part; narrows the type)
    if plan.bias is not None:
        bias = fr.along_channels(plan.bias, context.graph, node.outputs[0])
        total = b.op("Add", total, writer.constants(f"{node.name}/bias64", bias), name=f"{node.name}/bias")
    return total


def window_sum(context: Context, writer: IntegerWriter, node: Node, value: ir.Value) -> ir.Value:
    """Write the sums of a sliding window over integers of up to 17 bits, in float64.

    The integers are added by bytes, so that float32 convolutions stay exact (windows of up to 2^15 elements).
    """
    b, name = writer.builder, node.name
    ones, attributes = fr.window_ones(context, node)
    weight = writer.constants(f"{name}/ones", ones.astype(np.float32))
    byte = writer.constants("byte_float", np.float32(256))
    real = writer.cast(value, np.float32, f"{name}/real")
    high = b.op("Floor", b.op("Div", real, byte, name=f"{name}/bytes"), name=f"{name}/high")
    low = b.op("Sub", real, b.op("Mul", high, byte, name=f"{name}/high_part"), name=f"{name}/low")
    sums = [
        writer.cast(b.op("Conv", part, weight, name=f"{name}/{side}_sum", **attributes), np.float64, f"{name}/{side}64")
        for side, part in (("high", high), ("low", low))
    ]
    raised = b.op("Mul", sums[0], writer.constants("byte_double", np.float64(256)), name=f"{name}/raised")
    return b.op("Add", raised, sums[1], name=f"{name}/sum")


def needs_parts(plan: Accumulate, data: DType, weight: WeightTensor, channel_axis: int) -> bool:
    """Return whether a single ConvInteger or MatMulInteger cannot make the sums."""
    if plan.limit is not None and plan.limit.width >= 32:
        return True
    if data.bits > 8 or weight.dtype.bits > 8 or plan.bound > DType.INT32.qmax:
        return True
    if not weight.has_zero_point:
        return False
    terms = weight.values.size // weight.values.shape[channel_axis]  # q_w and z_w are summed apart from each other
    return bool(terms * BYTE_PEAK * BYTE_PEAK > DType.INT32.qmax)


def limited(writer: IntegerWriter, value: ir.Value, limit: Limit, name: str) -> ir.Value:
    """Write exact sums (int32 or int64) as the accumulator's type holds them, as int32 (int64 for a wider one)."""
    wide = limit.width > 32
    if limit.overflow is Overflow.WRAP and limit.width != limit.dtype.bits:
        return _wrapped(writer, value, limit, name)
    if limit.overflow is Overflow.WRAP:
        narrow = writer.cast(value, limit.dtype.numpy, f"{name}/wrapped")
        return narrow if limit.dtype.bits >= 32 else writer.cast(narrow, np.int32, f"{name}/limited")
    real = writer.cast(value, np.float64, f"{name}/double")
    bounds = [
        writer.constants(f"{name}/{side}", np.float64(v)) for side, v in (("least", limit.qmin), ("most", limit.qmax))
    ]
    clipped = writer.builder.op("Clip", real, *bounds, name=f"{name}/saturated")
    return writer.cast(clipped, np.int64 if wide else np.int32, f"{name}/limited")


def _wrapped(writer: IntegerWriter, value: ir.Value, limit: Limit, name: str) -> ir.Value:
    """Return the low bits of sums, of a width that no type has: m = v mod 2^b, less 2^b from 2^(b-1) on.

    Nothing is added before the remainder is taken, so nothing can overflow here.
    """
    b, turn = writer.builder, 1 << limit.width
    wide = writer.cast(value, np.int64, f"{name}/int64")
    turns, half = (writer.constants(f"{name}/{n}", np.int64(v)) for n, v in (("turn", turn), ("half", turn // 2)))
    rest = b.op("Mod", wide, turns, name=f"{name}/rest")
    upper = b.op("Div", rest, half, name=f"{name}/upper")
    wrapped = b.op("Sub", rest, b.op("Mul", upper, turns, name=f"{name}/beyond"), name=f"{name}/wrapped")
    return wrapped if limit.width > 32 else writer.cast(wrapped, np.int32, f"{name}/limited")


def _data_parts(
    writer: IntegerWriter, name: str, q: Quantizer, stored: ir.Value
) -> list[tuple[int, ir.Value, ir.Value | None]]:
    """Return (factor, 8-bit values, zero point) of each part."""
    if q.dtype.bits <= 8:
        narrow = writer.cast(stored, q.dtype.numpy, f"{name}/stored")
        return [(1, narrow, writer.constants(f"{q.tensor}/zero8", np.asarray(q.zero_point, q.dtype.numpy)))]
    b = writer.builder
    wide = writer.cast(stored, np.int32, f"{name}/int32")
    byte = writer.constants("byte", np.int32(256))
    low = b.op("Mod", wide, byte, name=f"{name}/low")
    high = b.op("Div", b.op("Sub", wide, low, name=f"{name}/without_low"), byte, name=f"{name}/high")
    top: Any = np.int8 if q.dtype.signed else np.uint8
    z_low, z_high = q.zero_point % 256, q.zero_point // 256
    return [
        (256, writer.cast(high, top, f"{name}/high8"), writer.constants(f"{q.tensor}/zero_high", top(z_high))),
        (1, writer.cast(low, np.uint8, f"{name}/low8"), writer.constants(f"{q.tensor}/zero_low", np.uint8(z_low))),
    ]


def _weight_parts(values: Array, channel_axis: int) -> list[tuple[int, Array]]:
    """Return (factor, int8 values) of each part; the low byte is signed, so a high one beyond int8 is split."""
    if values.dtype == np.int8:
        return _fitting(1, values, channel_axis)
    whole = values.astype(np.int32)
    low = (whole + 128) % 256 - 128
    high = (whole - low) // 256
    parts = [(1, low)]
    while np.any(high):
        part = np.clip(high, -128, 127)
        parts.append((256, part))
        high = high - part
    return [q for f, p in parts for q in _fitting(f, p.astype(np.int8), channel_axis)]


def _fitting(factor: int, values: Array, channel_axis: int) -> list[tuple[int, Array]]:
    """Return the part as it is, or cut into digits of base 16 where the sums of its products could leave int32."""
    sums = np.abs(values.astype(np.int64)).sum(axis=tuple(a for a in range(values.ndim) if a != channel_axis))
    if int(np.max(sums, initial=0)) * BYTE_PEAK <= DType.INT32.qmax:
        return [(factor, values)]
    low = (values.astype(np.int32) + 8) % 16 - 8
    high = (values - low) // 16
    return [(factor * 16, high.astype(np.int8)), (factor, low.astype(np.int8))]
