"""Ranges that are computed from each sample: DynamicQuantizeLinear with integer products, and what they are fused to.

The sum of products, times the scale of the data and the scale of the weight, is the float product. Where a file has
these factors after the sum, in whatever order, the float op replaces all of it.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, new_node, only_user, operand
from quantpipe.graph.op_tables import INTEGER_OPS
from quantpipe.intake.quantized.grids import grid_of, refuse_scales, unpacked, whole
from quantpipe.intake.quantized.quantized_ops import (
    ADD,
    AXES,
    CAST,
    CONV,
    DIVIDE,
    DYNAMIC_MATMUL,
    MATMUL,
    MULTIPLY,
    RESHAPES,
    ROUNDINGS,
    TO_FLOAT,
)
from quantpipe.intake.quantized.walk import FLOAT, DequantizeWalk
from quantpipe.types import DType, ImportedGrid


def dynamic_quantize(walk: DequantizeWalk, node: ir.Node) -> None:
    """Note whose integers a DynamicQuantizeLinear gives, and by which scale."""
    real = node.inputs[0]
    if real is not None:
        walk.forms["dynamic"] = None
        walk.keep(node.outputs[0], real, None)
        walk.dynamic[node.outputs[1]] = real


def integer_product(walk: DequantizeWalk, node: ir.Node) -> None:
    """Replace an integer product, and the factors after it, by the float product."""
    data, weight = node.inputs[0], node.inputs[1]
    op = INTEGER_OPS[node.op_type].op
    if data is None or weight is None or (known := walk.stored.get(data)) is None:
        return
    other = walk.stored.get(weight)
    # The weight's own grid is not said here: its scale is a factor behind the sum.
    wanted = {scale for scale, real in walk.dynamic.items() if real is known.real}
    if other is not None and not other.constant:
        wanted |= {scale for scale, real in walk.dynamic.items() if real is other.real}
    found = _factors(walk, node, wanted, constant_too=weight.const_value is not None)
    if found is None:
        return
    last, factor, bias = found
    if bias is not None and op != CONV:
        return
    if weight.const_value is not None and factor is not None:
        zero = operand(node, 3)
        scale = new_constant(walk.graph, f"{weight.name}/scale", factor)
        grid = grid_of(node, scale, zero, weight, axis=AXES[op](node))
        if grid is None:
            return
        real_weight = walk.constant(node, weight, grid)
    elif other is not None:
        real_weight = other.real
    else:
        return
    inputs = [known.real, real_weight, *([bias] if bias is not None else [])]
    real = walk.node(node, op, inputs, output=walk.free_name(f"{node.outputs[0].name}_real"))
    walk.replace(last, real, node)


def _factors(
    walk: DequantizeWalk, node: ir.Node, wanted: set[ir.Value], *, constant_too: bool
) -> tuple[ir.Value, np.ndarray | None, ir.Value | None] | None:
    """Return (the value after all factors of an integer sum, the constant factor, a bias that is added to the sum).

    None if some factor is missing; each is expected in a Mul after a Cast.
    """
    value, factor, bias, left = node.outputs[0], None, None, set(wanted)
    while left or (constant_too and factor is None):
        reader = only_user(value, walk.graph)
        if reader is None:
            return None
        if is_op(reader, CAST):
            value = reader.outputs[0]
            continue
        if is_op(reader, ADD) and bias is None:
            bias = _bias(next((v for v in reader.inputs if v is not value), None))
            if bias is None:
                return None
            value = reader.outputs[0]
            continue
        if not is_op(reader, MULTIPLY):
            return None
        other = next((v for v in reader.inputs if v is not value), None)
        for part in _parts(other):
            if part in left:
                left.discard(part)
            elif (array := constant(part)) is not None and array.dtype.kind == "f" and factor is None:
                factor = array.reshape(-1) if array.size > 1 else array.reshape(())
            else:
                return None
        value = reader.outputs[0]
    return value, factor, bias


def _bias(value: ir.Value | None) -> ir.Value | None:
    """Return the constant b of floor(b / scale), as integers, which files of onnx.quantize add to an unscaled sum.

    That tool, before onnxruntime had its own, divides biases by the scale of each sample at run time.
    """
    node = None if value is None else value.producer()
    while node is not None and is_op(node, *RESHAPES, CAST, *ROUNDINGS):
        value = node.inputs[0]
        node = None if value is None else value.producer()
    if node is None or not is_op(node, DIVIDE) or constant(node.inputs[0]) is None:
        return None
    return node.inputs[0]


def _parts(value: ir.Value | None) -> list[ir.Value]:
    """Return the values that a product of scales is made of."""
    producer = None if value is None else value.producer()
    if value is None:
        return []
    if producer is not None and is_op(producer, MULTIPLY):
        return [p for v in producer.inputs for p in _parts(v)]
    if producer is not None and is_op(producer, *RESHAPES):
        return _parts(producer.inputs[0])
    return [value]


def fused_product(walk: DequantizeWalk, node: ir.Node) -> None:
    """Put a MatMul in the place of onnxruntime's product of real or dynamically quantized data with integer weights."""
    at = _PORTS[node.op_type]
    data, weight = node.inputs[0], node.inputs[1]
    known = walk.stored.get(data) if data is not None else None
    real = data if node.op_type == DYNAMIC_MATMUL else None if known is None else known.real
    if real is None or weight is None or weight.const_value is None:
        return
    grid = grid_of(node, operand(node, at["scale"]), operand(node, at["zero"]), weight, axis=-1)
    if grid is None:
        return
    if node.op_type == DYNAMIC_MATMUL:
        walk.forms["dynamic"] = None
        walk.dynamic.setdefault(node.outputs[0], real)
    _product(walk, node, real, walk.constant(node, weight, grid), bias=operand(node, at["bias"]))


_PORTS = {
    DYNAMIC_MATMUL: {"scale": 2, "zero": 3, "bias": 4},
    TO_FLOAT: {"scale": 3, "zero": 5, "bias": 6},
}


def _product(walk: DequantizeWalk, node: ir.Node, data: ir.Value, weight: ir.Value, *, bias: ir.Value | None) -> None:
    """Write a MatMul, and an Add for a bias, in the place of one node."""
    out = node.outputs[0]
    made = new_node(walk.graph, node, MATMUL, [data, weight], name=node.name)
    made.name, made.type = walk.free_name(f"{out.name}_product"), FLOAT
    if bias is not None:
        made = new_node(walk.graph, node, ADD, [made, bias], name=f"{node.name}/bias")
        made.name, made.type = walk.free_name(f"{out.name}_real"), FLOAT
    walk.replace(out, made, node)


def packed_product(walk: DequantizeWalk, node: ir.Node) -> None:
    """Put a MatMul in the place of MatMulNBits, whose weights lie packed in blocks along the reduction."""
    data, packed = node.inputs[0], constant(node.inputs[1])
    steps = constant(node.inputs[2])
    rows, depth, bits, block = (
        int(attribute(node, k, d)) for k, d in (("N", 0), ("K", 0), ("bits", 4), ("block_size", 32))
    )
    if data is None or packed is None or steps is None or bits not in (2, 4, 8) or operand(node, 4) is not None:
        return
    blocks = -(-depth // block)
    values = unpacked(packed.reshape(rows, blocks, -1), bits, block).reshape(rows, -1)[:, :depth]
    zero = _block_zeros(node, rows, blocks, bits)
    if zero is None:
        return
    scale = steps.astype(np.float32).reshape(rows, blocks)
    refuse_scales(node, scale, constant=True)
    kind = DType.UINT4 if bits < 8 else DType.UINT8
    high = (1 << bits) - 1
    if blocks == 1:
        grid, size = ImportedGrid(scale.reshape(-1), zero.reshape(-1), kind, 0, high, 1), 0
    else:
        grid, size = ImportedGrid(scale.T.copy(), zero.T.copy(), kind, 0, high, 0), block
    walk.forms["weights only"] = None
    source = node.inputs[1]
    assert source is not None  # noqa: S101  (it is a constant)
    weight = walk.given(node, source, np.ascontiguousarray(values.T), grid, block=size)
    _product(walk, node, data, weight, bias=operand(node, 5))


def _block_zeros(node: ir.Node, rows: int, blocks: int, bits: int) -> np.ndarray | None:
    """Return the zero point of each block, `[rows, blocks]`; None if they are floats."""
    value = operand(node, 3)
    if value is None:
        return np.full((rows, blocks), 1 << (bits - 1), np.int64)
    found = whole(value)
    if found is None or found.dtype != np.uint8:
        return None
    return unpacked(found.reshape(rows, -1), bits, blocks).astype(np.int64)
