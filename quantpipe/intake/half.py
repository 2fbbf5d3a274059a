"""Models in half precision, whole or in part, as float32 models.

Takes a model and gives one in which every float16 and bfloat16 tensor is a float32 one: weights and constants (the same
values: float32 holds them all), ports, and the types that nodes name (Cast, for instance). What is calibrated, searched
and realized is that model. Its ports remember the type that the file gives them where that is float16
(`TensorInfo.given`): samples are rounded to it, and the realized model has it.

Files of this feature, all `half.py`: `intake` (files in half precision as float32), `annotate` (nodes that compute in
float16), `lowering` (writes their Casts).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import onnx
import onnx_ir as ir

from quantpipe.errors import ModelError
from quantpipe.graph.external_weights import converted, copied, row_blocks, without_weights
from quantpipe.graph.io import STAGE
from quantpipe.graph.op_tables import BITCAST, CAST

HALVES = {ir.DataType.FLOAT16: "float16", ir.DataType.BFLOAT16: "bfloat16"}
GIVEN = ir.DataType.FLOAT16
"""The type that ports keep. onnxruntime's Python functions neither take nor give bfloat16 arrays: such ports become
float32 for good."""

TYPE_ATTRIBUTES = frozenset(
    {"to", "dtype", "output_dtype", "output_datatype", "stash_type", "softmax_precision", "precision"}
)
"""Attributes by which ops of ONNX name a type: that of their result, or in which they compute."""


@dataclass(frozen=True, eq=False)
class Halves:
    """Hold what of a model was in half precision.

    `types`: type -> how many tensors, constants and ports that the file declares have it. `given`: port -> its type,
    where the realized model keeps it. `broken`: constants that are not finite. `tensors` are float16 in the file.
    """

    types: Mapping[str, int]
    given: Mapping[str, str]
    broken: tuple[str, ...]
    tensors: frozenset[str] = frozenset()


def to_single(model: ir.Model, where: str) -> tuple[ir.Model, Halves]:
    """Return the model in float32, and its half-precision parts; the model itself if it has no such parts.

    The model has no functions of its own. Raises ModelError where a node reads the bits of a half-precision number.
    """
    if not _has_half(model):
        return model, Halves({}, {}, ())
    for node in model.graph.all_nodes():
        if node.op_type == BITCAST and not node.domain and _reads_bits(node):
            raise _refused(node, where)
    copy = copied(model)
    given = {p.name or "": HALVES[GIVEN] for p in [*copy.graph.inputs, *copy.graph.outputs] if p.dtype is GIVEN}
    types: Counter[str] = Counter()
    broken: list[str] = []
    narrow: list[ir.Node] = []
    for graph in copy.graphs():
        for value in _values(graph):
            types.update(_widen_value(value, broken))
        for node in graph:
            changed = _widen_attributes(node, types, broken)
            if node.op_type == CAST and not node.domain and (changed or node.attributes["to"].value == 1):
                narrow.append(node)
    single = _without_casts(copy, {n.name or "" for n in narrow})
    return single, Halves(dict(types), given, tuple(broken), frozenset(_types(model, GIVEN)))


def _has_half(model: ir.Model) -> bool:
    for graph in model.graphs():
        if any(_held(value) in HALVES for value in _values(graph)):
            return True
        for node in graph:
            for attribute in node.attributes.values():
                if any(t.dtype in HALVES for t in _tensors(attribute)) or _named(attribute) in HALVES:
                    return True
    return False


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    """Yield every value that the graph itself makes, takes or holds, once."""
    seen: set[int] = set()
    for value in (*graph.inputs, *graph.initializers.values(), *(v for node in graph for v in node.outputs)):
        if id(value) not in seen:
            seen.add(id(value))
            yield value


def _held(value: ir.Value) -> ir.DataType | None:
    return value.const_value.dtype if value.const_value is not None else value.dtype


def _widen_value(value: ir.Value, broken: list[str]) -> list[str]:
    """Make a value float32, in place; return the name of the type it had, or nothing."""
    kind = _held(value)
    if kind is None or kind not in HALVES:
        return []
    value.dtype = ir.DataType.FLOAT
    if value.const_value is not None:
        value.const_value = _widened(value.const_value, value.name or "", broken)
    return [HALVES[kind]]


def _widened(tensor: ir.TensorProtocol, name: str, broken: list[str]) -> ir.TensorProtocol:
    """Return the same numbers in float32."""
    found = converted(tensor, np.float32)
    if not all(np.isfinite(found[rows]).all() for rows in (row_blocks(found) if found.ndim else [...])):
        broken.append(name)
    return ir.tensor(found, name=tensor.name)


def _tensors(attribute: ir.Attr) -> list[ir.TensorProtocol]:
    if attribute.type is ir.AttributeType.TENSOR:
        return [attribute.value]
    return list(attribute.value) if attribute.type is ir.AttributeType.TENSORS else []


def _named(attribute: ir.Attr) -> ir.DataType | None:
    """Return the half-precision type that an attribute names, if it names one."""
    if attribute.type is ir.AttributeType.INT and attribute.name in TYPE_ATTRIBUTES:
        return next((kind for kind in HALVES if int(kind) == attribute.value), None)
    return None


def _widen_attributes(node: ir.Node, types: Counter[str], broken: list[str]) -> bool:
    """Make float32 of what the node's attributes hold or name, in place; return whether one named a type."""
    changed = False
    for name, attribute in list(node.attributes.items()):
        if attribute.is_ref():
            continue
        if _named(attribute) is not None:
            node.attributes[name] = ir.AttrInt64(name, int(ir.DataType.FLOAT))
            changed = True
        elif any(t.dtype in HALVES for t in _tensors(attribute)):
            owner = node.outputs[0].name or node.name or ""
            types.update(HALVES[t.dtype] for t in _tensors(attribute) if t.dtype in HALVES)
            held = [_widened(t, owner, broken) if t.dtype in HALVES else t for t in _tensors(attribute)]
            whole = attribute.type is ir.AttributeType.TENSORS
            node.attributes[name] = ir.AttrTensors(name, held) if whole else ir.AttrTensor(name, held[0])
        elif attribute.type is ir.AttributeType.TYPE_PROTO and attribute.value.type.dtype in HALVES:
            attribute.value.type.dtype = ir.DataType.FLOAT
    return changed


def _reads_bits(node: ir.Node) -> bool:
    source = node.inputs[0]
    return any(_named(a) for a in node.attributes.values()) or (source is not None and _held(source) in HALVES)


def _types(model: ir.Model, only: ir.DataType | None = None) -> dict[str, int]:
    """Return the inferred type of each tensor that a node makes or a port holds; with `only`, of that type."""
    proto, _ = without_weights(model)
    return {
        v.name: v.type.tensor_type.elem_type
        for g in [onnx.shape_inference.infer_shapes(proto).graph]
        for v in (*g.value_info, *g.input, *g.output)
        if only is None or v.type.tensor_type.elem_type == int(only)
    }


def _without_casts(model: ir.Model, casts: set[str]) -> ir.Model:
    """Return the model without the named Casts that are now from float32 to float32."""
    known = _types(model)
    known |= {name: int(v.dtype) for name, v in model.graph.initializers.items() if v.dtype is not None}
    for node in list(model.graph):
        source, made = (node.inputs[0], node.outputs[0]) if node.name in casts else (None, None)
        if source is None or made is None or known.get(source.name or "") != int(ir.DataType.FLOAT):
            continue
        if not made.is_graph_output():
            made.replace_all_uses_with(source)
            model.graph.remove(node, safe=True)
        elif source.producer() is not None and not source.is_graph_output():
            name, shape, kind = made.name, made.shape, made.type
            made.replace_all_uses_with(source, replace_graph_outputs=True)
            model.graph.remove(node, safe=True)
            source.name, source.shape, source.type = name, shape, kind
    return model


def _refused(node: ir.Node, where: str) -> ModelError:
    return ModelError(
        f"{BITCAST} reinterprets the bits of a float16 or bfloat16 number, but the model is cast to float32, whose "
        "bits are different. Legal are half-precision models that convert numbers with Cast",
        stage=STAGE,
        where=f"{where}, node {node.name!r}",
    )
