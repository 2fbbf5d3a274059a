"""Rewrite two ops as equivalent ones: a pool over the whole map, and a matrix product with its bias."""

from __future__ import annotations

import onnx_ir as ir


def pool_to_global(node: ir.Node) -> None:
    """Write an AveragePool whose window is the whole map, without padding, as GlobalAveragePool."""
    if node.op_type != "AveragePool" or node.domain:
        return
    shape = node.inputs[0].shape if node.inputs[0] is not None else None
    kernel = list(node.attributes["kernel_shape"].value)
    pads = node.attributes.get("pads")
    auto = node.attributes.get("auto_pad")
    if shape is None or list(shape[2:]) != kernel or (pads and any(pads.value)):
        return
    if auto and auto.value not in ("NOTSET", "VALID"):
        return
    for name in list(node.attributes):
        node.attributes.pop(name)
    node.op_type = "GlobalAveragePool"


def matmul_bias_to_gemm(graph: ir.Graph, node: ir.Node) -> None:
    """Write a MatMul by a constant matrix followed by Add of a constant vector, on rank-2 data, as Gemm."""
    if node.op_type != "MatMul" or node.domain or node.inputs[0] is None or node.inputs[1] is None:
        return
    weight, output = node.inputs[1], node.outputs[0]
    rank = len(node.inputs[0].shape) if node.inputs[0].shape is not None else 0
    uses = list(output.uses())
    if rank != 2 or weight.const_value is None or len(weight.const_value.shape) != 2 or len(uses) != 1:
        return
    if output in graph.outputs or uses[0].node.op_type != "Add":
        return
    add = uses[0].node
    bias = add.inputs[1 - uses[0].idx]
    if bias is None or bias.const_value is None or tuple(bias.const_value.shape) != (weight.const_value.shape[1],):
        return
    gemm = ir.Node("", "Gemm", inputs=[node.inputs[0], weight, bias], name=node.name, num_outputs=1)
    result = add.outputs[0]
    name, shape, dtype = result.name, result.shape, result.type
    graph.insert_before(add, gemm)
    result.replace_all_uses_with(gemm.outputs[0], replace_graph_outputs=True)
    graph.remove([add, node], safe=True)
    gemm.outputs[0].name, gemm.outputs[0].shape, gemm.outputs[0].type = name, shape, dtype
