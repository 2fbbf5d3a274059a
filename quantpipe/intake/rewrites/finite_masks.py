"""Replace masks of minus infinity before a Softmax by masks of -1e30, so that every tensor is finite.

Softmax gives exactly zero for either, in float32: exp(-1e30 - m) is zero for every m above -1e29. A tensor that holds
infinities has no range, so a model with such a mask could not be calibrated.

Where a device adds masks in 16 bits and never in float, -1e30 or -3.4e38 leave no step for the scores. There they
become -64: exp(-64) is 10^-28, nothing compared with the weight of any score that is not as far below the others. A
mask may be a sentinel times integers, as in (1 - mask) · -3.4e38 with a mask of int64. No such integer is small enough
to make the product a normal score. Times floats it may be anything, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.graph.edit import constant, is_op, new_constant
from quantpipe.graph.op_tables import SHAPES

SENTINEL = np.float32(-1e30)
"""So far below all scores that several of them may be added, and none is infinite."""

LOW = np.float32(-64.0)
"""So far below all scores that 16 bits hold it and them."""

VERY_LOW = np.float32(-1e4)
"""What is below is a sentinel."""

MASKED, WIDE = ("Add", "Softmax"), 16
"""What a mask goes through, and the bits that hold it beside scores."""

PASSING = (
    "Add", "Where", "Reshape", "Expand", "Transpose", "Unsqueeze", "Squeeze", "Slice", "Identity", "Tile", "Gather",
    "Trilu", "ScatterND",
)  # fmt: skip
"""Ops behind which a sentinel is one still."""

ENDS = ("Softmax", "LogSoftmax")

COMPUTING = ("Add", "Sub", "Mul", "Neg", "Cast")
"""Ops that make whole numbers of whole numbers, beside those behind which a value is the same still."""

ANSWERING = ("Not", "And", "Or", "Xor", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
"""Ops whose results are true or false."""


def finite_mask(graph: ir.Graph, node: ir.Node) -> None:
    """Start at a node that reads a constant with minus infinity, and whose result goes to a Softmax only."""
    _replace(graph, node, _is_mask, lambda a: np.where(np.isneginf(a), SENTINEL, a))


def low_mask(graph: ir.Graph, node: ir.Node) -> bool:
    """Start at a node that reads a constant with sentinels, or is filled with one, and goes to a Softmax only.

    Returns whether the node is another one now.
    """
    ops = (*PASSING, "Mul")
    if is_op(node, "ConstantOfShape"):
        return _fill(graph, node, ops)
    if is_op(node, "Mul") and not all(_is_whole(v) for v in node.inputs):
        return False
    return _replace(graph, node, _is_very_low, lambda a: np.where(a <= VERY_LOW, LOW, a), ops=ops)


def _fill(graph: ir.Graph, node: ir.Node, ops: Collection[str]) -> bool:
    """Fill with the low value what is filled with a sentinel, as masks above a diagonal (Trilu) are."""
    given = node.attributes.get("value")
    if given is None or not _is_very_low(given.as_tensor().numpy()) or not _ends(node, graph, ops):
        return False
    node.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.asarray([LOW])))
    return True


def adds_masks_in_16_bits(declared: Collection[str]) -> bool:
    """Return whether a device adds masks, and takes their Softmax, in integers alone, and of up to 16 bits.

    With fewer bits not even -64 leaves scores enough steps; there a mask is better left to the host. A device that has
    both widths begins with the wider one, if `activations.bits` allows it (`quantpipe.hardware.legality.reachable`).
    """
    if not isinstance(declared, Mapping):
        return False
    rows = [declared.get(op, ()) for op in MASKED]
    whole = all(s.is_integer for signatures in rows for s in signatures)
    return whole and all(any(s.input(0).bits >= WIDE for s in signatures) for signatures in rows)


def _replace(
    graph: ir.Graph,
    node: ir.Node,
    is_mask: Callable[[Array], bool],
    changed: Callable[[Array], Array],
    *,
    ops: Collection[str] = PASSING,
) -> bool:
    changes = False
    if not is_op(node, *ops):
        return changes
    for port, value in enumerate(node.inputs):
        array = constant(value)
        if value is None or array is None or not is_mask(array) or not _ends(node, graph, ops):
            continue
        found = changed(array).astype(np.float32)
        node.replace_input_with(port, new_constant(graph, f"{value.name}_finite", found))
        changes = True
    return changes


def _is_mask(array: NDArray[Any]) -> bool:
    if array.dtype != np.float32:
        return False
    return bool(np.isneginf(array).any()) and not bool(np.isnan(array).any() or np.isposinf(array).any())


def _is_very_low(array: Array) -> bool:
    if array.dtype != np.float32 or not array.size or not np.isfinite(array).all():
        return False
    return bool(array.min() <= VERY_LOW and array.max() <= -VERY_LOW)


def _is_whole(value: ir.Value | None) -> bool:
    """Return whether a value is integral: made of integers, of bools, and of integral constants."""
    if value is None:
        return False
    array, maker = constant(value), value.producer()
    if array is not None:
        return bool(np.isfinite(array).all() and (np.mod(array, 1) == 0).all())
    if value.dtype is not None and value.dtype.numpy().kind in "iub":
        return True
    if maker is None or is_op(maker, *ANSWERING):
        return maker is not None
    read = maker.inputs if is_op(maker, *COMPUTING) else maker.inputs[1:] if is_op(maker, "Where") else maker.inputs[:1]
    return is_op(maker, *COMPUTING, *PASSING) and all(_is_whole(v) for v in read)


def _ends(node: ir.Node, graph: ir.Graph, ops: Collection[str]) -> bool:
    """Return whether everything that these ops make of a node's result, shapes aside, is the input of a Softmax."""
    waiting, seen = list(node.outputs), set(node.outputs)
    while waiting:
        value = waiting.pop()
        if value in graph.outputs or not value.uses():
            return False
        for use in value.uses():
            if is_op(use.node, *ENDS, *SHAPES) or _compares_with_zero(use.node, value):
                continue
            factors = [v for v in use.node.inputs if v is not value] if is_op(use.node, "Mul") else []
            if not is_op(use.node, *ops) or not all(_is_whole(v) for v in factors):
                return False
            new = [out for out in use.node.outputs if out not in seen]
            seen.update(new)
            waiting += new
    return True


def _compares_with_zero(node: ir.Node, value: ir.Value | None) -> bool:
    """Return whether a node asks whether a value is 0, which no sentinel is."""
    others = [constant(v) for v in node.inputs if v is not value]
    return is_op(node, "Equal") and all(array is not None and not array.any() for array in others)
