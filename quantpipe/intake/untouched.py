"""Large weights that no clean-up step looks at: they are put aside, so that no tool copies them again and again.

A step that takes a whole model as a protobuf (onnxslim, onnx's converter) writes and reads it several times over. It
could fold a weight that a chain of ops makes, or a weight that a BatchNormalization after a convolution scales. It
leaves the right side of a matrix product, and a table whose rows are looked up, as they are.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.external_weights import heavy_weights
from quantpipe.graph.op_tables import LEFT_ALONE, SAME

LEAST_BYTES = 1 << 24
"""Weights of a model below which nothing is put aside: there is nothing to gain."""


def untouched(model: ir.Model) -> frozenset[str]:
    """Return the names of large weights in memory that the clean-up may work without."""
    held = heavy_weights(model)
    if sum(tensor.nbytes for tensor in held.values()) < LEAST_BYTES:
        return frozenset()
    values = (model.graph.initializers[name] for name in held)
    return frozenset(value.name or "" for value in values if _is_left_alone(value, model.graph))


def _is_left_alone(value: ir.Value, graph: ir.Graph) -> bool:
    uses = list(value.uses())
    plain = all((u.node.op_type, u.idx) in LEFT_ALONE and not u.node.domain and u.node.graph is graph for u in uses)
    return bool(uses) and plain and not value.is_graph_output() and not value.is_graph_input()


def read_directly(model: ir.Model) -> None:
    """Let the readers of an Identity of a constant read the constant, in place.

    PyTorch's exporter writes such a node for each further reader of a shared weight, and onnxslim makes each a copy.
    """
    for node in list(model.graph):
        if node.op_type not in SAME or node.domain or node.inputs[0] is None:
            continue
        source, result = node.inputs[0], node.outputs[0]
        if source.is_initializer() and not source.is_graph_input() and not result.is_graph_output():
            result.replace_all_uses_with(source)
            model.graph.remove(node, safe=True)


def tie_copies(model: ir.Model) -> None:
    """Let equal weights among those that are put aside be one, in place, as a clean-up that saw them would."""
    known: dict[tuple[object, ...], list[ir.Value]] = {}
    for name in sorted(untouched(model)):
        value = model.graph.initializers[name]
        tensor = value.const_value
        if tensor is None:
            continue
        alike = known.setdefault((tensor.dtype, tuple(tensor.shape.numpy())), [])
        same = next((other for other in alike if _equal(other.const_value, tensor)), None)
        if same is None:
            alike.append(value)
        else:
            value.replace_all_uses_with(same)
            model.graph.initializers.pop(name)


def _equal(first: ir.TensorProtocol | None, second: ir.TensorProtocol) -> bool:
    if first is None:
        return False
    a, b = first.numpy(), second.numpy()
    return bool(np.array_equal(a[:1], b[:1]) and np.array_equal(a, b))
