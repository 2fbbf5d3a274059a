"""A quantized model whose Softmax nodes onnxruntime runs in float.

Between DequantizeLinear and QuantizeLinear it replaces them by an approximation in integers, up to a step off
(docs/numerics.md). Tensors after it then do not measure how a model was imported.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import is_op, new_constant, new_node
from quantpipe.graph.external_weights import copied
from quantpipe.intake.quantized.quantized_ops import APPROXIMATED, DEQUANTIZE, DOMAINS, MAX


def with_real_softmax(model: ir.Model) -> ir.Model | None:
    """Return the model with a Max that changes nothing between each DequantizeLinear and Softmax; None without any.

    No pass of onnxruntime takes that away, and none sees through it.
    """
    if not any(_is_replaced(node) for node in model.graph):
        return None
    copy = copied(model)
    least = new_constant(copy.graph, "softmax_least", np.asarray(np.finfo(np.float32).min, np.float32))
    for node in list(copy.graph):
        if _is_replaced(node):
            node.replace_input_with(0, new_node(copy.graph, node, MAX, [node.inputs[0], least], name=None))
    return copy


def _is_replaced(node: ir.Node) -> bool:
    source = node.inputs[0].producer() if is_op(node, *APPROXIMATED) and node.inputs[0] is not None else None
    return source is not None and source.op_type == DEQUANTIZE and source.domain in DOMAINS
