"""Kernels that go element by element: additions, products, clamps, functions, the larger and the smaller of two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Node
from quantpipe.intake.tflite.layout import Order, laid, place, plain, turned
from quantpipe.intake.tflite.operators import ADDITIONS, EXTREMES, TABLED
from quantpipe.oprules.definitions import specified
from quantpipe.realize.tflite.clamps import ALONE, bounds, clamped, fused, limited
from quantpipe.realize.tflite.walk import TfliteWalk, Writer, bounds_of
from quantpipe.types import (
    DType,
    Form,
    FunctionKind,
    Kernel,
    Lookup,
    Move,
    Operand,
    Product,
    Program,
    Quantizer,
    RequantizeKind,
    Sum,
)

GRIDS: Mapping[str, tuple[float, int]] = {"Sigmoid": (1 / 256, -128), "Softmax": (1 / 256, -128), "Tanh": (1 / 128, 0)}
"""What those kernels store their results in: scale and zero point."""
GRID_16 = (1 / 32768, 0)
"""The same of 16 bits."""
OWN_16: Mapping[tuple[str, FunctionKind], tuple[str, str | None]] = {
    ("Sigmoid", FunctionKind.TFLITE): ("LOGISTIC", None),
    ("Tanh", FunctionKind.TFLITE): ("TANH", None),
    ("LeakyRelu", FunctionKind.TFLITE): ("LEAKY_RELU", "LeakyReluOptions"),
}
"""Functions of 16 bits, by how the device forms them -> the operator that does it so, and the table of its options."""


def aligned(walk: TfliteWalk, operand: Operand, order: Order) -> int:
    """Return an operand with as many axes as the result, in the order of the result.

    ONNX aligns shapes at their ends, so axes of one element are put in front.
    """
    shape, rank = walk.graph.shapes[operand.tensor], len(order)
    if len(shape) == rank:
        return walk.operand(operand, order)
    whole = (*[1] * (rank - len(shape)), *shape)
    name = f"{operand.tensor} (aligned)"
    if walk.graph.is_constant(operand.tensor):
        q = walk.plan.quantizers[operand.tensor]
        values = turned(walk.plan.constants[operand.tensor].reshape(whole), order)
        return walk.file.constant(name, values, q.dtype, walk.grid(operand.tensor))
    value = walk.operand(operand, plain(len(shape)))
    if walk.is_free(operand.tensor, plain(len(shape))):
        walk.single = True  # the axis of the samples is not the first one any more
    made = walk.temporary(f"{name} plain", whole, operand.tensor)
    walk.reshape(value, made, whole)
    if order == plain(rank):
        return made
    result = walk.temporary(name, laid(whole, order), operand.tensor)
    walk.transposes += 1
    walk.file.operator("TRANSPOSE", [made, walk.numbers(f"{name}/order", order)], [result], 2, kind="TransposeOptions")
    return result


def addition(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Add or Sub."""
    plan = walk.plan.kernels[kernel.node]
    assert isinstance(plan, Sum)  # noqa: S101  (the planner pairs families with plans; narrows the type)
    if plan.output is None or any(t.form is not Form.QUANTIZED for t in plan.terms):
        raise walk.refused("an accumulator goes into its sum or out of it; legal is add_inputs: both")
    op, kind = ADDITIONS[node.op]
    general = {"potScaleInt16": False}  # of 16 bits: scales need not be powers of two
    order = walk.common_order(kernel, kernel.output)
    inputs = [aligned(walk, o, order) for o in kernel.operands]

    def write(result: int, activation: int) -> None:
        walk.file.operator(op, inputs, [result], 2, kind=kind, fusedActivationFunction=activation, **general)

    clamped(walk, kernel, plan.output, order, write=write)


def product(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Mul of two stored tensors."""
    plan = walk.plan.kernels[kernel.node]
    assert isinstance(plan, Product)  # noqa: S101
    order = walk.common_order(kernel, kernel.output)
    inputs = [aligned(walk, o, order) for o in kernel.operands]
    if inputs[0] == inputs[1] and plan.output.kind is RequantizeKind.FLOAT_MULTIPLIER:
        inputs[1] = _renamed(walk, inputs[0], kernel.operands[0].tensor, order)

    def write(result: int, activation: int) -> None:
        walk.file.operator("MUL", inputs, [result], 2, kind="MulOptions", fusedActivationFunction=activation)

    clamped(walk, kernel, plan.output, order, write=write)


def _renamed(walk: TfliteWalk, value: int, tensor: str, order: Order) -> int:
    """Return a copy under another name: of a product of one tensor with itself XNNPACK makes a float32 square."""
    shape = walk.file.shape(value)
    result = walk.temporary(f"{walk.file.name(value)} (again)", shape, tensor)
    walk.reshape(value, result, shape, order)
    return result


def clamp(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write a Relu or Clip that no kernel took in."""
    plan = walk.plan.kernels[kernel.node]
    assert isinstance(plan, Move)  # noqa: S101
    order = walk.common_order(kernel, kernel.output)
    q = walk.plan.quantizers[kernel.output]
    low, high = bounds_of(q, plan.low, plan.high)
    value = walk.operand(kernel.operands[0], order)
    name = fused(q, low, high)
    if name is not None and name in ALONE:
        result = walk.make(kernel.output, order)
        walk.file.operator(name, [value], [result], ALONE[name])
    else:
        steps = bounds(q, low, high)
        result = walk.make(kernel.output, order) if steps else value
        limited(walk, kernel.output, value, result, steps=steps)
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def extreme(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Max or Min of several tensors, two at a time."""
    order = walk.common_order(kernel, kernel.output)
    value, *others = (aligned(walk, o, order) for o in kernel.operands)
    for number, other in enumerate(others):
        last = number + 1 == len(others)
        sizes = zip(walk.file.shape(value), walk.file.shape(other), strict=True)
        shape = [max(a, b) for a, b in sizes]
        name = f"{kernel.output} ({number})"
        result = walk.make(kernel.output, order) if last else walk.temporary(name, shape, kernel.output)
        walk.file.operator(EXTREMES[node.op], [value, other], [result], 2, kind="MaximumMinimumOptions")
        value = result
    walk.keep(kernel.output, Form.QUANTIZED, order, value)


def function(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write a function of one tensor: TFLite's own operator where it gives the same, else a lookup in a constant.

    The lookup is CAST to int32, ADD, and GATHER in the table: a few times slower, and exact for any function.
    """
    plan = walk.plan.kernels[kernel.node]
    assert isinstance(plan, Lookup)  # noqa: S101
    data, out = walk.plan.quantizers[kernel.operands[0].tensor], walk.plan.quantizers[kernel.output]
    order = walk.common_order(kernel, kernel.output)
    value = walk.operand(kernel.operands[0], order)
    result = walk.make(kernel.output, order)
    walk.keep(kernel.output, Form.QUANTIZED, order, result)
    if data.dtype.bits > 8:
        _of_16(walk, node, plan, value=value, result=result)
        return
    if _is_own(node.op, plan, data, out):
        walk.file.operator(TABLED[node.op], [value], [result], 2)
        return
    shape, name = walk.file.shape(value), kernel.node
    rows, codes = plan.table.shape
    first = np.asarray(-data.dtype.qmin, np.int32).reshape([1] * len(shape))
    if plan.axis is not None:
        where = [1] * len(shape)
        where[place(plan.axis, order)] = rows
        first = first + (np.arange(rows, dtype=np.int32) * np.int32(codes)).reshape(where)
    wide, index = (walk.file.tensor(f"{name}/{n}", shape, DType.INT32, free=order[0] == 0 and walk.free) for n in "ab")
    types = {k: walk.file.enum("TensorType", t) for k, t in (("inDataType", "INT8"), ("outDataType", "INT32"))}
    walk.file.operator("CAST", [value], [wide], 1, kind="CastOptions", **types)
    start = walk.file.constant(f"{name}/first", first, DType.INT32)
    walk.file.operator("ADD", [wide, start], [index], 1, kind="AddOptions")
    table = walk.file.constant(f"{name}/table", plan.table.reshape(-1), out.dtype, walk.grid(kernel.output))
    walk.file.operator("GATHER", [table, index], [result], 2, kind="GatherOptions", axis=0)
    _record(walk, node, plan, result=result, order=order)


def _record(walk: TfliteWalk, node: Node, plan: Lookup, *, result: int, order: Order) -> None:
    """Record the function of a table in the file, for those who read it."""
    function = specified(node, walk.graph)
    if function is None:
        return
    out = walk.plan.quantizers[walk.topology.kernel_of[node.name].output]
    low, high = bounds_of(out, plan.low, plan.high)
    ends = [(low, out.dtype.qmin), (high, out.dtype.qmax)]
    walk.functions[result] = {
        **function,
        "bounds": [None if q == end else float(out.scale) * (q - out.zero_point) for q, end in ends],
        "shapes": [list(walk.graph.shapes[t]) for t in node.inputs[1:] if t],
        "axes": list(order),
    }


def _of_16(walk: TfliteWalk, node: Node, plan: Lookup, *, value: int, result: int) -> None:
    """Write a 16-bit function by the operator that computes it as the device does, with its bounds after it."""
    own, out = OWN_16.get((node.op, plan.kind)), walk.plan.quantizers[node.outputs[0]]
    if own is None:
        known = ", ".join(op for op, _ in OWN_16)
        raise walk.refused(f"its table has 65536 entries; legal are functions of 8 bits, and of 16 bits {known}")
    op, kind = own
    if kind is None and not is_at(out, *GRID_16):
        raise walk.refused(f"its result must be stored at the scale 1/32768 and zero point 0, not {float(out.scale):g}")
    options = {"alpha": float(node.attr("alpha", 0.01))} if kind is not None else {}
    steps = bounds(out, plan.low, plan.high)
    first = walk.temporary(f"{out.tensor} (wide)", walk.file.shape(result), out.tensor) if steps else result
    walk.file.operator(op, [value], [first], 2, kind=kind, **options)
    limited(walk, out.tensor, first, result, steps=steps)


def is_at(q: Quantizer, scale: float, zero: int) -> bool:
    """Return whether a tensor is stored at a scale and zero point."""
    return np.float32(q.scale) == np.float32(scale) and q.zero_point == zero


def softmax(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write a Softmax that the device forms in fixed point, as TFLite does; its rows lie along the last axis."""
    plan = walk.plan.kernels[kernel.node]
    if not isinstance(plan, Program) or plan.kind is not FunctionKind.TFLITE:
        raise walk.refused("legal is a Softmax formed as TFLite does (functions: {Softmax: tflite})")
    out = walk.plan.quantizers[kernel.output]
    scale, zero = GRIDS["Softmax"] if out.dtype.bits == 8 else GRID_16
    if not is_at(out, scale, zero):
        raise walk.refused(f"its result must be stored at the scale 1/{1 / scale:g} and zero point {zero}")
    rank = len(walk.graph.shapes[kernel.output])
    axis = node.attr("axis", -1) % rank
    found = [o for o in walk.orders(kernel.operands[0].tensor) if o[-1] == axis]
    order = found[0] if found else (*(a for a in range(rank) if a != axis), axis)
    value, result = walk.operand(kernel.operands[0], order), walk.make(kernel.output, order)
    walk.file.operator("SOFTMAX", [value], [result], 2, kind="SoftmaxOptions", beta=1.0)
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def _is_own(op: str, plan: Lookup, data: Quantizer, out: Quantizer) -> bool:
    """Return whether TFLite's operator looks up the same table."""
    if op not in TABLED or data.dtype is not DType.INT8 or plan.axis is not None:
        return False
    if not is_at(out, *GRIDS[op]):
        return False
    return np.array_equal(plan.table[0], _own_table(op, data, out))


def _own_table(op: str, data: Quantizer, out: Quantizer) -> NDArray[np.int64]:
    """Return the table that LiteRT makes for a function at load: in float32, ties away from zero."""
    codes = np.arange(data.dtype.qmin, data.dtype.qmax + 1, dtype=np.float32)
    real = np.float32(data.scale) * (codes - np.float32(data.zero_point))
    found = np.asarray(FUNCTIONS[op](real), np.float32) / np.float32(out.scale)
    steps = np.sign(found) * np.floor(np.abs(found.astype(np.float64)) + 0.5) + out.zero_point
    return np.asarray(np.clip(steps, out.dtype.qmin, out.dtype.qmax), np.int64)


FUNCTIONS: Mapping[str, Any] = {
    "Sigmoid": lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)),
    "Tanh": np.tanh,
}
"""In float32, as LiteRT's C++ has them."""

WRITERS: Mapping[str, Writer] = {
    **dict.fromkeys(ADDITIONS, addition),
    **dict.fromkeys(EXTREMES, extreme),
    "Mul": product,
    "Softmax": softmax,
    "Relu": clamp,
    "Clip": clamp,
}
