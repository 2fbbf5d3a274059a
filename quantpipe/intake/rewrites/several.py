"""Ops with several results or any number of operands, as ops with one result of two operands."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, new_node, rank, scalar, take_place

PAIRED = {"Sum": "Add", "Max": "Max", "Min": "Min"}
CLIP_PORT = {"Max": 1, "Min": 2}


def split_to_slices(graph: ir.Graph, node: ir.Node) -> None:
    """Write each result of a Split as a Slice of its input."""
    sizes = _sizes(node) if is_op(node, "Split") and rank(node.inputs[0]) is not None else None
    if sizes is None:
        return
    axis = attribute(node, "axis", 0) % (rank(node.inputs[0]) or 1)
    along = new_constant(graph, f"{node.name}_axis", np.array([axis], np.int64))
    ends = list(accumulate(sizes))
    for number, (output, size, end) in enumerate(zip(node.outputs, sizes, ends, strict=True)):
        name = f"{node.name}_{number}" if number else node.name
        start, stop = (
            new_constant(graph, f"{node.name}_{side}{number}", np.array([at], np.int64))
            for side, at in (("start", end - size), ("end", end))
        )
        take_place(output, new_node(graph, node, "Slice", [node.inputs[0], start, stop, along], name=name))
    graph.remove(node, safe=True)


def _sizes(node: ir.Node) -> list[int] | None:
    """Return the length of each part, None where it follows from the input at run time."""
    given = constant(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "split")
    if given is not None:
        return [int(s) for s in given]
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        return None
    value = node.inputs[0]
    shape = value.shape if value is not None else None
    total = shape[attribute(node, "axis", 0)] if shape is not None else None
    if not isinstance(total, int):
        return None
    part = -(-total // len(node.outputs))
    return [min(part, total - part * n) for n in range(len(node.outputs))]


def top_values_apart(graph: ir.Graph, node: ir.Node) -> None:
    """Write a TopK whose values and positions are both read as two: values keep the scale of its input."""
    if not is_op(node, "TopK") or len(node.outputs) < 2:
        return
    values, positions = node.outputs
    if not all(v.uses() or v.is_graph_output() for v in (values, positions)):
        return
    name = f"{node.name}_positions"
    apart = ir.Node("", "TopK", node.inputs, list(node.attributes.values()), num_outputs=2, name=name)
    graph.insert_before(node, apart)
    apart.outputs[0].name = f"{name}_values"
    take_place(positions, apart.outputs[1])
    positions.name = f"{node.name}_unread"


def fold_to_pairs(graph: ir.Graph, node: ir.Node) -> None:
    """Write a Sum, Max or Min of any number of operands as a chain of ops on two."""
    if not is_op(node, *PAIRED) or (len(node.inputs) == 2 and node.op_type == PAIRED[node.op_type]):
        return
    total = node.inputs[0]
    if len(node.inputs) == 1:
        total = new_node(graph, node, "Identity", [total], name=node.name)
    for number, operand in enumerate(node.inputs[1:], 1):
        last = number == len(node.inputs) - 1
        name = node.name if last else f"{node.name}_{number}"
        total = new_node(graph, node, PAIRED[node.op_type], [total, operand], name=name)
        if not last:
            total.name = f"{name}_partial"
    if total is not None:
        take_place(node.outputs[0], total)
        graph.remove(node, safe=True)


def extreme_to_clip(graph: ir.Graph, node: ir.Node) -> None:
    """Write the greater or the lesser of a tensor and a number as a Clip with one bound."""
    if not is_op(node, *CLIP_PORT) or len(node.inputs) != 2:
        return
    for port in (1, 0):
        bound, data = scalar(node.inputs[port]), node.inputs[1 - port]
        if bound is None or data is None or data.const_value is not None:
            continue
        if rank(data) is None or (rank(node.inputs[port]) or 0) > (rank(data) or 0):
            continue
        limit = new_constant(graph, f"{node.name}_bound", np.asarray(bound, np.float32))
        inputs = [data, limit] if CLIP_PORT[node.op_type] == 1 else [data, None, limit]
        take_place(node.outputs[0], new_node(graph, node, "Clip", inputs, name=node.name))
        graph.remove(node, safe=True)
        return
