"""Fold BatchNormalization into convolutions whose weights are in files, a few rows at a time.

onnxslim folds those that are in memory. The folded weight goes to a temporary file of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.external_weights import file_array, place_of, row_blocks


def fold_batch_norms(graph: ir.Graph) -> None:
    """Fold, in place, every BatchNormalization after a convolution whose constant weight is in a file.

    With f = scale / sqrt(variance + epsilon): W' = W·f along the output channels, b' = (b - mean)·f + shift (Ioffe and
    Szegedy 2015, at inference), computed in float64 and stored in the weight's type.
    """
    for node in list(graph):
        if node.op_type == "BatchNormalization" and not node.domain:
            _fold(graph, node)


def _fold(graph: ir.Graph, norm: ir.Node) -> None:
    conv = norm.inputs[0].producer() if norm.inputs[0] is not None else None
    training = norm.attributes.get("training_mode")
    if conv is None or conv.op_type != "Conv" or conv.domain or (training is not None and training.value):
        return
    result, weight = conv.outputs[0], conv.inputs[1]
    numbers = [_constant(v) for v in norm.inputs[1:5]]
    bias = _constant(conv.inputs[2]) if len(conv.inputs) > 2 and conv.inputs[2] is not None else np.zeros(1)
    if weight is None or weight.const_value is None or place_of(weight.const_value) is None or bias is None:
        return
    if result in graph.outputs or len(list(result.uses())) != 1 or any(n is None for n in numbers):
        return
    scale, shift, mean, variance = (n for n in numbers if n is not None)
    epsilon = norm.attributes.get("epsilon")
    factor = scale / np.sqrt(variance + (epsilon.value if epsilon is not None else 1e-5))
    name = norm.outputs[0].name
    folded = _added(graph, f"{name}_weight", _scaled(weight.const_value.numpy(), factor))
    dtype = weight.const_value.dtype.numpy()
    added = _added(graph, f"{name}_bias", ((bias - mean) * factor + shift).astype(dtype))
    new = ir.Node(
        "", "Conv", inputs=[conv.inputs[0], folded, added], attributes=list(conv.attributes.values()), name=conv.name
    )
    last = norm.outputs[0]
    shape, kind = last.shape, last.type
    graph.insert_before(norm, new)
    last.replace_all_uses_with(new.outputs[0], replace_graph_outputs=True)
    graph.remove([norm, conv], safe=True)
    new.outputs[0].name, new.outputs[0].shape, new.outputs[0].type = name, shape, kind


def _scaled(weight: NDArray[Any], factor: NDArray[np.float64]) -> NDArray[Any]:
    found = file_array(weight.shape, weight.dtype)
    for rows in row_blocks(weight):
        found[rows] = weight[rows] * factor[rows].reshape(-1, *[1] * (weight.ndim - 1))
    return found


def _constant(value: ir.Value | None) -> NDArray[np.float64] | None:
    tensor = value.const_value if value is not None else None
    return None if tensor is None else np.asarray(tensor.numpy(), np.float64)


def _added(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value
