"""Model files: hashing, external data with clear errors, and turning models into bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import onnx
import onnx_ir as ir

from quantpipe import extend
from quantpipe.errors import PERHAPS_OURS, ModelError, QuantpipeError, brief, fault

STAGE = "model"

RESIDENT_MB = 1024
"""MiB of external data that are loaded into memory; beyond it weights stay in their files."""

SMALL = 1 << 16
"""Bytes up to which a constant lies in the model itself: shapes, biases and bounds are read all the time."""


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Turn errors of the work inside into errors of the model.

    An error of a library there, or of its results, most often comes from the model's file. It may also be our own, so
    the place in the code is reported.
    """
    try:
        yield
    except QuantpipeError:
        raise
    except Exception as error:  # these libraries raise many types for what they do not expect
        raise ModelError(
            f"it cannot be used ({fault(error)}); legal is a model that onnx.checker accepts and onnxruntime runs. "
            f"{PERHAPS_OURS}",
            stage=STAGE,
            where=str(path),
        ) from error


def file_hash(path: Path, model: ir.Model) -> str:
    """Return `sha256:` of the file's bytes, and of its external data files where it has any, read in pieces."""
    digest = hashlib.sha256()
    for file in _files(path, model):
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def file_bytes(path: Path, model: ir.Model) -> int:
    """Return the bytes of the file, and of its external data files where it has any."""
    return sum(file.stat().st_size for file in _files(path, model))


def _files(path: Path, model: ir.Model) -> list[Path]:
    return [path, *sorted({Path(tensor.path) for tensor in external_tensors(model)})]


def external_tensors(model: ir.Model) -> list[ir.ExternalTensor]:
    """Return every tensor of the model that is stored in a file.

    These are initializers and attributes, including the ones in sub-graphs.
    """
    found = [v.const_value for graph in model.graphs() for v in graph.initializers.values()]
    for node in model.graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.TENSOR:
                found.append(attribute.value)
            elif attribute.type is ir.AttributeType.TENSORS:
                found += list(attribute.value)
    return [t for t in found if isinstance(t, ir.ExternalTensor)]


def check_external(model: ir.Model, path: Path) -> None:
    """Raise ModelError, naming the tensor and the file, where external data are missing, too short or unreadable.

    Files are mapped, not read.
    """
    for tensor in external_tensors(model):
        fault = _fault(tensor)
        if fault:
            raise ModelError(
                f"the data of its tensor {tensor.name!r} cannot be read from {tensor.path}: {fault}; legal is a data "
                "file in the model's own folder, or below it, that holds every byte the model refers to",
                stage=STAGE,
                where=str(path),
            )


def _fault(tensor: ir.ExternalTensor) -> str:
    """Return the fault of a tensor's data file, or an empty text."""
    file, offset, length = Path(tensor.path), tensor.offset or 0, tensor.nbytes
    if not file.is_file():
        return "there is no such file"
    if tensor.length is not None and tensor.length != length:
        shape = list(tensor.shape)
        return f"the model declares {tensor.length} bytes, {tensor.dtype.name} of shape {shape} takes {length}"
    size = file.stat().st_size
    if offset + length > size:
        return f"it ends at byte {size}, the tensor needs bytes {offset} to {offset + length} (the file was cut short)"
    try:
        if tensor.dtype.bitwidth >= 8:  # smaller types would be unpacked, that is, read
            tensor.numpy()
    except Exception as error:  # a link out of the folder, no permission, no address space
        return f"{type(error).__name__}: {brief(error)}"
    return ""


def load_external(model: ir.Model, path: Path, resident: int) -> None:
    """Bring external data into memory, in place, if they take at most `resident` bytes in all.

    Else weights of the main graph above `SMALL` bytes stay in their files, mapped at need, and only the rest is
    loaded. Raises ModelError when a data file cannot be read.
    """
    large = {}
    if sum(t.nbytes for t in external_tensors(model)) > resident:
        for name, value in model.graph.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor) and value.const_value.nbytes > SMALL:
                large[name] = value.const_value
                value.const_value = None
    try:
        ir.external_data.load_to_model(model)
    except Exception as error:  # whatever check_external could not foresee
        raise ModelError(
            f"its external data cannot be read ({type(error).__name__}: {brief(error)}); "
            "the data files must be in the folder of the model",
            stage=STAGE,
            where=str(path),
        ) from error
    for name, tensor in large.items():
        model.graph.initializers[name].const_value = tensor


def model_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the protobuf form of a model."""
    proto = ir.to_proto(model)
    if not isinstance(proto, onnx.ModelProto):
        raise ModelError("the model could not be serialized", stage=STAGE)
    if extend.functions():
        _define(proto)
    return proto


def _define(proto: onnx.ModelProto) -> None:
    """Give a model the definitions of the plug-in ops that it uses, in place."""
    held = {(f.domain, f.name) for f in proto.functions}
    for node in all_nodes(proto.graph):
        definition = extend.functions().get((node.domain, node.op_type))
        if definition is not None and (node.domain, node.op_type) not in held:
            held.add((node.domain, node.op_type))
            proto.functions.append(definition)


def all_nodes(graph: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of a graph, including the nodes of graphs within it."""
    pending: list[onnx.GraphProto | onnx.FunctionProto] = [graph]
    while pending:
        for node in pending.pop().node:
            yield node
            pending += graphs_within(node)


def graphs_within(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs that a node has as attributes."""
    return [g for a in node.attribute for g in ([a.g] if a.HasField("g") else []) + list(a.graphs)]


def model_bytes(model: ir.Model) -> bytes:
    """Return a model as the bytes of an ONNX file."""
    data: bytes = model_proto(model).SerializeToString()
    return data
