"""int8 weights in files as uint8 ones, for onnxruntime's exact kernels on CPUs that add pairs of products in int16.

The runtime makes them itself where it is asked for these kernels, in memory and twice. For a model with external
weights that is many times the memory of a layer. So they are made here, one at a time and in files. The runtime has
nothing left to do, because w + 128 about the zero point z + 128 equals w about z.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import constant, new_constant, operand
from quantpipe.graph.external_weights import copied, file_array, place_of, row_blocks
from quantpipe.graph.op_tables import DEQUANTIZE, FLOAT_PRODUCTS, INTEGER_OPS, INTEGER_PRODUCTS

SIGN = np.uint8(0x80)
"""Exclusive or with it adds 128 to an int8 number and reads it as uint8."""

SCALE, ZERO = 1, 2
"""Ports of DequantizeLinear."""

Zero = tuple[ir.Node, int]
"""Where the zero point of a weight stands: a node and the port."""


def unsigned_weights(model: ir.Model) -> ir.Model:
    """Return a copy of the model in which int8 weights in files are uint8 weights in files.

    Only weights change whose readers all multiply uint8 data by them. The model itself is returned if there are no such
    weights. Raises StorageError where the disk has no room.
    """
    if not any(_zeros_of(value) for value in model.graph.initializers.values()):
        return model
    model = copied(model)
    for name, value in list(model.graph.initializers.items()):
        made: dict[ir.Value | None, ir.Value] = {}
        for node, port in _zeros_of(value):
            given = operand(node, port)
            if given not in made:
                made[given] = new_constant(model.graph, f"{name}/unsigned_zero", _unsigned_zero(node, port))
            node.resize_inputs(max(len(node.inputs), port + 1))
            node.replace_input_with(port, made[given])
        if made:
            value.const_value = ir.Tensor(_flipped(value), name=name)
            value.type = ir.TensorType(ir.DataType.UINT8)
    return model


def _zeros_of(value: ir.Value) -> list[Zero]:
    """Return the zero points of a weight, one for each reader; none if it is not a weight to change."""
    tensor = value.const_value
    if tensor is None or tensor.dtype != ir.DataType.INT8 or not place_of(tensor) or value.is_graph_output():
        return []
    found = [_zero_of(node, port) for node, port in value.uses()]
    zeros = [zero for zero in found if zero is not None]
    return zeros if len(zeros) == len(found) else []


def _zero_of(node: ir.Node, port: int) -> Zero | None:
    """Return the place of one reader's zero point, by the port where it reads the weight.

    The result is None if the reader does not multiply uint8 data by the weight, or if the zero point is no constant.
    """
    if node.op_type == DEQUANTIZE:
        users = list(node.outputs[0].uses())
        fits = port == 0 and bool(users) and all(_multiplies_uint8(*user) for user in users)
        needed, zero = operand(node, ZERO) or operand(node, SCALE), (node, ZERO)
    elif node.op_type in INTEGER_PRODUCTS:
        form = INTEGER_OPS[node.op_type]
        (data,), weight = form.data, form.weight
        assert weight is not None and weight.zero is not None and data.zero is not None  # noqa: S101
        fits = port == weight.data and _is_uint8(operand(node, data.zero))
        needed, zero = operand(node, weight.zero), (node, weight.zero)
    else:
        return None
    return zero if fits and (needed is None or needed.const_value is not None) else None


def _multiplies_uint8(node: ir.Node, port: int) -> bool:
    """Return whether a node multiplies data that was uint8 right before it by the value at this port."""
    data = node.inputs[0]
    maker = data.producer() if data is not None else None
    unsigned = maker is not None and maker.op_type == DEQUANTIZE and _is_uint8(operand(maker, ZERO))
    return unsigned and node.op_type in FLOAT_PRODUCTS and port == 1


def _is_uint8(zero: ir.Value | None) -> bool:
    """Return whether this is the zero point of uint8 numbers."""
    return zero is not None and zero.const_value is not None and zero.const_value.dtype == ir.DataType.UINT8


def _unsigned_zero(node: ir.Node, port: int) -> NDArray[np.uint8]:
    """Return the uint8 zero point for the int8 one (absent: 0, in the shape of the scale)."""
    given = constant(operand(node, port))
    if given is not None:
        return np.asarray(given.view(np.uint8) ^ SIGN)
    scale = constant(operand(node, SCALE)) if node.op_type == DEQUANTIZE else None
    return np.full(() if scale is None else scale.shape, SIGN)


def _flipped(value: ir.Value) -> NDArray[np.uint8]:
    weight = constant(value)
    assert weight is not None  # noqa: S101
    found = file_array(weight.shape, np.uint8)
    for rows in row_blocks(weight):
        np.bitwise_xor(weight[rows].view(np.uint8), SIGN, out=found[rows])
    return found
