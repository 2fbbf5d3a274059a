"""Describe the part of a realized model that computes floats, and what the file holds around its kernels.

certificate.json names each node in float with its op, tensors and attributes, and the constants that such nodes read.
It names the graph's inputs and outputs, the opsets and the functions of the file. The checker accepts no other.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from quantpipe import extend
from quantpipe.artifacts.digest import digest_array, digest_bytes, digest_json
from quantpipe.lowering.half import TO_HALF, TO_SINGLE
from quantpipe.types import Topology
from quantpipe.types.certificate_file import DefinedFunction, ReadByUsers, RealPart, WrittenNode


def real_part(model: ir.Model, topology: Topology, floats: Collection[str]) -> RealPart:
    """Return the keys of certificate.json that hold for the file as a whole.

    `topology`: Its topology, which names the tables that rows are looked up in. `floats`: Names of the nodes in float.
    """
    graph = model.graph
    heads = _heads(topology)
    own = [n for n in graph if n.name in floats]
    auxiliary = [n for n in graph if n.name not in floats and _is_auxiliary(n, heads)]
    found: RealPart = {
        "inputs": [str(i.name) for i in graph.inputs],
        "outputs": [str(o.name) for o in graph.outputs],
        "opsets": {domain or "ai.onnx": version for domain, version in sorted(graph.opset_imports.items())},
        "constants": _constants(graph, [*own, *auxiliary]),
        "functions": _functions(model),
        "auxiliary_nodes": [{"node": str(n.name), **described(n)} for n in auxiliary],
    }
    if topology.brain_floats:
        found["bfloat16"] = sorted(topology.brain_floats)
    return found


def file_part(model: ir.Model) -> ReadByUsers:
    """Return the keys of certificate.json on the ports and the metadata, after the last entry was written."""
    graph = model.graph
    return {
        "ports": {str(v.name): _port(ir.to_proto(v)) for v in (*graph.inputs, *graph.outputs)},
        "metadata": dict(model.metadata_props),
    }


def _port(value: onnx.ValueInfoProto) -> tuple[int, list[int | str | None]]:
    kind = value.type.tensor_type
    axes = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim]
    return kind.elem_type, axes


def written_floats(model: ir.Model, floats: Collection[str]) -> dict[str, WrittenNode]:
    """Return name -> node of the nodes in float as written."""
    return {str(n.name): described(n) for n in model.graph if n.name in floats}


def described(node: ir.Node) -> WrittenNode:
    """Return what a node is and reads, as plain data; tensors and graphs among its attributes are digests."""
    return {
        "op_type": node.op_type,
        "domain": node.domain,
        "inputs": [(v.name or "") if v is not None else "" for v in node.inputs],
        "outputs": [v.name or "" for v in node.outputs],
        "attributes": {a.name: _attribute(ir.to_proto(a)) for a in node.attributes.values()},
    }


def _is_auxiliary(node: ir.Node, heads: tuple[str, ...]) -> bool:
    """Return whether a node belongs to a look-up of rows, a loop's first state, a scale of each run or a cast."""
    name = node.name or ""
    cast = name.endswith((f"/{TO_HALF}", f"/{TO_SINGLE}"))
    return cast or bool(heads and name.startswith(heads))


def _heads(topology: Topology) -> tuple[str, ...]:
    """What the names of such nodes begin with."""
    tables = [n for node, site in topology.table_of.items() for n in (node, site.tensor, f"{site.tensor}_q")]
    run = [n for node in topology.dynamic for n in (node, topology.weighted_of[node].operands[0].tensor)]
    return (*(f"{name}/" for name in (*tables, *run)), *(f"{name}/first " for name in topology.loop_of))


def _attribute(held: Any) -> Any:
    """An attribute as JSON: numbers and texts themselves, of a tensor or a graph the digest."""
    return _plain(onnx.helper.get_attribute_value(held))


def _plain(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return _digest(onnx.numpy_helper.to_array(value))
    if isinstance(value, onnx.GraphProto):
        return digest_json(_graph(value))
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, int | str):
        return value
    if isinstance(value, onnx.TypeProto | onnx.SparseTensorProto):
        return digest_bytes(value.SerializeToString(deterministic=True))
    return [_plain(v) for v in value]


def _graph(graph: onnx.GraphProto) -> dict[str, Any]:
    """What decides what a body computes; names of its values are part of it, documentation is not."""
    return {
        "inputs": [i.name for i in graph.input],
        "outputs": [o.name for o in graph.output],
        "initializers": {t.name: _plain(t) for t in graph.initializer},
        "nodes": [_node(n) for n in graph.node],
    }


def _node(node: onnx.NodeProto) -> list[Any]:
    """A node of a body or a function, where attributes may refer to attributes of the function."""
    attributes = {a.name: {"of": a.ref_attr_name} if a.ref_attr_name else _attribute(a) for a in node.attribute}
    return [node.op_type, node.domain, list(node.input), list(node.output), attributes]


def _digest(array: Any) -> str:
    """The digest of a constant: of types that NumPy does not have, of the same numbers in float32."""
    if array.dtype.hasobject or array.dtype.kind in "SU":
        return digest_json([list(array.shape), [str(v) for v in array.reshape(-1).tolist()]])
    return digest_array(array if array.dtype.kind in "biuf" else array.astype(np.float32))


def _constants(graph: ir.Graph, nodes: Collection[ir.Node]) -> dict[str, str]:
    """Digests of the constants that nodes read, their bodies included, or that leave the graph."""
    read = {name for node in nodes for name in _read(node)} | {o.name or "" for o in graph.outputs}
    held = {str(n): v.const_value for n, v in graph.initializers.items() if n in read and v.const_value is not None}
    return {name: _digest(tensor.numpy()) for name, tensor in sorted(held.items())}


def _read(node: ir.Node) -> Iterator[str]:
    yield from (v.name or "" for v in node.inputs if v is not None)
    for held in node.attributes.values():
        graphs = [held.value] if held.type == ir.AttributeType.GRAPH else []
        graphs += list(held.value) if held.type == ir.AttributeType.GRAPHS else []
        for graph in graphs:
            yield from (v.name or "" for v in graph.outputs)
            for inner in graph:
                yield from _read(inner)


def _functions(model: ir.Model) -> list[DefinedFunction]:
    """The functions of installed packages that nodes call: domain, name and digest of what they compute."""
    called = {(n.domain, n.op_type) for n in model.graph.all_nodes()}
    own = {**{(f.domain, f.name): f for f in (ir.to_proto(g) for g in model.functions.values())}, **extend.functions()}
    return [
        {"domain": domain, "name": name, "digest": digest_json(_function(definition))}
        for (domain, name), definition in sorted(own.items())
        if (domain, name) in called
    ]


def _function(function: Any) -> dict[str, Any]:
    return {
        "inputs": list(function.input),
        "outputs": list(function.output),
        "attributes": [*function.attribute, *({a.name: _attribute(a)} for a in function.attribute_proto)],
        "opsets": {o.domain or "ai.onnx": o.version for o in function.opset_import},
        "nodes": [_node(n) for n in function.node],
    }
