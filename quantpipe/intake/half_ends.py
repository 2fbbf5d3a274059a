"""Models whose ports have another float type than the inner tensors: Cast nodes after inputs and before outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import onnx_ir as ir

from quantpipe.graph.external_weights import copied
from quantpipe.graph.op_tables import CAST

SUFFIX = "float32"


def cast_ends(model: ir.Model, kinds: Mapping[str, ir.DataType]) -> ir.Model:
    """Return the model with ports of other types (port -> type); names, order and shapes stay.

    The result is a copy that shares its weights, or the model itself where nothing changes.
    """
    ports = [*model.graph.inputs, *model.graph.outputs]
    if all(kinds.get(p.name or "", p.dtype) is p.dtype for p in ports):
        return model
    copy = copied(model)
    graph = copy.graph
    taken = {v.name for v in (*graph.inputs, *graph.initializers.values(), *(v for n in graph for v in n.outputs))}
    for position, inner in enumerate(list(graph.inputs)):
        kind = kinds.get(inner.name or "", inner.dtype)
        if kind is None or kind is inner.dtype or inner.name in graph.initializers:
            continue
        port = ir.Value(name=inner.name, type=ir.TensorType(kind), shape=inner.shape)
        inside = _cast(port, inner.dtype, f"{inner.name}/to_{SUFFIX}")
        inner.replace_all_uses_with(inside.outputs[0])
        graph.inputs[position] = port
        _take_name(inside.outputs[0], inner, taken)
        first = next(iter(graph), None)
        graph.insert_before(first, inside) if first is not None else graph.append(inside)
        for number, output in enumerate(graph.outputs):
            if output is inner:
                graph.outputs[number] = port
    for number, inner in enumerate(list(graph.outputs)):
        kind = kinds.get(inner.name or "", inner.dtype)
        if kind is None or kind is inner.dtype:
            continue
        outside = _cast(inner, kind, f"{inner.name}/from_{SUFFIX}")
        port = outside.outputs[0]
        port.shape, port.type = inner.shape, ir.TensorType(kind)
        name = inner.name
        graph.outputs[number] = port
        if inner.name not in graph.initializers:
            _take_name(inner, inner, taken)
        port.name = name
        graph.append(outside)
    return copy


def inside_of(model: ir.Model, outputs: Collection[str]) -> dict[str, str]:
    """Return a mapping: output in half precision -> the value that the model casts to it."""
    found: dict[str, str] = {}
    for port in model.graph.outputs:
        node, name = port.producer(), port.name or ""
        source = node.inputs[0] if node is not None and node.op_type == CAST else None
        if name in outputs and source is not None:
            found[name] = source.name or ""
    return found


def _cast(source: ir.Value, kind: ir.DataType | None, name: str) -> ir.Node:
    to = int(kind or ir.DataType.FLOAT)
    return ir.Node("", "Cast", [source], [ir.AttrInt64("to", to)], name=name)


def _take_name(value: ir.Value, like: ir.Value, taken: set[str | None]) -> None:
    """Give a value the type and shape of another one and a name of its own, made from that one's."""
    name = f"{like.name}/{SUFFIX}"
    while name in taken:
        name += "_"
    taken.add(name)
    value.name, value.shape, value.type = name, like.shape, like.type
