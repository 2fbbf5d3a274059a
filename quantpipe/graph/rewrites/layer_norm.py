"""(x - mean) / √(variance + ε) · gain + offset over the last axis, written out in nine nodes as models before opset 17
have it, is the op LayerNormalization: one node in real numbers, whose gain and offset accuracy recovery can change."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.rewrites.tools import attribute, constant, is_op, new_node, only_user, rank, scalar, take_place


def layer_norm(graph: ir.Graph, node: ir.Node) -> None:
    """Starts at the Sqrt. The offset may be missing, the gain may not."""
    epsilon, deviation = _spread(node)
    data = _centred(deviation)
    quotient = only_user(node.outputs[0], graph)
    if data is None or quotient is None or not is_op(quotient, "Div"):
        return
    if quotient.inputs[0] is not deviation or quotient.inputs[1] is not node.outputs[0]:
        return
    product, gain = _joined(graph, quotient, "Mul", data)
    if product is None:
        return
    total, offset = _joined(graph, product, "Add", data)
    last = product if total is None else total
    attributes = {"axis": -1, "epsilon": epsilon}
    take_place(
        last.outputs[0], new_node(graph, last, "LayerNormalization", [data, gain, offset], last.name, attributes)
    )


def _spread(node: ir.Node) -> tuple[float, ir.Value | None]:
    """(ε, x - mean) where the node is √(mean((x - mean)²) + ε)."""
    add = _producer(node.inputs[0]) if is_op(node, "Sqrt") else None
    if add is None or not is_op(add, "Add"):
        return 0.0, None
    for port in (0, 1):
        epsilon, variance = scalar(add.inputs[1 - port]), _producer(add.inputs[port])
        if epsilon is None or epsilon < 0 or variance is None or not _over_last_axis(variance):
            continue
        square = _producer(variance.inputs[0])
        if square is None:
            continue
        by_power = is_op(square, "Pow") and scalar(square.inputs[1]) == 2.0
        if by_power or (is_op(square, "Mul") and square.inputs[0] is square.inputs[1]):
            return epsilon, square.inputs[0]
    return 0.0, None


def _centred(deviation: ir.Value | None) -> ir.Value | None:
    """x where a value is x - mean(x)."""
    difference = _producer(deviation)
    if difference is None or not is_op(difference, "Sub"):
        return None
    data, mean = difference.inputs[0], _producer(difference.inputs[1])
    if data is None or mean is None or not _over_last_axis(mean) or mean.inputs[0] is not data:
        return None
    return data


def _over_last_axis(node: ir.Node) -> bool:
    """Whether the node is a mean over the last axis alone, which stays with length 1."""
    axes = rank(node.inputs[0]) if is_op(node, "ReduceMean") else None
    if axes is None or not attribute(node, "keepdims", 1):
        return False
    given = constant(node.inputs[1]) if len(node.inputs) > 1 else attribute(node, "axes")
    return given is not None and [int(a) % axes for a in given] == [axes - 1]


def _joined(graph: ir.Graph, node: ir.Node, op: str, data: ir.Value) -> tuple[ir.Node | None, ir.Value | None]:
    """(the only reader of a node's result, the vector as long as the last axis that it is joined with by `op`)."""
    follower = only_user(node.outputs[0], graph)
    if follower is None or not is_op(follower, op):
        return None, None
    width = data.shape[-1] if data.shape is not None else None
    for value in follower.inputs:
        array = constant(value)
        if array is not None and array.dtype == np.float32 and array.ndim == 1 and array.shape[0] == width:
            return follower, value
    return None, None


def _producer(value: ir.Value | None) -> ir.Node | None:
    return None if value is None else value.producer()
