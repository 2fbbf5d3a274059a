"""Per-channel arithmetic by constants: differences, quotients, and batch normalization that nothing swallowed."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, new_node, rank, take_place


def constant_difference(graph: ir.Graph, node: ir.Node) -> None:
    """Write x - c as x + (-c)."""
    values = constant(node.inputs[1]) if is_op(node, "Sub") else None
    if values is None or values.dtype != np.float32 or constant(node.inputs[0]) is not None:
        return
    negated = new_constant(graph, f"{node.name}_negated", -values)
    result = new_node(graph, node, "Add", [node.inputs[0], negated], name=node.name)
    take_place(node.outputs[0], result)
    graph.remove(node, safe=True)


def constant_quotient(graph: ir.Graph, node: ir.Node) -> None:
    """Write x / c as x · (1/c), which is equal up to the last bit of float32."""
    values = constant(node.inputs[1]) if is_op(node, "Div") else None
    if values is None or values.dtype != np.float32 or constant(node.inputs[0]) is not None:
        return
    with np.errstate(divide="ignore"):
        inverse = 1.0 / values.astype(np.float64)
    if not np.all(np.isfinite(inverse)) or np.any(np.abs(inverse) > np.finfo(np.float32).max):
        return
    factor = new_constant(graph, f"{node.name}_inverse", inverse.astype(np.float32))
    result = new_node(graph, node, "Mul", [node.inputs[0], factor], name=node.name)
    take_place(node.outputs[0], result)
    graph.remove(node, safe=True)


def batch_norm_to_conv(graph: ir.Graph, node: ir.Node) -> None:
    """Write the batch normalization of a map as a depthwise convolution with a 1x1 kernel: (x - μ)·γ/√(σ² + ε) + β.

    As such it has per-channel scales and a wide bias, where a product and a sum with 8-bit constants would have one
    scale for all channels.
    """
    axes = rank(node.inputs[0]) if is_op(node, "BatchNormalization") else None
    if axes is None or not 3 <= axes <= 5 or attribute(node, "training_mode", 0) or len(node.outputs) > 1:
        return
    numbers = [constant(v) for v in node.inputs[1:5]]
    if any(n is None or n.dtype != np.float32 for n in numbers):
        return
    gamma, beta, mean, variance = (np.asarray(n, np.float64) for n in numbers)
    factor = gamma / np.sqrt(variance + attribute(node, "epsilon", 1e-5))
    offset = beta - mean * factor
    if not (np.all(np.isfinite(factor)) and np.all(np.isfinite(offset))):
        return
    kernel = [1] * (axes - 2)
    weight = new_constant(graph, f"{node.name}_factor", factor.astype(np.float32).reshape(-1, 1, *kernel))
    bias = new_constant(graph, f"{node.name}_offset", offset.astype(np.float32))
    attributes = {"group": len(factor), "kernel_shape": kernel}
    result = new_node(graph, node, "Conv", [node.inputs[0], weight, bias], name=node.name, attributes=attributes)
    take_place(node.outputs[0], result)
    graph.remove(node, safe=True)
