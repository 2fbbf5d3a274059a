"""Where numbers per channel lie: elsewhere they are compared as lists, and the shape of a list does not change it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.ops import is_elementwise
from quantpipe.verify.realized_model import Model

LAST = frozenset({"MatMulInteger", "MatMul"})
"""Products with their channels on the last axis."""
SPATIAL = frozenset({"ConvInteger", "Conv", "ConvTranspose"})
"""Products with as many axes after their channels as their weight has after its first two."""
OTHERWISE = frozenset({"Gather", "QuantizeLinear", "DequantizeLinear"})
"""Element-wise ops whose constants lie along what an attribute says, or along nothing."""


def check_placement(model: Model, plan: Mapping[str, Any]) -> None:
    """Check that constants with several elements lie along the channels of the product whose result they change.

    Numbers per window have two axes, the last two, and must be the numbers of a step in `plan`. `model`: the realized
    model, after all of its kernels were checked.
    """
    steps = (s for k in plan["kernels"].values() for s in k.get("steps", ()) if "numbers" in s and s["op"] != "clip")
    windows = {_held(s["numbers"]) for s in steps} - {None}
    behind: dict[str, int] = {}  # axes behind that of the channels, by value
    for node in model.nodes:
        if id(node) in model.seen_nodes and (node.op_type in LAST or is_elementwise(node)):
            _expect_no_axis_added(model, node)
        found = {behind[i] for i in node.input if i in behind}
        if node.op_type in LAST:
            found = {0}
        elif node.op_type in SPATIAL:
            found = {model.constant(node.input[1]).ndim - 2} if _is_integers(model, node.input[1]) else set()
        elif not is_elementwise(node) or node.op_type in OTHERWISE or model.is_constant(node.output[0]):
            continue
        elif id(node) in model.seen_nodes:
            numbers = (v for v in node.input if _by_channel(model, v))
            found |= {_behind(model, node, v) for v in numbers if _held(model.constant(v)) not in windows}
            expect(len(found) < 2, node.name, "its numbers per channel lie along another axis than the channels")
        behind.update(dict.fromkeys(node.output, min(found)) if len(found) == 1 else {})


def _expect_no_axis_added(model: Model, node: onnx.NodeProto) -> None:
    """A constant with more axes than what it is combined with would give the result further axes in front."""
    read = [model.shapes.get(i) for i in node.input if i and not model.is_constant(i)]
    known = [len(shape) for shape in read if shape is not None]
    if node.op_type in OTHERWISE or not read or len(known) < len(read):
        return
    most = max(known)
    for value in node.input:
        constant = bool(value) and model.is_constant(value)
        more = constant and model.constant(value).ndim > most
        expect(not more, node.name, f"its constant {value} has more axes than what it changes")


def _is_integers(model: Model, weight: str) -> bool:
    """Whether a weight is a constant, and none that is made real: those have their scales along an axis by name."""
    made = model.producer.get(weight)
    return model.is_constant(weight) and (made is None or made.op_type != "DequantizeLinear")


def _by_channel(model: Model, value: str) -> bool:
    return bool(value) and model.is_constant(value) and model.constant(value).size > 1


def _held(values: Any) -> tuple[tuple[int, ...], tuple[float, ...]] | None:
    """Return the shape of an array from its first long axis on, and its numbers; None for fewer than two long axes."""
    array = np.asarray(values, np.float64)
    longer = [axis for axis, size in enumerate(array.shape) if size > 1]
    return (array.shape[longer[0] :], tuple(array.reshape(-1).tolist())) if len(longer) > 1 else None


def _behind(model: Model, node: onnx.NodeProto, value: str) -> int:
    shape = model.constant(value).shape
    longer = [axis for axis, size in enumerate(shape) if size > 1]
    if len(longer) != 1:
        raise Wrong(node.name, f"its constant {value} has more than one axis")
    return len(shape) - 1 - longer[0]
