"""Sizes of axes that a model's inputs fix, as constants: exporters compute factors of scores from them at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common_passes

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, take_place
from quantpipe.graph.external_weights import copied
from quantpipe.graph.symbolic_axes import Axes
from quantpipe.intake.rewrites.axes import SHAPE, Infer

SELECTING = ("Gather", "Slice")


def sizes_known(model: ir.Model, infer: Infer) -> ir.Model:
    """Return the model with the known sizes that it takes from a Shape as constants; itself without such sizes."""
    if not any(_shape_of(node) for node in model.graph):
        return model
    copy = copied(model)
    common_passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    known, changed = infer(copy), False
    for node in list(copy.graph):
        sizes = _sizes(node, known)
        if sizes is None:
            continue
        take_place(node.outputs[0], new_constant(copy.graph, f"{node.name}_size", sizes))
        copy.graph.remove(node, safe=True)
        changed = True
    common_passes.RemoveUnusedNodesPass()(copy)
    return copy if changed else model


def _shape_of(node: ir.Node) -> ir.Node | None:
    """Return the Shape that a node selects sizes of, where its result stays inside the graph."""
    if not is_op(node, *SELECTING) or node.outputs[0].is_graph_output() or node.inputs[0] is None:
        return None
    maker = node.inputs[0].producer()
    return maker if is_op(maker, SHAPE) else None


def _sizes(node: ir.Node, known: Mapping[str, Axes]) -> np.ndarray[Any, Any] | None:
    """Return the sizes that a node selects, int64; None if it selects no sizes, or unknown ones."""
    shape = _shape_of(node)
    value = shape.inputs[0] if shape is not None else None
    axes = known.get(value.name or "") if value is not None else None
    numbers = [constant(v) for v in node.inputs[1:]]
    if shape is None or axes is None or any(n is None for n in numbers):
        return None
    every = np.array(list(axes), object)[attribute(shape, "start", 0) : attribute(shape, "end", None)]
    try:
        found = np.asarray(_selected(node, every, [np.asarray(n) for n in numbers]))
    except (IndexError, ValueError):
        return None
    whole = all(isinstance(size, int) for size in found.reshape(-1))
    return found.astype(np.int64) if whole else None


def _selected(node: ir.Node, every: Any, numbers: list[np.ndarray[Any, Any]]) -> Any:
    if is_op(node, "Gather"):
        return every[numbers[0]]
    steps = int(numbers[3].reshape(-1)[0]) if len(numbers) > 3 else 1
    first, last = (int(n.reshape(-1)[0]) for n in numbers[:2])
    return every[first:last:steps]
