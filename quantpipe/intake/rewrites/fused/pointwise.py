"""Functions of single values with a bias before them: the Gelus, and additions of several operands.

The erf form and the tanh form are written in full; the clean-up joins them to Gelu of a newer opset.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from quantpipe.intake.rewrites.fused.body import FusedBody
from quantpipe.intake.rewrites.gelu import CUBIC, SLOPE


def gelu(body: FusedBody) -> bool:
    """Write Gelu and BiasGelu: x · (1 + erf(x / √2)) / 2 of x = A + B."""
    data = _biased(body)
    inside = body("Erf", body("Mul", data, body.number(math.sqrt(0.5))))
    return _half(body, data, inside)


def fast_gelu(body: FusedBody) -> bool:
    """Write FastGelu: x · (1 + tanh(√(2/π) · (x + 0.044715·x³))) / 2 of x = X + bias."""
    data = _biased(body)
    cube = body("Mul", body("Mul", data, data), data)
    whole = body("Add", data, body("Mul", cube, body.number(CUBIC)))
    return _half(body, data, body("Tanh", body("Mul", whole, body.number(SLOPE))))


def quick_gelu(body: FusedBody) -> bool:
    """Write QuickGelu: x · sigmoid(alpha · x)."""
    data = _first(body)
    inside = body.scaled(data, float(body.attr("alpha", 1.702)))
    body.replace(0, body("Mul", data, body("Sigmoid", inside)))
    return True


def split_gelu(body: FusedBody) -> bool:
    """Write BiasSplitGelu: the first half of X + bias times the Gelu of the second half, along the last axis."""
    data = _biased(body)
    bias = body.input(1)
    size = bias.shape[0] if bias is not None and bias.shape is not None else None
    if not isinstance(size, int) or size % 2:
        return False
    left, right = (body.part(data, 2, at, at + size // 2) for at in (0, size // 2))
    inside = body("Erf", body("Mul", right, body.number(math.sqrt(0.5))))
    body.replace(0, body("Mul", left, _halved(body, right, inside)))
    return True


def bias_add(body: FusedBody) -> bool:
    """Write BiasAdd: X + bias + skip."""
    skip = body.input(2)
    if skip is None:
        return False
    body.replace(0, body("Add", _biased(body), skip))
    return True


def _first(body: FusedBody) -> ir.Value:
    value = body.input(0)
    if value is None:
        raise ValueError(f"{body.node.name} has no first input")
    return value


def _biased(body: FusedBody) -> ir.Value:
    bias = body.input(1)
    return _first(body) if bias is None else body("Add", _first(body), bias)


def _half(body: FusedBody, data: ir.Value, inside: ir.Value) -> bool:
    body.replace(0, _halved(body, data, inside))
    return True


def _halved(body: FusedBody, data: ir.Value, inside: ir.Value) -> ir.Value:
    whole = body("Add", inside, body.number(1.0))
    return body("Mul", body("Mul", data, body.number(0.5)), whole)
