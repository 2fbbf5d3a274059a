"""Small edits of a model in place: constants, new nodes, and the replacement of results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.convenience import convert_attributes

CLOSE = 1e-3
"""Relative error of a well-known constant (1/√2, 1/6), as exporters round it, and as float16 does: by up to 2^-11, and
twice that where two are multiplied. The clean-up as a whole is checked on samples."""


def is_op(node: ir.Node | None, *ops: str) -> bool:
    """Return whether a node is one of these standard ops."""
    return node is not None and node.op_type in ops and node.domain in ("", "ai.onnx")


def constant(value: ir.Value | None) -> NDArray[Any] | None:
    """Return the content of a constant value, or None."""
    if value is None or value.const_value is None:
        return None
    return np.asarray(value.const_value.numpy())


def scalar(value: ir.Value | None) -> float | None:
    """Return the content of a constant with one float32 element, or None."""
    array = constant(value)
    return float(array.reshape(())) if array is not None and array.size == 1 and array.dtype == np.float32 else None


def operand(node: ir.Node, port: int | None) -> ir.Value | None:
    """Return an input of a node; None if it is left out, or there is no such port."""
    return node.inputs[port] if port is not None and port < len(node.inputs) else None


def is_scalar(value: ir.Value | None, wanted: float) -> bool:
    """Return whether a value is a constant with one element close to a number."""
    found = scalar(value)
    return found is not None and math.isclose(found, wanted, rel_tol=CLOSE)


def attribute(node: ir.Node, name: str, default: Any = None) -> Any:
    """Return the value of a node's attribute, or `default` where it is not set."""
    found = node.attributes.get(name)
    return default if found is None else found.value


def rank(value: ir.Value | None) -> int | None:
    """Return the number of axes where it is known."""
    return None if value is None or value.shape is None else len(value.shape)


def only_user(value: ir.Value, graph: ir.Graph) -> ir.Node | None:
    """Return the one node that reads a value, None where several do or where it leaves the graph."""
    uses = list(value.uses())
    return uses[0].node if len(uses) == 1 and value not in graph.outputs else None


def new_constant(graph: ir.Graph, name: str, array: NDArray[Any]) -> ir.Value:
    """Add an initializer under a free name close to `name`, and return it."""
    candidate, number = name, 1
    while _is_taken(graph, candidate):
        number += 1
        candidate = f"{name}_{number}"
    tensor = ir.tensor(np.asarray(array, order="C"), name=candidate)
    value = ir.Value(name=candidate, type=ir.TensorType(tensor.dtype), shape=ir.Shape(array.shape), const_value=tensor)
    graph.register_initializer(value)
    return value


def _is_taken(graph: ir.Graph, name: str) -> bool:
    if name in graph.initializers or any(value.name == name for value in graph.inputs):
        return True
    return any(value.name == name for node in graph for value in node.outputs)


def new_node(
    graph: ir.Graph,
    before: ir.Node,
    op: str,
    inputs: Sequence[ir.Value | None],
    *,
    name: str | None,
    attributes: Mapping[str, Any] | None = None,
) -> ir.Value:
    """Insert a node with one output before `before`, and return the output.

    None is an absent optional input; without a name one is generated.
    """
    attrs = convert_attributes(dict(attributes or {}))
    node = ir.Node("", op, inputs=list(inputs), attributes=attrs, num_outputs=1, name=name)
    graph.insert_before(before, node)
    return node.outputs[0]


def take_place(old: ir.Value, new: ir.Value) -> None:
    """Put `new` where `old` stood, under its name, as graph output too."""
    name, shape, dtype = old.name, old.shape, old.type
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    old.name = None
    new.name, new.shape, new.type = name, shape, dtype


def outside(graph: ir.Graph, body: ir.Graph, name: str) -> ir.Value | None:
    """Return the graph's constant of that name; a body's constant moves to the graph first. None if neither has it.

    Values that a body reads from outside are found by name, because copies of graphs have values of their own.
    """
    if name in body.initializers and name not in graph.initializers:
        graph.register_initializer(body.initializers.pop(name))
    return graph.initializers.get(name)
