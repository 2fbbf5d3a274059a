"""Rewrite recurrent layers with samples on the first axis (`layout=1`) as the same layers with time first.

onnxruntime's CPU provider runs the latter only.
"""

from __future__ import annotations

import onnx_ir as ir

from quantpipe.graph.edit import attribute, is_op, operand
from quantpipe.graph.external_weights import copied
from quantpipe.intake.rewrites.recurrent.layer import CELLS
from quantpipe.intake.rewrites.recurrent.writer import StepWriter

SEQUENCE, STATE = (1, 0, 2), (1, 0, 2)
"""Axes of the input and of states with time, or directions, first; they are their own inverse."""
RESULT = (2, 0, 1, 3)
"""Axes of all steps `[T, D, B, H]` with samples first: `[B, T, D, H]`."""
DATA, HIDDEN, CELL = 0, 5, 6
"""Inputs that have an axis of samples."""


def time_first(model: ir.Model) -> ir.Model:
    """Return the model with time first in every recurrent layer; itself where it is."""
    if not any(_is_batch_first(node) for node in model.graph):
        return model
    copy = copied(model)
    for node in list(copy.graph):
        if _is_batch_first(node):
            _turn(copy.graph, node)
    return copy


def _is_batch_first(node: ir.Node) -> bool:
    return is_op(node, *CELLS) and bool(int(attribute(node, "layout", 0)))


def _turn(graph: ir.Graph, node: ir.Node) -> None:
    writer = StepWriter(graph, node)
    for port, axes in ((DATA, SEQUENCE), (HIDDEN, STATE), (CELL, STATE)):
        value = operand(node, port)
        if value is not None:
            node.replace_input_with(port, writer.op("Transpose", value, name=f"input{port}_time_first", perm=axes))
    del node.attributes["layout"]
    for place, output in enumerate(node.outputs):
        if not output.name:
            continue
        name = output.name
        order: tuple[int, ...] = RESULT if place == 0 else STATE
        turned = ir.Node("", "Transpose", inputs=[output], attributes=[ir.AttrInt64s("perm", order)], num_outputs=1)
        turned.name = f"{writer.name}/output{place}_samples_first"
        graph.insert_after(node, turned)
        output.replace_all_uses_with(turned.outputs[0], replace_graph_outputs=True)
        turned.replace_input_with(0, output)
        turned.outputs[0].type, turned.outputs[0].shape = output.type, output.shape
        output.name, output.shape = f"{name}_time_first", None
        turned.outputs[0].name = name
