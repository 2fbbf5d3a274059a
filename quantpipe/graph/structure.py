"""Digests of what a graph computes, in a tenth of the time of writing it as a file and hashing that."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from typing import Any

import onnx_ir as ir

from quantpipe.graph.external_weights import place_of
from quantpipe.graph.view import Graph, Node


def structure_digest(model: ir.Model) -> bytes:
    """Return a digest that is equal for models whose ports, constants and nodes are the same.

    Notes do not count. The models must have no functions.
    """
    digest = hashlib.blake2b(repr(sorted(model.opset_imports.items())).encode(), digest_size=16)
    _feed(digest, model.graph)
    return digest.digest()


def nodes_digest(graph: Graph, nodes: Iterable[Node], but: Collection[str] = ()) -> bytes:
    """Return a digest that is equal for nodes that compute the same; constants of the names in `but` do not count."""
    digest = hashlib.blake2b(digest_size=16)
    for node in nodes:
        digest.update(repr((node.name, node.op, node.inputs, node.outputs)).encode())
        for name, attribute in sorted(node.attributes.items()):
            digest.update(repr((name, int(attribute.type))).encode())
            _feed_attribute(digest, attribute)
        for name in dict.fromkeys((*node.inputs, *node.captured)):
            if name and name not in but and graph.is_constant(name):
                _feed_tensor(digest, name, graph.constant_tensor(name))
    return digest.digest()


def _feed(digest: Any, graph: ir.Graph) -> None:
    ports = [(v.name, str(v.type), str(v.shape)) for v in graph.inputs]
    digest.update(repr((ports, [v.name for v in graph.outputs])).encode())
    for name, value in graph.initializers.items():
        _feed_tensor(digest, name, value.const_value)
    for node in graph:
        names = [[v.name if v is not None else None for v in values] for values in (node.inputs, node.outputs)]
        digest.update(repr((node.domain, node.op_type, names)).encode())
        for name, attribute in sorted(node.attributes.items()):
            digest.update(repr((name, int(attribute.type))).encode())
            _feed_attribute(digest, attribute)


def _feed_attribute(digest: Any, attribute: ir.Attr) -> None:
    value, kinds = attribute.value, ir.AttributeType
    if attribute.type in (kinds.GRAPH, kinds.GRAPHS):
        for graph in [value] if attribute.type is kinds.GRAPH else value:
            _feed(digest, graph)
    elif attribute.type in (kinds.TENSOR, kinds.TENSORS):
        for tensor in [value] if attribute.type is kinds.TENSOR else value:
            _feed_tensor(digest, "", tensor)
    else:
        digest.update(repr(value).encode())


def _feed_tensor(digest: Any, name: str, tensor: ir.TensorProtocol | None) -> None:
    """Include a tensor; a tensor in a file is represented by its place."""
    if tensor is None:
        digest.update(repr((name, None)).encode())
        return
    place = place_of(tensor)
    digest.update(repr((name, int(tensor.dtype), str(tensor.shape), place)).encode())
    if place is None:
        digest.update(tensor.tobytes())
