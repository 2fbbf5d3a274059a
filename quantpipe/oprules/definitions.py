"""Define the function that a table represents, without code of this program: op, attributes, parameters."""

from __future__ import annotations

from typing import Any

from quantpipe.graph.view import Graph, Node
from quantpipe.types.certificate_file import TableFunction

ATTRIBUTES = {
    "Sigmoid": (), "Tanh": (), "HardSwish": (), "Softplus": (), "Softsign": (), "Mish": (), "Erf": (), "Exp": (),
    "Log": (), "Sqrt": (), "Reciprocal": (), "Abs": (), "Neg": (), "Sign": (), "Floor": (), "Ceil": (), "Round": (),
    "Sin": (), "Cos": (), "PRelu": (), "Pow": (), "LeakyRelu": ("alpha",), "Elu": ("alpha",), "Celu": ("alpha",),
    "ThresholdedRelu": ("alpha",), "Selu": ("alpha", "gamma"), "HardSigmoid": ("alpha", "beta"),
    "Gelu": ("approximate",), "Swish": ("alpha",),
}  # fmt: skip
"""Ops whose tables can be recomputed from their definition, with the attributes that it has."""


def specified(node: Node, graph: Graph) -> TableFunction | None:
    """Return the function of a node; None where its definition is not known here."""
    if node.op not in ATTRIBUTES or node.domain not in ("", "ai.onnx"):
        return None
    given = {name: _plain(node.attr(name)) for name in ATTRIBUTES[node.op] if name in node.attributes}
    parameters = [graph.constant(t).reshape(-1).tolist() for t in node.inputs[1:] if t]
    return {"op": node.op, "attributes": given, "parameters": parameters}


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
