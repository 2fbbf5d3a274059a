"""The part of a model that computes floats: it is the part that was written, and no result of it is claimed.

Each node in float has the op, tensors, attributes and constants that certificate.json names. The graph has the inputs
and outputs named there, in their order.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np
import onnx

from quantpipe.verify.files import Folder, array_digest, canonical, data_digest, expect
from quantpipe.verify.realized_model import Model

KEYS = ("inputs", "outputs", "opsets", "constants", "functions", "auxiliary_nodes", "ports", "metadata")
"""Keys of certificate.json that versions before them do not write."""
OF_NODES = ("op_type", "domain", "inputs", "outputs", "attributes")


def states_real_part(certificate: Mapping[str, Any]) -> bool:
    """Return whether a certificate names nodes in float, inputs and outputs; earlier versions did not.

    Raises Wrong for a certificate with some of these keys.
    """
    missing = [key for key in KEYS if key not in certificate]
    expect(len(missing) in (0, len(KEYS)), "certificate.json", f"it has no {', '.join(missing)}")
    incomplete = [f["node"] for f in certificate["float_nodes"] if not missing and any(k not in f for k in OF_NODES)]
    expect(not incomplete, "certificate.json", f"it does not describe the nodes in float {', '.join(incomplete[:8])}")
    return not missing


def check_real_part(folder: Folder, model: Model, floats: Collection[str]) -> None:
    """Check nodes in float, the constants that they read, inputs and outputs against certificate.json.

    `model`: the model, after all of its kernels were checked.
    """
    graph, certificate = folder.model.graph, folder.certificate
    for key, ports in (("inputs", graph.input), ("outputs", graph.output)):
        found, wanted = [port.name for port in ports], certificate[key]
        expect(found == wanted, "model.onnx", f"its {key} are {found}, the certificate names {wanted}")
    for port in (*graph.input, *graph.output):
        form, stated = _port(port), certificate["ports"].get(port.name)
        expect(form == stated, port.name, f"its type and axes are {form}, the certificate names {stated}")
    metadata = {entry.key: entry.value for entry in folder.model.metadata_props}
    for key in sorted({*metadata, *certificate["metadata"]}):
        there, named = metadata.get(key), certificate["metadata"].get(key)
        expect(there == named, "model.onnx", f"its metadata {key} are {_shown(there)}, the certificate names "
               f"{_shown(named)}")  # fmt: skip
    entries = {str(e["node"]): e for e in (*certificate["float_nodes"], *certificate["auxiliary_nodes"])}
    for node in model.nodes:
        unknown = node.name in floats and id(node) not in model.seen_nodes and node.name not in entries
        expect(not unknown, node.name, "it belongs to no kernel, and the certificate does not name it")
    held = {n.name: n for n in graph.node}
    for name, entry in entries.items():
        expect(name in held, name, "the certificate names this node, which the model has not")
        described = _described(held[name])
        for key in OF_NODES:
            expect(described[key] == entry[key], name, f"its {key} {_shown(described[key])}, the certificate names "
                   f"{_shown(entry[key])}")  # fmt: skip
    _expect_constants(folder, [held[name] for name in entries])


def _port(value: onnx.ValueInfoProto) -> list[Any]:
    kind = value.type.tensor_type
    return [kind.elem_type, [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in kind.shape.dim]]


def _shown(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _expect_constants(folder: Folder, nodes: Collection[onnx.NodeProto]) -> None:
    """Constants that these nodes read, or that leave the graph, are in the certificate."""
    graph, named = folder.model.graph, folder.certificate["constants"]
    read = {name for node in nodes for name in _read(node)} | {o.name for o in graph.output}
    found = {t.name for t in graph.initializer if t.name in read}
    expect(found == set(named), "model.onnx", f"its nodes in float read other constants than the certificate names: "
           f"{', '.join(sorted(found ^ set(named)))}")  # fmt: skip
    for tensor in graph.initializer:
        if tensor.name in found:
            expect(_digest(folder.elements(tensor)) == named[tensor.name], tensor.name,
                   "this constant of nodes in float is not the one that the certificate names")  # fmt: skip


def _described(node: onnx.NodeProto) -> dict[str, Any]:
    return {
        "op_type": node.op_type,
        "domain": node.domain,
        "inputs": list(node.input),
        "outputs": list(node.output),
        "attributes": {a.name: _attribute(a) for a in node.attribute},
    }


def _attribute(held: onnx.AttributeProto) -> Any:
    """An attribute, or the name of the attribute of the function that it refers to."""
    return {"of": held.ref_attr_name} if held.ref_attr_name else _plain(onnx.helper.get_attribute_value(held))


def _plain(value: Any) -> Any:
    """An attribute as certificate.json has it: of a tensor or a graph, the digest."""
    if isinstance(value, onnx.TensorProto):
        inside = value.data_location != onnx.TensorProto.EXTERNAL
        expect(inside, value.name or "an attribute", "its data are in a file, and no form writes attributes to files")
        return _digest(onnx.numpy_helper.to_array(value))
    if isinstance(value, onnx.GraphProto):
        return canonical(_graph(value))
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    if isinstance(value, int | str):
        return value
    if isinstance(value, onnx.TypeProto | onnx.SparseTensorProto):
        return data_digest(value.SerializeToString(deterministic=True))
    return [_plain(v) for v in value]


def _graph(graph: onnx.GraphProto) -> dict[str, Any]:
    expect(not graph.sparse_initializer, graph.name, "a body has sparse_initializer, which no form writes")
    return {
        "inputs": [i.name for i in graph.input],
        "outputs": [o.name for o in graph.output],
        "initializers": {t.name: _plain(t) for t in graph.initializer},
        "nodes": [_listed(n) for n in graph.node],
    }


def _listed(node: onnx.NodeProto) -> list[Any]:
    return list(_described(node).values())


def function_digest(function: onnx.FunctionProto) -> str:
    """Return the digest of what a function computes, as certificate.json has it."""
    defaults = [{a.name: _plain(onnx.helper.get_attribute_value(a))} for a in function.attribute_proto]
    return canonical(
        {
            "inputs": list(function.input),
            "outputs": list(function.output),
            "attributes": [*function.attribute, *defaults],
            "opsets": {o.domain or "ai.onnx": o.version for o in function.opset_import},
            "nodes": [_listed(n) for n in function.node],
        }
    )


def _digest(array: Any) -> str:
    """The digest of a constant: of types that NumPy does not have, of the same numbers in float32."""
    if array.dtype.hasobject or array.dtype.kind in "SU":
        return canonical([list(array.shape), [str(v) for v in array.reshape(-1).tolist()]])
    return array_digest(array if array.dtype.kind in "biuf" else array.astype(np.float32))


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node and its bodies read."""
    yield from node.input
    for held in node.attribute:
        for graph in [held.g] if held.type == onnx.AttributeProto.GRAPH else list(held.graphs):
            yield from (o.name for o in graph.output)
            for inner in graph.node:
                yield from _read(inner)
