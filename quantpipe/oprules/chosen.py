"""Tell from a graph whether an output holds objects that the model has chosen itself, in place of a row per place."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from quantpipe.graph.view import Graph

CHOOSING = ("NonMaxSuppression", "TopK")
"""Ops that choose among the boxes of a detector."""


SELECTING = ("NonMaxSuppression", "NonZero", "Compress", "Unique")
"""Ops whose results have as many rows as the values make them."""


def is_chosen(graph: Graph, output: str) -> bool:
    """Return whether an op that chooses stands somewhere before an output."""
    return _is_behind(graph, output, CHOOSING)


def selected_outputs(graph: Graph) -> frozenset[str]:
    """Return the outputs whose first axis counts selected objects, in place of samples, in a model without batches.

    A selecting op is before them. On the single sample that the model was measured on they have another number of rows
    than one, or the file gives their first axis another name than the inputs'.
    """
    batches = {_first_axis(port) for port in graph.model.graph.inputs}
    named = {
        port.name
        for port in graph.model.graph.outputs
        if (axis := _first_axis(port)) is not None and axis not in batches
    }
    return frozenset(
        port.name
        for port in graph.outputs
        if len(graph.shapes.get(port.name, ())) > 1
        and (graph.shapes[port.name][0] != 1 or port.name in named)
        and graph.fixed_batch in (None, 1)
        and _is_behind(graph, port.name, SELECTING)
    )


def _first_axis(port: ir.Value) -> str | None:
    """Return the name of a port's first axis; None without a name."""
    first = port.shape[0] if port.shape is not None and len(port.shape) else None
    return first.value if isinstance(first, ir.SymbolicDim) else None


def _is_behind(graph: Graph, output: str, ops: Collection[str]) -> bool:
    """Return whether one of the ops stands somewhere before an output."""
    waiting, seen = [output], {output}
    while waiting:
        node = graph.producers.get(waiting.pop())
        if node is None:
            continue
        if node.op in ops:
            return True
        new = {tensor for tensor in node.inputs if tensor} - seen
        seen |= new
        waiting += new
    return False
