"""Write the rows that a node looks up in a table of integers, as floats: q · scale + offset.

The rows are looked up as integers, and so are their numbers; the arithmetic is on the results. (A DequantizeLinear of
the whole table before the node would dequantize all of it in every run.)

Files of this feature, all `embedding_table.py`: `types`, `annotate` (decides), `lowering` (writes); numbers:
`plan/table_numbers.py`.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.view import Node
from quantpipe.lowering.context import Context
from quantpipe.lowering.fused_rows import fused_numbers, fused_table
from quantpipe.types import Form, RowTable, TableLayout, TableNumbers

OF_TABLES = " (rows)"
"""What the names of integers that are looked up end with: they are integers of a float node, no tensor of the plan."""


def look_up(context: Context, node: Node) -> ir.Value:
    """Write a node that looks rows up; return the float values that it gives."""
    table = context.plan.tables[context.topology.table_of[node.name].tensor]
    places, found = context.real(node.inputs[1]), f"{node.outputs[0]}_rows"
    fused = table.layout is TableLayout.FUSED
    values = fused_table(table) if fused else table.values.reshape(table.shape)
    stored = context.dialect.rows(context, table, f"{table.tensor}_{'fused' if fused else 'q'}", values)
    rows = context.builder.op("Gather", stored, places, name=node.name, output=found, axis=0)
    context.set(f"{node.outputs[0]}{OF_TABLES}", Form.QUANTIZED, rows)
    offset: ir.Value | None
    if fused:
        integers, scale, offset = fused_numbers(context, node, table, rows)
    else:
        integers = context.builder.op("Cast", rows, name=f"{node.name}/real", to=int(ir.DataType.FLOAT))
        scale = _number(context, node, table, "scale", places=places)
        offset = None if table.offset is None else _number(context, node, table, "offset", places=places)
    last, output = f"{node.name}/dequantize", node.outputs[0]
    if offset is None:
        return context.builder.op("Mul", integers, scale, name=last, output=output, claim=True)
    product = context.builder.op("Mul", integers, scale, name=f"{node.name}/product")
    return context.builder.op("Add", product, offset, name=last, output=output, claim=True)


def _number(context: Context, node: Node, table: RowTable, which: str, *, places: ir.Value | None) -> ir.Value:
    """Return the scale or the offset of each row found, shaped to broadcast against it."""
    values = table.scale if which == "scale" or table.offset is None else table.offset
    half = table.numbers is TableNumbers.FLOAT16
    shaped = values.reshape([-1] + [1] * (len(table.shape) - 1)).astype(np.float16 if half else np.float32)
    stored = context.dialect.rows(context, table, f"{table.tensor}_{which}", shaped)
    name = f"{node.name}/{which}"
    found = context.builder.op("Gather", stored, places, name=name, axis=0)
    if not half:
        return found
    return context.builder.op("Cast", found, name=f"{name}/float32", to=int(ir.DataType.FLOAT))
