"""Read rows that store their own scale and offset as bytes after their integers, by ops of a graph.

The layout comes from Glow's fused types and FBGEMM. First come the integers of a row (of 4 bits two to a byte, the even
one in the low half). Then follow scale and offset, little-endian IEEE numbers of 32 or 16 bits. ONNX has no op that
reinterprets bytes as a number. So a number is computed from its sign, exponent and fraction, exactly: (hidden digit +
fraction) · power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.view import Node
from quantpipe.lowering.context import Context
from quantpipe.types import RowTable, TableNumbers

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class _Ieee:
    """Describe the byte layout of a number.

    `upper` weighs the bytes that hold sign, exponent and the first digits of the fraction, of which there are `span`.
    `lower` weighs the rest, and `unit` is the value of a first digit in units of it.
    """

    bytes: int
    upper: tuple[float, ...]
    lower: tuple[float, ...]
    span: float
    unit: float
    exponents: int
    bias: int


_FORMATS = {
    TableNumbers.FLOAT32: _Ieee(4, (0, 0, 1, 256), (1, 256, 0, 0), 128, 65536, 256, 150),
    TableNumbers.FLOAT16: _Ieee(2, (1, 256), (0, 0), 1024, 1, 32, 25),
}


def fused_table(table: RowTable) -> Bytes:
    """Return the bytes of a table, `[R, bytes of a row]`: its integers, then scale and offset."""
    kind = np.dtype("<f4" if table.numbers is TableNumbers.FLOAT32 else "<f2")
    offset = np.zeros_like(table.scale) if table.offset is None else table.offset
    numbers = [np.ascontiguousarray(v.astype(kind)).view(np.uint8).reshape(len(v), -1) for v in (table.scale, offset)]
    values: Bytes = table.values.astype(np.uint8)
    if table.dtype.bits == 4:
        even = np.pad(values, ((0, 0), (0, values.shape[1] % 2)))
        values = np.bitwise_or(even[:, 0::2], np.left_shift(even[:, 1::2], 4)).astype(np.uint8)
    return np.concatenate([values, *numbers], axis=1)


def fused_numbers(context: Context, node: Node, table: RowTable, rows: ir.Value) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Write the integers, the scale and the offset of fused rows `[…, bytes of a row]`, as float32.

    The integers have the shape of the node's output; scale and offset broadcast against them.
    """
    b, name = context.builder, node.name
    width = _FORMATS[table.numbers].bytes
    columns = table.values.shape[1]
    inside = -(-columns * table.dtype.bits // 8)
    real = b.op("Cast", rows, name=f"{name}/bytes", to=int(ir.DataType.FLOAT))
    integers = _part(context, table, real, (0, inside), name=f"{name}/integers")
    if table.dtype.bits == 4:
        integers = _halves(context, table, integers, name)
    integers = _shaped(context, node, table, integers, tail=table.shape[1:])
    found = [
        _number(
            context, table, _part(context, table, real, (at, at + width), name=f"{name}/{which}"), f"{name}/{which}"
        )
        for which, at in (("scale", inside), ("offset", inside + width))
    ]
    ones = (1,) * (len(table.shape) - 1)
    scale, offset = (_shaped(context, node, table, v, tail=ones) for v in found)
    return integers, scale, offset


def _constant(context: Context, table: RowTable, what: str, values: Any) -> ir.Value:
    return context.builder.constant(f"{table.tensor}/{what}", np.asarray(values))


def _part(context: Context, table: RowTable, rows: ir.Value, columns: tuple[int, int], *, name: str) -> ir.Value:
    """Write some columns of rows, from the first up to the second."""
    ends = [np.asarray([v], np.int64) for v in (*columns, -1)]
    bounds = [_constant(context, table, f"at{int(v[0])}", v) for v in ends]
    return context.builder.op("Slice", rows, *bounds, name=name)


def _halves(context: Context, table: RowTable, rows: ir.Value, name: str) -> ir.Value:
    """Write two integers of 4 bits from each byte, the low nibble first."""
    b = context.builder
    sixteen = _constant(context, table, "sixteen", np.float32(16))
    high = b.op("Floor", b.op("Div", rows, sixteen, name=f"{name}/sixteenths"), name=f"{name}/high")
    low = b.op("Sub", rows, b.op("Mul", high, sixteen, name=f"{name}/above"), name=f"{name}/low")
    last = _constant(context, table, "last", np.asarray([-1], np.int64))
    pair = [b.op("Unsqueeze", v, last, name=f"{name}/{side}_of_two") for v, side in ((low, "low"), (high, "high"))]
    both = b.op("Concat", *pair, name=f"{name}/pairs", axis=-1)
    columns = table.values.shape[1]
    even = columns + columns % 2
    shape = _constant(context, table, "even", np.asarray([-1, even], np.int64))
    flat = b.op("Reshape", both, shape, name=f"{name}/unpacked")
    return _part(context, table, flat, (0, columns), name=f"{name}/columns") if columns % 2 else flat


def _number(context: Context, table: RowTable, octets: ir.Value, name: str) -> ir.Value:
    """Write the exact number stored in bytes; tables hold no numbers below 2^-100."""
    b, form = context.builder, _FORMATS[table.numbers]

    def weighed(weights: tuple[float, ...], part: str) -> ir.Value:
        column = _constant(context, table, part, np.asarray(weights, np.float32).reshape(-1, 1))
        return b.op("MatMul", octets, column, name=f"{name}/{part}")  # whole numbers below 2^24, exact in any order

    upper = weighed(form.upper, "upper")
    span = _constant(context, table, "span", np.float32(form.span))
    place = b.op("Floor", b.op("Div", upper, span, name=f"{name}/share"), name=f"{name}/exponent")
    first = b.op("Sub", upper, b.op("Mul", place, span, name=f"{name}/whole"), name=f"{name}/first")
    index = b.op("Cast", place, name=f"{name}/index", to=int(ir.DataType.INT32))
    exponent = np.arange(form.exponents, dtype=np.float64)
    powers = np.ldexp(1.0, np.minimum(np.maximum(exponent, 1) - form.bias, 127).astype(np.int64))
    powers = np.where(powers < 2.0**-126, 0.0, powers)  # a runtime may take numbers this small for 0
    hidden = np.where(exponent > 0, form.span * form.unit, 0.0)
    tables = {
        "powers": np.concatenate([powers, -powers]).astype(np.float32),
        "hidden": np.concatenate([hidden, hidden]).astype(np.float32),
    }
    power, digit = (
        b.op("Gather", _constant(context, table, what, values), index, name=f"{name}/{what}", axis=0)
        for what, values in tables.items()
    )
    if form.unit != 1:
        unit = _constant(context, table, "unit", np.float32(form.unit))
        scaled = b.op("Mul", first, unit, name=f"{name}/scaled")
        first = b.op("Add", scaled, weighed(form.lower, "lower"), name=f"{name}/fraction")
    return b.op("Mul", b.op("Add", first, digit, name=f"{name}/digits"), power, name=f"{name}/value")


def _shaped(context: Context, node: Node, table: RowTable, value: ir.Value, *, tail: tuple[int, ...]) -> ir.Value:
    """Write a value `[…, n]`, or `[rows, n]` flattened, with the axes of the places first and `tail` last."""
    places = len(context.graph.shapes[node.inputs[1]])
    flat = table.dtype.bits == 4 and tail == table.shape[1:]
    if len(tail) == 1 and not flat:
        return value
    b = context.builder
    shape = _constant(context, table, f"tail{'x'.join(map(str, tail))}", np.asarray(tail, np.int64))
    where = b.op("Shape", context.real(node.inputs[1]), name=f"{value.name}/places")
    whole = b.op("Concat", where, shape, name=f"{value.name}/shape", axis=0) if places else shape
    return b.op("Reshape", value, whole, name=f"{value.name}/shaped")
