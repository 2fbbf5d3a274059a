"""Derive the expected inputs of a model from its first layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Graph, Node


@dataclass(frozen=True, eq=False)
class Expectation:
    """State the values of `tensor` that a model's first layer expects; `node` (an `op`) reads it.

    `mean` and `deviation` are those per channel `[C]` in training, channels on axis 1; where no layer remembers them,
    `limit` is the value that the tensor is cut off at.
    """

    node: str
    op: str
    tensor: str
    mean: NDArray[np.float64] | None = None
    deviation: NDArray[np.float64] | None = None
    limit: float | None = None


def expectation(graph: Graph) -> Expectation | None:
    """Return the expectation of the first BatchNormalization, else of the first Clip with an upper limit, else None."""
    return _first(graph, "BatchNormalization") or _first(graph, "Clip")


def _first(graph: Graph, op: str) -> Expectation | None:
    made = set(graph.producers) | graph.input_names
    node = next((n for n in graph.nodes if n.op == op and n.inputs[0] in made), None)
    if node is None:
        return None
    if op == "Clip":
        limit = _constant(graph, node, 2)
        if limit is None or limit.size != 1:
            return None
        return Expectation(node.name, op, node.inputs[0], limit=float(limit.reshape(-1)[0]))
    mean, variance = _constant(graph, node, 3), _constant(graph, node, 4)
    if mean is None or variance is None:
        return None
    spread = np.maximum(variance.astype(np.float64), 0.0) + float(node.attr("epsilon", 1e-5))
    return Expectation(node.name, op, node.inputs[0], mean.astype(np.float64), np.sqrt(spread))


def _constant(graph: Graph, node: Node, port: int) -> NDArray[Any] | None:
    """Return the value of an input that is an initializer, or made by a Constant."""
    name = node.inputs[port] if port < len(node.inputs) else ""
    if graph.is_constant(name):
        return graph.constant(name)
    maker = graph.producers.get(name)
    value = maker.attr("value") if maker is not None and maker.op == "Constant" else None
    return None if value is None else np.asarray(value.numpy())
