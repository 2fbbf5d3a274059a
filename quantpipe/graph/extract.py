"""Parts of a graph as graphs of their own, runnable on cached tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from quantpipe.graph.op_tables import COUNTED
from quantpipe.graph.view import Graph, Node, view
from quantpipe.types import TensorInfo


def part_of(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    """Return the nodes between `inputs` and `outputs` as a model with exactly these ports.

    The axes of the ports are free: the batch may lie along any of them, or be part of one (a reader may have transposed
    or split it).
    """
    extracted = ir.convenience.extract(graph.model.graph, list(inputs), list(outputs))  # a copy that shares weights
    copy = ir.Model(extracted, ir_version=graph.model.ir_version)
    for value in [*copy.graph.inputs, *copy.graph.outputs]:
        name = value.name or ""
        value.type = ir.TensorType(ir.DataType.from_numpy(np.dtype(graph.dtypes[name])))
        value.shape = ir.Shape(graph.shapes[name] if _is_counted(graph, name) else [None] * len(graph.shapes[name]))
    found = view(copy, graph.model_hash, graph.source)
    kept = {name: getattr(graph, name) for name in ("shapes", "dtypes", "varying", "open_axes", "largest")}
    return replace(found, **kept)


def _is_counted(graph: Graph, name: str) -> bool:
    """Return whether a tensor contains the axis sizes of another one, one number for each."""
    return any(node.op in COUNTED and port > 0 for node, port in graph.consumers.get(name, ()))


def section_of(
    graph: Graph, nodes: Sequence[Node], inputs: Sequence[TensorInfo], outputs: Sequence[TensorInfo]
) -> Graph:
    """Return the same model seen through some of its nodes, to be written by a dialect; nothing is copied.

    `nodes` are in execution order; `inputs` and `outputs` are the ports that they read and give.
    """
    return replace(graph, nodes=tuple(nodes), inputs=tuple(inputs), outputs=tuple(outputs), notes=())
