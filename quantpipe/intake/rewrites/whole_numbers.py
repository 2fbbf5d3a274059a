"""Run ConvInteger as Conv of integral float32 values, which onnxruntime computes several times as fast.

Its integer kernel writes every window out, and goes group by group for depthwise convolutions. Float32 holds every
integer up to 2^24. Where the weights keep all sums below that, whatever the data, the results are the same numbers in
whatever order they are added.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import EXACT_FLOAT32
from quantpipe.graph.edit import constant, is_op, new_constant, new_node, take_place
from quantpipe.graph.external_weights import copied


def whole_number_convolutions(model: ir.Model) -> ir.Model:
    """Return a copy of a model in which each ConvInteger is a Conv of integral floats, where that is exact.

    It is for measuring a model's numbers, and not for a device. The model itself is returned if it has no such node.
    """
    if not any(_weights_of(node) is not None for node in model.graph):
        return model
    copy = copied(model)
    for node in list(copy.graph):
        found = _weights_of(node)
        if found is not None:
            _write(copy.graph, node, *found)
    return copy


def _weights_of(node: ir.Node) -> tuple[NDArray[np.float32], NDArray[np.float32]] | None:
    """Return the weights about their zero point, and the zero point of the data; None where the node stays as it is."""
    if not is_op(node, "ConvInteger"):
        return None
    data, weight, zero, weight_zero = (*node.inputs, None, None)[:4]
    held, given = constant(weight), [constant(v) for v in (zero, weight_zero)]
    if data is None or held is None:
        return None
    if any(v is not None and (g is None or g.size != 1) for v, g in zip((zero, weight_zero), given, strict=True)):
        return None
    of_data, of_weight = (np.float32(0 if g is None else g.reshape(())) for g in given)
    centred = held.astype(np.float32) - of_weight
    farthest = 255 + abs(int(of_data))  # no int8 or uint8 is farther from its zero point
    if float(np.abs(centred).reshape(len(centred), -1).sum(axis=1).max(initial=0)) * farthest >= EXACT_FLOAT32:
        return None
    return centred, np.asarray(of_data)


def _write(graph: ir.Graph, node: ir.Node, weights: NDArray[np.float32], zero: NDArray[np.float32]) -> None:
    # Names that no realized form gives: a name that two values have is one that no session takes.
    at, single = f"whole numbers of {node.name or node.outputs[0].name}", int(ir.DataType.FLOAT)
    data = new_node(graph, node, "Cast", [node.inputs[0]], name=f"{at}/whole", attributes={"to": single})
    if zero:
        held = new_constant(graph, f"{at}/zero", zero)
        data = new_node(graph, node, "Sub", [data, held], name=f"{at}/centred")
    made = ir.Node(
        "",
        "Conv",
        [data, new_constant(graph, f"{at}/weights", weights)],
        attributes=list(node.attributes.values()),
        num_outputs=1,
        name=f"{at}/sums",
    )
    graph.insert_before(node, made)
    whole = {"to": int(ir.DataType.INT32)}
    take_place(node.outputs[0], new_node(graph, node, "Cast", [made.outputs[0]], name=f"{at}/int32", attributes=whole))
    graph.remove(node, safe=True)
