"""Convolutions and matrix products with something fused to them, as ONNX's own ops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from quantpipe.intake.rewrites.fused.body import FusedBody, light

CONV = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
POOL = ("auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides")
TRANSPOSED = ("transA", "transB")
PARAMETERS: Mapping[str, tuple[tuple[str, ...], tuple[float, ...]]] = {
    "Relu": ((), ()),
    "Tanh": ((), ()),
    "Sigmoid": ((), ()),
    "Softsign": ((), ()),
    "Softplus": ((), ()),
    "LeakyRelu": (("alpha",), (0.01,)),
    "Elu": (("alpha",), (1.0,)),
    "ThresholdedRelu": (("alpha",), (1.0,)),
    "HardSigmoid": (("alpha", "beta"), (0.2, 0.5)),
    "Selu": (("alpha", "gamma"), (1.67326319217681884765625, 1.05070102214813232421875)),
    "Clip": (("min", "max"), (-3.4028235e38, 3.4028235e38)),
}
"""Functions that are fused to a product, their parameters in order, and ONNX's defaults."""


def conv(body: FusedBody) -> bool:
    """Write FusedConv: an activation of the sum of a convolution and, where it is given, Z."""
    body.main = "Conv"
    found = body("Conv", *_given(body, 3), **kept(body.node, CONV))
    return added_and_activated(body, found, body.input(3))


def channels_last_conv(body: FusedBody) -> bool:
    """Write NhwcConv and NhwcFusedConv: the same on data `[N, H, W, C]`, weights `[M, C/group, kH, kW]`."""
    data, weight = body.input(0), body.input(1)
    axes = body.rank(weight)
    if data is None or axes is None:
        return False
    body.main = "Conv"
    first = body.swap(data, [0, axes - 1, *range(1, axes - 1)])
    found = body("Conv", first, *_given(body, 3)[1:], **kept(body.node, CONV))
    last = body.swap(found, [0, *range(2, axes), 1])
    return added_and_activated(body, last, body.input(3))


def channels_last_pool(body: FusedBody) -> bool:
    """Write NhwcMaxPool: MaxPool on data `[N, H, W, C]`."""
    data = body.input(0)
    axes = len(body.attr("kernel_shape", ())) + 2
    if data is None:
        return False
    body.main = "MaxPool"
    first = body.swap(data, [0, axes - 1, *range(1, axes - 1)])
    found = body("MaxPool", first, **kept(body.node, POOL))
    body.replace(0, body.swap(found, [0, *range(2, axes), 1]))
    return True


def gemm(body: FusedBody) -> bool:
    """Write FusedGemm: an activation of a Gemm."""
    body.main = "Gemm"
    found = body("Gemm", *_given(body, 3), **kept(body.node, ("alpha", "beta", *TRANSPOSED)))
    name = body.attr("activation", "")
    names, defaults = PARAMETERS.get(name, ((), ()))
    values = [float(body.attr(f"activation_{n}", d)) for n, d in zip(names, defaults, strict=True)]
    return _activated(body, found, name, values)


def matmul(body: FusedBody) -> bool:
    """Write FusedMatMul: alpha times the product of two operands, each with its last two axes exchanged if asked.

    `transBatchA`: the first axis of A is moved to before the last one, first. (onnxruntime's definition of the op.)
    """
    operands = []
    for port, side in enumerate("AB"):
        value = body.input(port)
        turned, batch = bool(body.attr(f"trans{side}", 0)), bool(body.attr(f"transBatch{side}", 0))
        axes = body.rank(value) if turned or batch else 0
        if value is None or axes is None:
            return False
        order = list(range(axes))
        if batch and axes > 2:
            order = [*order[1:-1], 0, order[-1]]
        if turned and axes >= 2:
            order = [*order[:-2], order[-1], order[-2]]
        operands.append(value if order == sorted(order) else body.swap(value, order))
    alpha = float(body.attr("alpha", 1.0))
    held = next((port for port in (1, 0) if light(operands[port]) is not None), None)
    if held is not None:
        operands[held], alpha = body.scaled(operands[held], alpha), 1.0
    body.main = "MatMul"
    body.replace(0, body.scaled(body("MatMul", *operands), alpha))
    return True


def _given(body: FusedBody, most: int) -> list[ir.Value | None]:
    """Return the first inputs, without the absent ones at the end."""
    found = [body.input(port) for port in range(most)]
    while found and found[-1] is None:
        found.pop()
    return found


def kept(node: ir.Node, names: tuple[str, ...]) -> dict[str, Any]:
    """Return the attributes of these names that a node has."""
    return {name: node.attributes[name].value for name in names if name in node.attributes}


def added_and_activated(body: FusedBody, value: ir.Value, addend: ir.Value | None) -> bool:
    """Write the sum with an optional tensor, and the activation that the node has, in the place of its output."""
    if addend is not None:
        value = body("Add", value, addend)
    return _activated(body, value, body.attr("activation", ""), [float(v) for v in body.attr("activation_params", ())])


def _activated(body: FusedBody, value: ir.Value, name: str, values: list[float]) -> bool:
    if name == "Clip" and len(values) == 2:
        value = body.clip(value, *values)
    elif name:
        value = body(name, value, **dict(zip(PARAMETERS[name][0], values, strict=False)))
    body.replace(0, value)
    return True
