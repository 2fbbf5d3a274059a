"""Move row look-ups of a loop (an EmbeddingBag as TorchScript exports it) to a single look-up before the loop.

A part of places, then rows of these: the same as rows of all places, then a part of them. So the lookup is one Gather
of the graph, whose table can be stored in integers, and the loop adds up rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.edit import attribute, constant, is_op, new_node, outside


def rows_in_front(graph: ir.Graph, node: ir.Node) -> None:
    """Look rows up before a Loop whose body slices indices and looks up their rows."""
    if not is_op(node, "Loop"):
        return
    body = node.attributes["body"].as_graph()
    inside = {value.name for inner in body for value in inner.outputs} | {value.name for value in body.inputs}
    around = {value.name: value for made in graph for value in made.outputs} | {v.name: v for v in graph.inputs}
    for inner in list(body):
        if not is_op(inner, "Gather") or attribute(inner, "axis", 0) != 0:
            continue
        table = inner.inputs[0].name if inner.inputs[0] is not None else None
        part = inner.inputs[1].producer() if inner.inputs[1] is not None else None
        if part is None or not _is_part_of_rows(part, graph) or table is None or table in inside:
            continue
        places = part.inputs[0].name if part.inputs[0] is not None else None
        if places in inside or places not in around:
            continue
        held = outside(graph, body, table)
        if held is None:
            continue
        name = inner.name or f"{node.name}_rows"
        inputs = [held, around[places]]
        rows = new_node(graph, node, "Gather", inputs, name=name, attributes={"axis": 0})
        own = ir.Node("", "Slice", [rows, *part.inputs[1:]], num_outputs=1, name=f"{name}_part")
        rows.name, own.outputs[0].name = f"{name}_rows", f"{name}_part_out"
        body.insert_before(inner, own)
        inner.outputs[0].replace_all_uses_with(own.outputs[0], replace_graph_outputs=True)
        body.remove(inner, safe=True)


def _is_part_of_rows(node: ir.Node, graph: ir.Graph) -> bool:
    """Return whether a node is a Slice along the first axis, with steps of one."""
    if not is_op(node, "Slice") or len(node.inputs) < 4:
        return False
    axes, steps = (_known(node.inputs[port], graph) if port < len(node.inputs) else np.ones(1) for port in (3, 4))
    return axes is not None and steps is not None and axes.tolist() == [0] and steps.tolist() == [1]


def _known(value: ir.Value | None, graph: ir.Graph) -> NDArray[Any] | None:
    """Return a constant that a body reads, of its own or of the graph around it."""
    own = constant(value)
    held = graph.initializers.get(value.name or "") if value is not None else None
    return own if own is not None or held is None else constant(held)
