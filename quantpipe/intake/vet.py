"""Check the declarations of a model file before anything acts on it.

It rejects sizes that do not match the data, unknown types, functions that contain themselves or grow without bound, and
ops that give other numbers each time. Everything is read from the protobuf. Nothing is allocated by the file's claims.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import TensorProto

from quantpipe.errors import ModelError
from quantpipe.graph.io import STAGE, all_nodes, graphs_within
from quantpipe.graph.op_tables import BATCH_NORM, DROPOUT, RANDOM

MOST_NODES = 1_000_000
"""Nodes of a model with its functions written out; the largest networks have some ten thousand."""
MOST_DEPTH = 50
"""Functions that call functions, and graphs within graphs."""
MOST_RANK = 64

Key = tuple[str, str, str]
"""Domain, name and overload of a function."""

FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")
DEFAULT_DOMAIN = "ai.onnx"
STRING = int(TensorProto.STRING)
UNDEFINED = int(TensorProto.UNDEFINED)
TYPES = frozenset(TensorProto.DataType.values()) - {UNDEFINED}


def vet(proto: onnx.ModelProto, path: Path) -> None:
    """Raise ModelError naming the first tensor, port or function of the file that contradicts its declaration."""
    _refuse_without_opset(proto, path)
    for graph in _graphs(proto):
        for port in [*graph.input, *graph.output] if isinstance(graph, onnx.GraphProto) else ():
            kind = port.type.tensor_type.elem_type
            if port.type.HasField("tensor_type") and kind not in TYPES:
                raise _refused(path, f"{port.name!r}", f"has the type {kind}", "one that ONNX knows, not undefined")
        for tensor in _tensors(graph):
            fault = _fault(tensor)
            if fault:
                raise _refused(path, f"the tensor {tensor.name!r}", *fault)
    _refuse_growth(proto, path)


def name_default_opset(proto: onnx.ModelProto) -> None:
    """Call the domain of ONNX's own ops by its empty name, in place, where the model has its other name."""
    for entry in proto.opset_import:
        if entry.domain == DEFAULT_DOMAIN:
            entry.domain = ""


def _refuse_without_opset(proto: onnx.ModelProto, path: Path) -> None:
    """Raise ModelError for a model without a version of ONNX's own ops, which runtimes guess."""
    if proto.graph.node and not any(not entry.domain for entry in proto.opset_import):
        found = ", ".join(f"{entry.domain[:40]!r} {entry.version}" for entry in proto.opset_import) or "nothing"
        raise _refused(path, "opset_import", f"holds {found}", "a version of ONNX's own ops (the domain '')")


def refuse_chance(model: ir.Model, path: Path) -> None:
    """Reject a model that does not always give the same outputs for the same inputs.

    Statistics, scores and the comparison of two models all need repeatable outputs. Raises ModelError that names the
    first node that is random, or that is in training mode.
    """
    for node in model.graph.all_nodes():
        why = _chance(node)
        if why:
            raise ModelError(
                f"{node.op_type} {why}; legal is a model that gives the same outputs for the same inputs. Export it "
                "for inference (PyTorch: model.eval()), or give the numbers as an input: model.random=input makes one, "
                "and model.random=zero takes the mean",
                stage=STAGE,
                where=f"{path}, node {node.name!r}",
            )


def draws(node: ir.Node) -> bool:
    """Return whether a node draws random numbers, also as a Dropout that is always in training mode."""
    if node.domain or node.op_type in RANDOM:
        return not node.domain
    mode = node.inputs[2] if node.op_type == DROPOUT and len(node.inputs) > 2 else None
    return bool(_number(mode)) and _chance(node) != ""


def _chance(node: ir.Node) -> str:
    if node.domain:
        return ""
    if node.op_type in RANDOM:
        return "draws random numbers"
    training = "is in training mode: what it gives depends on"
    if node.op_type == DROPOUT and len(node.inputs) > 2 and node.inputs[2] is not None:
        ratio = _number(node.inputs[1]) if node.inputs[1] is not None else 0.5
        mode = _number(node.inputs[2])
        if mode == 0 or ratio == 0:
            return ""
        known = "" if mode else " if its input 'training_mode' is true (model.fixed makes an input a constant)"
        return f"{training} chance{known}"
    if node.op_type == BATCH_NORM:
        mode_attribute = node.attributes.get("training_mode")
        trains = mode_attribute is not None and bool(mode_attribute.value)
        if trains or any(o.name and (o.uses() or o.is_graph_output()) for o in node.outputs[1:]):
            return f"{training} the other samples of its batch"
    return ""


def _number(value: ir.Value | None) -> float | None:
    """Return the single number that a value always has; None if it is unknown, or several."""
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return float(tensor.numpy().reshape(-1)[0]) if tensor is not None and tensor.size == 1 else None


def _graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Yield the main graph, the functions, and every graph that a node of theirs holds."""
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [proto.graph, *proto.functions]
    while pending:
        graph = pending.pop()
        yield graph
        for node in graph.node:
            pending += graphs_within(node)


def _tensors(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    if isinstance(graph, onnx.GraphProto):
        yield from graph.initializer
        for sparse in graph.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in graph.node:
        for attribute in node.attribute:
            yield from [attribute.t] if attribute.HasField("t") else []
            yield from attribute.tensors
            for sparse in [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []:
                yield from (sparse.values, sparse.indices)


def _fault(tensor: onnx.TensorProto) -> tuple[str, str] | None:
    """Return (the fault of a tensor, the legal values), or None."""
    dims = list(tensor.dims)
    if tensor.data_type not in TYPES:
        return f"has the type {tensor.data_type}", "a type that ONNX knows, other than undefined"
    if any(d < 0 for d in dims) or len(dims) > MOST_RANK:
        return f"has the shape {dims[:8]}", f"sizes from 0 on, at most {MOST_RANK} of them"
    if tensor.data_location == TensorProto.EXTERNAL:
        return _external_fault(tensor)
    count = prod(dims)
    kind = ir.DataType(tensor.data_type)
    if tensor.HasField("raw_data"):
        if kind is ir.DataType.STRING:
            return "holds text as raw bytes", "text in string_data"
        size = -(-count * kind.bitwidth // 8)
        return _short(dims, kind, f"{size} bytes", f"{len(tensor.raw_data)}") if len(tensor.raw_data) != size else None
    stored = max(len(getattr(tensor, name)) for name in FIELDS)
    per_entry = 8 // kind.bitwidth if kind is not ir.DataType.STRING and kind.bitwidth in (2, 4) else 1
    needed = 2 * count if kind in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128) else -(-count // per_entry)
    return _short(dims, kind, f"{needed} numbers", f"{stored}") if stored not in (needed, count) else None


def _external_fault(tensor: onnx.TensorProto) -> tuple[str, str] | None:
    """Check whether a reference to external data is valid; the length of the file is checked later."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    if tensor.data_type == STRING:
        return "holds text in a file next to the model", "text in the model itself"
    if not entries.get("location"):
        return "refers to no file", "a location"
    for key in ("offset", "length"):
        value = entries.get(key, "0")
        if not (value.isascii() and value.isdigit() and len(value) < 19):
            return f"has the {key} {value[:40]!r}", "a number of bytes"
    return None


def _short(dims: list[int], kind: ir.DataType, needed: str, stored: str) -> tuple[str, str]:
    return f"has {kind.name} of shape {dims[:8]}, which takes {needed}, and holds {stored}", "as many as its shape says"


def _refuse_growth(proto: onnx.ModelProto, path: Path) -> None:
    """Raise ModelError for recursive functions, and for a model that is too large or too deep with bodies inlined."""
    functions = {(f.domain, f.name, f.overload): f for f in proto.functions}
    sizes: dict[Key, int] = {}

    def size_of(nodes: Callable[[], Iterator[onnx.NodeProto]], around: tuple[Key, ...]) -> int:
        total = 0
        for node in nodes():
            key = (node.domain, node.op_type, node.overload)
            if key in around:
                raise _refused(path, f"the function {key[1]!r}", "holds itself", "functions of ops and other functions")
            if len(around) > MOST_DEPTH:
                raise _refused(path, f"the function {key[1]!r}", f"lies more than {MOST_DEPTH} deep", "fewer")
            if key in functions and key not in sizes:
                sizes[key] = size_of(lambda f=functions[key]: all_nodes(f), (*around, key))  # type: ignore[misc]
            total += sizes.get(key, 1)
        return total

    total = size_of(lambda: all_nodes(proto.graph), ())
    if total > MOST_NODES:
        raise _refused(path, "the graph", f"has {total} nodes with its functions written out", f"{MOST_NODES}")


def _refused(path: Path, what: str, found: str, legal: str) -> ModelError:
    return ModelError(f"{what} {found}; legal is {legal}", stage=STAGE, where=str(path))
