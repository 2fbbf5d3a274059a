"""Write a Gemm with alpha, beta or transA as one without: constants are multiplied, A is transposed by a node.

Old exporters, MATLAB and tools that merge low-rank updates write them. A Gemm of two activations is a MatMul.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import attribute, constant, is_op, new_constant, new_node, operand, take_place


def plain_gemm(graph: ir.Graph, node: ir.Node) -> None:
    """Write the Gemm as an optional Transpose, a Gemm by a constant or a MatMul, and an Add where one is needed."""
    if not is_op(node, "Gemm") or node.inputs[0] is None or node.inputs[1] is None:
        return
    alpha, beta = (float(attribute(node, name, 1.0)) for name in ("alpha", "beta"))
    data, weight, bias = node.inputs[0], node.inputs[1], operand(node, 2)
    vector = _vector(bias, weight, turned=bool(attribute(node, "transB", 0)))
    is_vector = bias is None or (vector is not None and np.shape(vector) == tuple(bias.shape or ()))
    if alpha == beta == 1.0 and not attribute(node, "transA", 0) and weight.const_value is not None and is_vector:
        return
    if isinstance(weight.const_value, ir.ExternalTensor) and alpha != 1.0:
        return
    if attribute(node, "transA", 0):
        data = new_node(graph, node, "Transpose", [data], name=f"{node.name}/transA", attributes={"perm": [1, 0]})
        data.name = f"{node.name}/transA_output"
    held = vector is not None and weight.const_value is not None
    biases = [_scaled(graph, vector, beta, f"{node.name}/bias")] if held else []  # type: ignore[arg-type]
    made = _product(graph, node, [data, weight, *biases])
    if bias is not None and not held:
        made.name = f"{node.name}/product_output"
        made = new_node(graph, node, "Add", [made, _times(graph, node, bias, beta)], name=f"{node.name}/add")
    take_place(node.outputs[0], made)
    graph.remove(node, safe=True)


def turned_weight(graph: ir.Graph, node: ir.Node) -> None:
    """Give a MatMul the constant that a Transpose makes of a matrix, as exporters write tables of two uses.

    A matrix in a file of its own stays as it is: its copy would have to be held.
    """
    turn = node.inputs[1].producer() if is_op(node, "MatMul") and node.inputs[1] is not None else None
    if turn is None or not is_op(turn, "Transpose") or (matrix := turn.inputs[0]) is None:
        return
    array = constant(matrix) if not isinstance(matrix.const_value, ir.ExternalTensor) else None
    if array is None or array.ndim != 2 or list(attribute(turn, "perm", [1, 0])) != [1, 0]:
        return
    name = f"{matrix.name}/turned"
    held = graph.initializers.get(name)
    node.replace_input_with(1, new_constant(graph, name, array.T) if held is None else held)


def _times(graph: ir.Graph, node: ir.Node, bias: ir.Value, beta: float) -> ir.Value:
    array = constant(bias)
    if beta == 1.0:
        return bias
    if array is not None:
        return _scaled(graph, array, beta, f"{node.name}/bias")
    factor = new_constant(graph, f"{node.name}/beta", np.asarray(beta, np.float32))
    found = new_node(graph, node, "Mul", [bias, factor], name=f"{node.name}/beta")
    found.name = f"{node.name}/beta_output"
    return found


def _vector(bias: ir.Value | None, weight: ir.Value, *, turned: bool) -> np.ndarray | None:
    """Return a constant bias as one value per output channel, None where it is no such bias."""
    array, axes = constant(bias), weight.shape
    if array is None or axes is None or len(axes) != 2 or not isinstance(size := axes[0 if turned else 1], int):
        return None
    if array.size == 1:
        return np.broadcast_to(array.reshape(-1), (size,)).copy()
    return array.reshape(-1) if array.size == size and array.shape[-1] == size else None


def _product(graph: ir.Graph, node: ir.Node, operands: list[ir.Value]) -> ir.Value:
    data, weight, *biases = operands
    alpha, turned = float(attribute(node, "alpha", 1.0)), int(attribute(node, "transB", 0))
    if weight.const_value is not None:
        array = constant(weight)
        if alpha != 1.0 and array is not None:
            weight = _scaled(graph, array, alpha, f"{weight.name}/alpha")
        attributes = {"transB": turned} if turned else {}
        return new_node(graph, node, "Gemm", [data, weight, *biases], name=node.name, attributes=attributes)
    if turned:
        weight = new_node(graph, node, "Transpose", [weight], name=f"{node.name}/transB", attributes={"perm": [1, 0]})
        weight.name = f"{node.name}/transB_output"
    made = new_node(graph, node, "MatMul", [data, weight], name=node.name)
    if alpha != 1.0:
        made.name = f"{node.name}/matmul_output"
        factor = new_constant(graph, f"{node.name}/alpha", np.asarray(alpha, np.float32))
        made = new_node(graph, node, "Mul", [made, factor], name=f"{node.name}/alpha")
    return made


def _scaled(graph: ir.Graph, array: np.ndarray, factor: float, name: str) -> ir.Value:
    return new_constant(graph, name, array * np.asarray(factor, array.dtype))
