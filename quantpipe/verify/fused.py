"""Kernels that a runtime computes as one: QLinear ops, and float ops between DequantizeLinear and QuantizeLinear.

The file gives their operands, scales and zero points; what the kernel makes of them is the formula of docs/numerics.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx
from numpy.typing import NDArray

from quantpipe.verify.files import expect
from quantpipe.verify.ops import attribute
from quantpipe.verify.realized_model import Model

Array = NDArray[Any]

PORTS: Mapping[str, dict[str, Any]] = {
    "QLinearConv": {"op": "Conv", "data": [(0, 1, 2)], "weight": (3, 4, 5), "out": (6, 7), "bias": 8},
    "QLinearMatMul": {"op": "MatMul", "data": [(0, 1, 2)], "weight": (3, 4, 5), "out": (6, 7)},
    "QGemm": {"op": "Gemm", "data": [(0, 1, 2)], "weight": (3, 4, 5), "bias": 6, "out": (7, 8)},
    "MatMulIntegerToFloat": {"op": "MatMul", "data": [(0, 2, 4)], "weight": (1, 3, 5), "out": None},
    "QLinearAdd": {"op": "Add", "data": [(0, 1, 2), (3, 4, 5)], "out": (6, 7)},
    "QLinearMul": {"op": "Mul", "data": [(0, 1, 2), (3, 4, 5)], "out": (6, 7)},
    "QLinearGlobalAveragePool": {"op": "GlobalAveragePool", "data": [(0, 1, 2)], "out": (3, 4)},
}
"""Ports (integers, scale, zero point) of operands, of the result's scale and zero point, and of the bias."""


@dataclass(eq=False)
class FusedOperand:
    """A stored tensor or weight with its scale and zero point, as the model has them."""

    value: str
    scale: Array
    zero: Array
    axis: int | None = None


@dataclass(eq=False)
class Fused:
    """Hold one fused kernel.

    `out`: scale and zero point of its result (None: floats leave); `clip`: bounds of a clip after it. `bias`:
    its integers, and its scale and zero point where it has such.
    """

    node: onnx.NodeProto
    op: str
    operands: list[FusedOperand]
    bias: tuple[Array, Array | None, Array | None] | None
    out: tuple[Array, Array] | None
    clip: tuple[Array, Array] | None


def fused(model: Model, result: str, op: str) -> Fused | None:
    """Return the fused kernel that makes a value; None where the model writes it out."""
    clip, value = _unclipped(model, result)
    node = model.producer.get(value)
    if node is None:
        return None
    if node.op_type in PORTS:
        return _operator(model, node, clip)
    if node.op_type == "QuantizeLinear":
        inner = model.producer.get(node.input[0])
        found = _between(model, inner, op) if inner is not None else None
        if found is None:
            return None
        model.see(node)
        grid = (model.constant(node.input[1]), model.constant(node.input[2]))
        return Fused(found.node, op, found.operands, found.bias, grid, clip)
    return _between(model, node, op) if clip is None else None


def _unclipped(model: Model, value: str) -> tuple[tuple[Array, Array] | None, str]:
    """Bounds of a Clip on stored integers (with casts around it where they have 16 bits), and what it clips."""
    node = model.producer.get(value)
    casts = []
    while node is not None and node.op_type == "Cast" and not model.is_constant(node.input[0]):
        casts.append(node)
        node = model.producer.get(node.input[0])
    if node is None or node.op_type != "Clip" or len(node.input) != 3:
        return None, value
    inner = node.input[0]
    source = model.producer.get(inner)
    while casts and source is not None and source.op_type == "Cast":
        casts.append(source)
        inner = source.input[0]
        source = model.producer.get(inner)
    if source is None or source.op_type not in (*PORTS, "QuantizeLinear"):
        return None, value
    for seen in (node, *casts):
        model.see(seen)
    return (model.constant(node.input[1]), model.constant(node.input[2])), inner


def _operator(model: Model, node: onnx.NodeProto, clip: tuple[Array, Array] | None) -> Fused:
    model.see(node)
    ports = PORTS[node.op_type]

    def at(port: int | None) -> str:
        return node.input[port] if port is not None and port < len(node.input) else ""

    operands = [_at(model, [at(p) for p in three]) for three in (*ports["data"], ports.get("weight")) if three]
    bias = at(ports.get("bias"))
    out = ports["out"]
    grid = None
    if out is not None and at(out[0]):
        grid = (model.constant(at(out[0])), model.constant(at(out[1])))
    return Fused(node, ports["op"], operands, (model.constant(bias), None, None) if bias else None, grid, clip)


def _at(model: Model, names: list[str]) -> FusedOperand:
    value, scale, zero = names
    return FusedOperand(value, model.constant(scale), model.constant(zero))


def _between(model: Model, node: onnx.NodeProto, op: str) -> Fused | None:
    """A float op on dequantized operands."""
    if node.op_type not in (op, "Conv"):
        return None
    read = [_dequantized(model, i) for i in node.input if i]
    if any(o is None for o in read) or not read:
        return None
    model.see(node)
    operands = [o for o in read if o is not None]
    bias = None
    if len(operands) == 3:
        last = operands.pop()
        bias = (model.constant(last.value), last.scale, last.zero)
    return Fused(node, op, operands, bias, None, None)


def _dequantized(model: Model, value: str) -> FusedOperand | None:
    node = model.producer.get(value)
    if node is None or node.op_type != "DequantizeLinear":
        return None
    expect(len(node.input) == 3, node.name, "it has no zero point")
    model.see(node)
    scale, zero = model.constant(node.input[1]), model.constant(node.input[2])
    return FusedOperand(node.input[0], scale, zero, attribute(node, "axis", 1) if scale.size > 1 else None)
