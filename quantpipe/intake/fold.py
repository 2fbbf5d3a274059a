"""Fold BatchNormalization into convolutions whose weights are in files, a few rows at a time.

onnxslim folds those that are in memory. The folded weight goes to a temporary file of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.external_weights import file_array, place_of, row_blocks
from quantpipe.graph.op_tables import BATCH_NORM
from quantpipe.intake.rewrites.batch_norms import numbers_of


def fold_batch_norms(graph: ir.Graph) -> None:
    """Fold, in place, every BatchNormalization after a convolution whose constant weight is in a file.

    With f = scale / sqrt(variance + epsilon): W' = W·f along the output channels, b' = (b - mean)·f + shift (Ioffe and
    Szegedy 2015, at inference), computed in float64 and stored in the weight's type.
    """
    for node in list(graph):
        if node.op_type == BATCH_NORM and not node.domain:
            _fold(graph, node)


def _fold(graph: ir.Graph, norm: ir.Node) -> None:
    numbers = numbers_of(graph, norm)
    conv = norm.inputs[0].producer() if numbers is not None and norm.inputs[0] is not None else None
    weight = conv.inputs[1] if conv is not None else None
    if numbers is None or conv is None or weight is None or weight.const_value is None:
        return
    if place_of(weight.const_value) is None:
        return
    name = norm.outputs[0].name
    folded = _added(graph, f"{name}_weight", _scaled(weight.const_value.numpy(), numbers.factor))
    dtype = weight.const_value.dtype.numpy()
    added = _added(graph, f"{name}_bias", numbers.folded_bias.astype(dtype))
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


def _added(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    tensor = ir.tensor(array, name=name)
    value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value
