"""Give a written model the least opset that its nodes need.

A definition of an op holds from its `since_version` to the next one, so a model may name any opset from the greatest
`since_version` of its nodes on. Where a later definition differs from the one before it in nothing but the types that
it allows, and the node has none of the added ones, the earlier one will do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from quantpipe.graph.external_weights import is_heavy
from quantpipe.graph.io import model_proto

KNOWN = ("", "ai.onnx", "com.microsoft")
"""Domains whose ops are kernels of onnxruntime. Others are defined by functions, which are written in an opset."""

FLOOR = 13
"""QuantizeLinear with an axis; onnxruntime's fusions know no earlier definitions of some ops."""


def with_least_opset(model: ir.Model, *, kernels: Collection[str] = ()) -> ir.Model:
    """Return the model with the least opset of ONNX's own that its nodes need; itself, changed in place.

    A node that ONNX does not define keeps the model's, as do ops of packages, whose functions are written in it, and
    models whose weights lie in files, which are not read for this. `kernels`: more domains whose ops are no functions.
    """
    given = model.graph.opset_imports.get("")
    if given is None or any(node.domain not in (*KNOWN, *kernels) for node in model.graph.all_nodes()):
        return model
    kinds = {} if is_heavy(model) else _types(model)
    needed = FLOOR
    for node in model.graph.all_nodes():
        if node.domain not in ("", "ai.onnx"):
            continue
        since = _least(node, given, kinds)
        if since is None:
            return model
        needed = max(needed, since)
    model.graph.opset_imports[""] = min(given, needed)
    return model


def _least(node: ir.Node, opset: int, kinds: Mapping[str, str]) -> int | None:
    """The first opset at which a node means what it means at `opset`; None where ONNX does not know the op."""
    try:
        schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        return None
    while schema.since_version > FLOOR:
        try:
            earlier = onnx.defs.get_schema(node.op_type, max_inclusive_version=schema.since_version - 1, domain="")
        except onnx.defs.SchemaError:
            break
        if _shape_of(earlier) != _shape_of(schema) or not _allows(earlier, node, kinds):
            break
        schema = earlier
    return max(int(schema.since_version), 1)


def _shape_of(schema: onnx.defs.OpSchema) -> tuple[object, ...]:
    """What of a definition is more than types: its attributes with their defaults, its inputs and outputs."""
    attributes = tuple(
        sorted(
            (name, str(a.type), a.required, str(getattr(a.default_value, "SerializeToString", bytes)()))
            for name, a in schema.attributes.items()
        )
    )
    ports = tuple((str(port.option), port.is_homogeneous, port.min_arity) for port in (*schema.inputs, *schema.outputs))
    return attributes, len(schema.inputs), ports


def _allows(schema: onnx.defs.OpSchema, node: ir.Node, kinds: Mapping[str, str]) -> bool:
    """Whether a definition takes the types that a node reads and makes; unknown ones it does not."""
    for ports, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for port, value in zip(_repeated(ports), values, strict=False):
            if value is not None and value.name and kinds.get(value.name) not in port.types:
                return False
    return True


def _repeated(ports: Sequence[onnx.defs.OpSchema.FormalParameter]) -> Iterator[onnx.defs.OpSchema.FormalParameter]:
    """The ports of a definition, the last one again and again where it is variadic."""
    yield from ports
    while ports and ports[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        yield ports[-1]


def _types(model: ir.Model) -> dict[str, str]:
    """Value -> its type as definitions write it, such as `tensor(int8)`."""
    try:
        graph = onnx.shape_inference.infer_shapes(model_proto(model)).graph
    except Exception:  # the inference raises many types for ops it does not know; then nothing is lowered
        return {}
    found = {}
    for info in (*graph.value_info, *graph.input, *graph.output):
        if info.type.HasField("tensor_type"):
            found[info.name] = _written(info.type.tensor_type.elem_type)
    for tensor in graph.initializer:
        found[tensor.name] = _written(tensor.data_type)
    return found


def _written(kind: int) -> str:
    names = {"FLOAT": "float", "DOUBLE": "double"}
    name = onnx.TensorProto.DataType.Name(kind)
    return f"tensor({names.get(name, name.lower())})"
