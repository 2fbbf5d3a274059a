"""Give a written model the lowest opset that its nodes need.

A definition of an op is valid from its `since_version` to the next one, so a model may name any opset from the highest
`since_version` of its nodes on. A later definition may differ from the one before it only in allowed types and in added
attributes and inputs. If the node uses no added ones, the earlier definition is sufficient.
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

ADDED: Mapping[str, frozenset[str]] = {
    op: frozenset(names.split())
    for op, names in {
        "Cast": "saturate round_mode",
        "CastLike": "saturate round_mode",
        "DequantizeLinear": "block_size output_dtype",
        "Pad": "axes",
        "QuantizeLinear": "saturate block_size output_dtype precision",
        "Reshape": "allowzero",
        "ScatterElements": "reduction",
        "ScatterND": "reduction",
        "Shape": "start end",
        "Split": "num_outputs",
    }.items()
}
"""Op -> attributes and inputs that later definitions added, without which a node means what it meant before."""

VALUES: Mapping[tuple[str, str], tuple[int, frozenset[str]]] = {
    ("Pad", "mode"): (19, frozenset({"wrap"})),
    ("Resize", "coordinate_transformation_mode"): (19, frozenset({"half_pixel_symmetric"})),
    ("ScatterElements", "reduction"): (18, frozenset({"max", "min"})),
    ("ScatterND", "reduction"): (18, frozenset({"max", "min"})),
}
"""(op, attribute) -> the opset that gave it more values, and these: no list of types or attributes says so."""

LIKE: Mapping[str, int] = {
    "BipolarQuant": 1,
    "MatMulIntegerToFloat": 2,
    "MatMulNBits": 2,
    "QGemm": 8,
    "QLinearAdd": 7,
    "QLinearGlobalAveragePool": 4,
    "QLinearMul": 7,
    "Quant": 1,
    "Trunc": 1,
}
"""Op of onnxruntime's and QONNX's that forms write -> the constant among its inputs whose type its result has."""


def with_least_opset(model: ir.Model, *, kernels: Collection[str] = ()) -> ir.Model:
    """Return the model with the lowest opset of ONNX's own that its nodes need; itself, changed in place.

    The model's opset stays for a node that ONNX does not define, and for ops of packages, whose functions are written
    in it. It also stays for external weights, which are not read for this. `kernels`: more domains whose ops are no
    functions.
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
    """Return the first opset at which a node means what it means at `opset`; None where ONNX does not know the op."""
    try:
        schema = onnx.defs.get_schema(node.op_type, max_inclusive_version=opset, domain="")
    except onnx.defs.SchemaError:
        return None
    while schema.since_version > FLOOR:
        try:
            earlier = onnx.defs.get_schema(node.op_type, max_inclusive_version=schema.since_version - 1, domain="")
        except onnx.defs.SchemaError:
            break
        if not _says(earlier, schema, node) or not _allows(earlier, node, kinds):
            break
        schema = earlier
    return max(int(schema.since_version), 1)


def _says(earlier: onnx.defs.OpSchema, later: onnx.defs.OpSchema, node: ir.Node) -> bool:
    """Return whether a node means the same by an earlier definition, types apart."""
    for (op, name), (since, values) in VALUES.items():
        crossed = op == node.op_type and later.since_version >= since > earlier.since_version
        if crossed and name in node.attributes and node.attributes[name].as_string() in values:
            return False
    known, given = ADDED.get(node.op_type, frozenset()), {*node.attributes, *_read(later, node)}
    before, now = _parts(earlier), _parts(later)
    added = now.keys() - before.keys()
    return added <= known - given and all(now.get(name) == part for name, part in before.items())


def _parts(schema: onnx.defs.OpSchema) -> dict[str, object]:
    """Return the parts of a definition other than types, by name: attributes with defaults, ports in order."""
    found: dict[str, object] = {
        name: (str(a.type), a.required, str(getattr(a.default_value, "SerializeToString", bytes)()))
        for name, a in schema.attributes.items()
    }
    for ports, kind in ((schema.inputs, "input"), (schema.outputs, "output")):
        for place, port in enumerate(ports):
            name = port.name if port.name in ADDED.get(schema.name, ()) else f"{kind} {place}"
            found[name] = (kind, place, str(port.option), port.is_homogeneous, port.min_arity)
    return found


def _read(schema: onnx.defs.OpSchema, node: ir.Node) -> Iterator[str]:
    """Yield the names, in a definition, of the inputs that a node has."""
    for port, value in zip(schema.inputs, node.inputs, strict=False):
        if value is not None:
            yield port.name


def _allows(schema: onnx.defs.OpSchema, node: ir.Node, kinds: Mapping[str, str]) -> bool:
    """Return whether a definition takes the types that a node reads and makes; unknown ones are not accepted."""
    for ports, values in ((schema.inputs, node.inputs), (schema.outputs, node.outputs)):
        for port, value in zip(_repeated(ports), values, strict=False):
            if value is not None and value.name and kinds.get(value.name) not in port.types:
                return False
    return True


def _repeated(ports: Sequence[onnx.defs.OpSchema.FormalParameter]) -> Iterator[onnx.defs.OpSchema.FormalParameter]:
    """Yield the ports of a definition, the last one again and again where it is variadic."""
    yield from ports
    while ports and ports[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic:
        yield ports[-1]


def _types(model: ir.Model) -> dict[str, str]:
    """Return value -> its type as definitions write it, such as `tensor(int8)`."""
    proto = model_proto(model)
    constants = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    for node in proto.graph.node:  # what ONNX's inference knows nothing of
        place = LIKE.get(node.op_type) if node.domain not in ("", "ai.onnx") else None
        if place is not None and len(node.input) > place and node.input[place] in constants:
            kind = constants[node.input[place]]
            proto.graph.value_info.append(onnx.helper.make_tensor_value_info(node.output[0], kind, None))
    try:
        graph = onnx.shape_inference.infer_shapes(proto).graph
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
