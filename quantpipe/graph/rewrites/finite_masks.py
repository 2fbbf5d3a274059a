"""Masks of minus infinity in front of a Softmax become masks of -1e30: the same function, and every tensor is finite.

Softmax gives exactly zero for either, in float32: exp(-1e30 - m) is zero for every m above -1e29. A tensor that holds
infinities has no range, so a model with such a mask could not be calibrated.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.rewrites.tools import constant, is_op, new_constant

SENTINEL = np.float32(-1e30)
"""So far below all scores that several of them may be added, and none is infinite."""

PASSING = (
    "Add", "Where", "Reshape", "Expand", "Transpose", "Unsqueeze", "Squeeze", "Slice", "Identity", "Tile", "Gather",
)  # fmt: skip
"""Ops behind which a sentinel is one still."""

ENDS = ("Softmax", "LogSoftmax")


def finite_mask(graph: ir.Graph, node: ir.Node) -> None:
    """Start at a node that reads a constant with minus infinity, and whose result goes to a Softmax only."""
    if not is_op(node, *PASSING):
        return
    for port, value in enumerate(node.inputs):
        array = constant(value)
        if array is None or not _is_mask(array) or not _ends(node, graph):
            continue
        assert value is not None  # noqa: S101  (it has a content)
        finite = np.where(np.isneginf(array), SENTINEL, array).astype(np.float32)
        node.replace_input_with(port, new_constant(graph, f"{value.name}_finite", finite))


def _is_mask(array: NDArray[Any]) -> bool:
    if array.dtype != np.float32:
        return False
    return bool(np.isneginf(array).any()) and not bool(np.isnan(array).any() or np.isposinf(array).any())


def _ends(node: ir.Node, graph: ir.Graph) -> bool:
    """Whether whatever is made of a node's result is the input of a Softmax."""
    waiting, seen = list(node.outputs), set(node.outputs)
    while waiting:
        value = waiting.pop()
        if value in graph.outputs or not value.uses():
            return False
        for use in value.uses():
            if is_op(use.node, *ENDS):
                continue
            if not is_op(use.node, *PASSING):
                return False
            new = [out for out in use.node.outputs if out not in seen]
            seen.update(new)
            waiting += new
    return True
