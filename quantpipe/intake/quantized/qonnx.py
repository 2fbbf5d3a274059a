"""QONNX's Quant, BipolarQuant and Trunc as Q, Clip and DQ: then there is one form to be read.

Quant(x, scale, zero point, bits): s · (clamp(round(x / s) + z) - z), in `bits` bits, `signed`, `narrow`
(fastmachinelearning/qonnx, docs/qonnx-custom-ops). Trunc(x, s, z, bits, s', bits'): whole steps of s, cut to whole ones
of s'; its first version has no s' and divides by 2^(bits - bits') instead.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, new_node, only_user
from quantpipe.intake.quantized.grids import refused
from quantpipe.intake.quantized.quantized_ops import (
    ADD,
    CLIP,
    DEQUANTIZE,
    LIMITS,
    MULTIPLY,
    QONNX,
    QONNX_BIPOLAR,
    QONNX_QUANT,
    QONNX_TRUNC,
    QUANTIZE,
    RELU,
)
from quantpipe.intmath import round_real

ROUND = ("ROUND", "HALF_EVEN")
"""Names of the rounding that QuantizeLinear does."""
LEAST_SHARE = 3
"""A Quant's step over what raises halves before it is 2 to this power, or a greater one."""
CUT = "FLOOR"
"""The rounding of Trunc that drops bits."""
TRUNC_WITH_SCALE = 6
"""Inputs of the version of Trunc that names the scale of its result."""


def as_qdq(model: ir.Model, *, exact: bool = False) -> bool:
    """Write QONNX's nodes as Q, Clip and DQ, in place; return whether there were any.

    `exact`: compute what the nodes do, bits that Trunc drops included; else the real values that they represent, where
    nothing is dropped.

    Raises ModelError for more than 16 bits, other roundings, zero points beyond the bits, and ops that only QONNX has.
    """
    nodes = [n for n in model.graph if n.domain in QONNX]
    for node in nodes:
        if node.op_type == QONNX_QUANT:
            if not exact:
                _without_raise(model.graph, node)
            _quant(model.graph, node)
        elif node.op_type == QONNX_BIPOLAR:
            _bipolar(model.graph, node)
        elif node.op_type == QONNX_TRUNC:
            _trunc(model.graph, node, exact=exact)
        else:
            raise refused(node, f"it is an op of {node.domain} that no integer form is known of; legal are Quant, "
                          "BipolarQuant and Trunc")  # fmt: skip
    for domain in QONNX:
        model.opset_imports.pop(domain, None)
    return bool(nodes)


def _without_raise(graph: ir.Graph, node: ir.Node) -> None:
    """Remove the Add that makes ties round up before a Quant (half to even): a quarter of a step of the sum.

    It represents no value of the model. The steps of a sum are at most half of the Quant's. So the added number is an
    eighth of the Quant's step or less, by a power of two, and precedes any clamps.
    """
    source, scale = node.inputs[0], constant(node.inputs[1])
    maker = source.producer() if source is not None else None
    while maker is not None and is_op(maker, RELU, *LIMITS) and maker.inputs[0] is not None:
        maker = maker.inputs[0].producer()
    if maker is None or scale is None or not is_op(maker, ADD) or only_user(maker.outputs[0], graph) is None:
        return
    for at, raised in enumerate(constant(value) for value in maker.inputs):
        if raised is None or scale.size != 1 or np.any(raised <= 0):
            continue
        mantissa, exponent = np.frexp(float(scale.reshape(())) / raised.astype(np.float64))
        if np.all(mantissa == 0.5) and np.all(exponent > LEAST_SHARE) and (real := maker.inputs[1 - at]) is not None:
            maker.outputs[0].replace_all_uses_with(real)
            return


def _quant(graph: ir.Graph, node: ir.Node) -> None:
    scale, zero, width = (constant(v) for v in node.inputs[1:4])
    if scale is None or zero is None or width is None or width.size != 1:
        raise refused(node, "its scale, zero point or bit width is computed at run time; legal are constants")
    bits = float(width.reshape(()))
    rounding = str(attribute(node, "rounding_mode", "ROUND")).upper()
    if bits != int(bits) or not 1 <= bits <= 16:
        raise refused(node, f"its bit width is {bits:g}; legal are integers from 1 to 16")
    if rounding not in ROUND:
        raise refused(node, f"it rounds by {rounding}; legal is ROUND, to the nearest and ties to even")
    signed, narrow = bool(attribute(node, "signed", 1)), bool(attribute(node, "narrow", 0))
    low, high = _ends(int(bits), signed, narrow)
    if np.any(zero != round_real(zero)) or np.any(zero < low) or np.any(zero > high):
        raise refused(node, f"its zero point is {zero.reshape(-1)[0]:g}; {int(bits)} bits hold {low} to {high}")
    _written(graph, node, scale, zero, ends=(low, high))


def _ends(bits: int, signed: bool, narrow: bool) -> tuple[int, int]:
    if not signed:
        return 0, (1 << bits) - 1 - narrow
    return -(1 << (bits - 1)) + narrow, (1 << (bits - 1)) - 1


def _trunc(graph: ir.Graph, node: ir.Node, *, exact: bool) -> None:
    """Write Trunc: integral steps of a fine scale, cut to integral steps of a coarser one.

    The largest integer below n + k / 2^m, k < 2^m, is the nearest one to it less 1/2 and half of a fine step.
    """
    given = [constant(v) for v in node.inputs[1:]]
    if len(given) < TRUNC_WITH_SCALE - 2 or any(v is None or (v.size != 1 and p > 1) for p, v in enumerate(given)):
        raise refused(node, "its scales, zero point or bit widths are computed at run time; legal are constants")
    fine, zero, wide, *rest = (np.asarray(v, np.float64) for v in given)
    (coarse, width) = rest if len(rest) > 1 else (fine, rest[0])
    cut = coarse / fine if len(rest) > 1 else np.asarray(2.0 ** float(np.max(wide - width)))
    rounding, bits = str(attribute(node, "rounding_mode", CUT)).upper(), float(width.reshape(()))
    if rounding not in (*ROUND, CUT):
        raise refused(node, f"it rounds by {rounding}; legal are FLOOR and ROUND")
    if bits != int(bits) or not 1 <= bits <= 16 or np.any(cut < 1):
        raise refused(node, f"it cuts {cut.reshape(-1)[0]:g} steps to {bits:g} bits; legal are 1 and more, and 1 to 16")
    at = zero / cut if len(rest) > 1 else zero
    low, high = _ends(int(bits), bool(attribute(node, "signed", 1)), bool(attribute(node, "narrow", 0)))
    if np.any(at != round_real(at)) or np.any(at < low) or np.any(at > high):
        raise refused(
            node, f"its zero point is {at.reshape(-1)[0]:g} of the result; {int(bits)} bits hold {low} to {high}"
        )
    real = node.inputs[0]
    if len(rest) == 1:
        share = new_constant(graph, f"{node.name}/share", np.asarray(1 / cut, np.float32))
        real = new_node(graph, node, MULTIPLY, [real, share], name=f"{node.name}/divide")
    if exact and rounding == CUT:
        moved = np.asarray(coarse / 2 * (1 / cut - 1), np.float32)
        real = new_node(graph, node, ADD, [real, new_constant(graph, f"{node.name}/moved", moved)],
                        name=f"{node.name}/cut")  # fmt: skip
    node.replace_input_with(0, real)
    _written(graph, node, np.asarray(coarse, np.float32), at, ends=(low, high))


def _bipolar(graph: ir.Graph, node: ir.Node) -> None:
    """Write BipolarQuant, -1 and 1 times a scale; only for constants, since no grid leaves 0 out."""
    real, scale = constant(node.inputs[0]), constant(node.inputs[1])
    if real is None or scale is None:
        raise refused(
            node, "it returns signs of computed values, which have no integer grid; legal are signs of weights"
        )
    signs = new_constant(graph, f"{node.name}/signs", np.where(real >= 0, scale, -scale).astype(np.float32))
    node.replace_input_with(0, signs)
    _written(graph, node, scale, np.zeros(1), ends=(-1, 1))


def _written(graph: ir.Graph, node: ir.Node, scale: np.ndarray, zero: np.ndarray, *, ends: tuple[int, int]) -> None:
    low, high = ends
    kind: type[np.integer[Any]] = np.int8 if low < 0 else np.uint8
    if low < -128 or high > (127 if low < 0 else 255):
        kind = np.int16 if low < 0 else np.uint16
    axis, steps = _axis(node, scale)
    name = node.name or node.op_type
    constants = [
        new_constant(graph, f"{name}/scale", steps.astype(np.float32)),
        new_constant(
            graph, f"{name}/zero", np.broadcast_to(zero.reshape(-1), steps.size).reshape(steps.shape).astype(kind)
        ),
    ]
    attributes = {"axis": axis} if steps.ndim else {}
    stored = new_node(graph, node, QUANTIZE, [node.inputs[0], *constants], name=f"{name}/quantize",
                      attributes=attributes)  # fmt: skip
    stored.name = f"{node.outputs[0].name}/integers"
    limits = [new_constant(graph, f"{name}/{k}", np.asarray(v, kind)) for k, v in (("least", low), ("greatest", high))]
    bounded = new_node(graph, node, CLIP, [stored, *limits], name=f"{name}/bound")
    bounded.name = f"{node.outputs[0].name}/bounded"
    real = new_node(graph, node, DEQUANTIZE, [bounded, *constants], name=f"{name}/dequantize",
                    attributes=attributes)  # fmt: skip
    old = node.outputs[0]
    label, shape, kind_ = old.name, old.shape, old.type
    old.replace_all_uses_with(real, replace_graph_outputs=True)
    old.name = None
    real.name, real.shape, real.type = label, shape, kind_ or ir.TensorType(ir.DataType.FLOAT)
    graph.remove(node, safe=True)


def _axis(node: ir.Node, scale: np.ndarray) -> tuple[int, np.ndarray]:
    """Return (the axis of channels, the scales `()` or `[C]`) of scales that broadcast to a tensor."""
    if scale.size == 1:
        return 0, scale.reshape(())
    long = [a for a, n in enumerate(scale.shape) if n > 1]
    if len(long) != 1:
        raise refused(node, f"its scales have shape {list(scale.shape)}; legal is one scale, or one for each channel")
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    rank = len(shape) if shape is not None else scale.ndim
    return long[0] + rank - scale.ndim, scale.reshape(math.prod(scale.shape))
