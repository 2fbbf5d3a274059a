"""Weights that stay in files: their places, our own arrays in files, and models written without them.

A model whose external data are too large to hold is kept as a skeleton. Its nodes and small constants are in memory;
large weights are references to their files, mapped at need. New integer weights of such a model are stored in temporary
files of their own. So only one weight is in memory at a time, whatever the model's size. The operating system drops
pages of mapped files.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import DTypeLike, NDArray

from quantpipe.errors import StorageError
from quantpipe.graph.io import SMALL, model_bytes, model_proto

MOST_INSIDE = 1 << 30
"""Bytes of weights that one protobuf may carry; its own limit is 2 GiB, and writing it takes as much again."""

GIVEN = "given"
"""Where weights lie, by name, that are given to the runtime beside the model."""

PAGE = 4096
"""Weights begin at whole pages of a data file, so that they can be mapped where they lie."""


@dataclass(frozen=True)
class FilePlace:
    """State where bytes lie: `length` bytes from `offset` on in the file `path`."""

    path: Path
    offset: int
    length: int


def place_of(tensor: ir.TensorProtocol | None) -> FilePlace | None:
    """Return the place of a tensor's bytes in a file; None for a tensor in memory."""
    if isinstance(tensor, ir.ExternalTensor):
        return FilePlace(Path(tensor.path).resolve(), tensor.offset or 0, tensor.nbytes)
    if isinstance(tensor, ir.LazyTensor):  # made of what is in memory
        return None
    raw = getattr(tensor, "raw", None)
    return _place_of_array(raw) if isinstance(raw, np.ndarray) else None


def is_mapped(array: NDArray[Any]) -> bool:
    """Return whether an array is (a contiguous part of) one that `file_array` made."""
    return _place_of_array(array) is not None


def is_outside(model: ir.Model) -> bool:
    """Return whether any weight of the model is stored in a file."""
    return any(place_of(v.const_value) for v in model.graph.initializers.values())


def weight_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers, wherever they lie."""
    return sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)


def is_heavy(model: ir.Model) -> bool:
    """Return whether the model must be handled without its weights.

    This is so if they are stored in files, or are too many for a protobuf.
    """
    return is_outside(model) or weight_bytes(model) > MOST_INSIDE


def model_size(model: ir.Model) -> int:
    """Return the bytes of the model as files; large weights are not serialized to be counted."""
    if not is_heavy(model):
        return len(model_bytes(model))
    return len(skeleton(model)) + sum(t.nbytes for t in heavy_weights(model).values())


def heavy_weights(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Return initializers above `SMALL` bytes, and those in files, by name."""
    tensors = {name: v.const_value for name, v in model.graph.initializers.items()}
    return {n: t for n, t in tensors.items() if t is not None and (t.nbytes > SMALL or place_of(t))}


# --- arrays in files ------------------------------------------------------------------------------------------------


def file_array(shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """Return an array of zeros in a temporary file (under TMPDIR) that vanishes with the array's last user.

    Raises StorageError when the disk cannot hold it. Space is reserved now, since a later write into a mapped file can
    only fail by ending the process.
    """
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    handle, name = tempfile.mkstemp(prefix="quantpipe-", suffix=".weights")
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, max(size, 1))
        array = np.memmap(name, dtype, "r+" if size else "w+", shape=tuple(shape))
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        raise StorageError(
            f"no room for {size} bytes of integer weights ({error.strerror or error}); free some space or point "
            "TMPDIR to a larger disk",
            where=name,
        ) from error
    finally:
        os.close(handle)
    weakref.finalize(array, Path(name).unlink, missing_ok=True)
    return array


def beside(array: NDArray[Any], other: NDArray[Any]) -> NDArray[Any]:
    """Return an array in a file of its own if `other` is in a file, else unchanged.

    An array that is in a file already is returned itself.
    """
    if not is_mapped(other) or is_mapped(array):
        return array
    found = file_array(array.shape, array.dtype)
    found[...] = array
    return found


def row_blocks(array: NDArray[Any], values: int = 1 << 22) -> Iterator[slice]:
    """Yield slices of axis 0 that hold about `values` elements each; one for an array of few."""
    rows = max(1, values // max(array[:1].size, 1))
    return (slice(i, i + rows) for i in range(0, len(array), rows))


def turned(matrix: NDArray[Any]) -> NDArray[Any]:
    """Return a matrix `[M, N]` transposed, in C order; in a file again if it was in one."""
    if not is_mapped(matrix):
        return np.ascontiguousarray(matrix.T)
    found = file_array(matrix.shape[::-1], matrix.dtype)
    for rows in row_blocks(matrix):
        found[:, rows] = matrix[rows].T
    return found


def _place_of_array(array: NDArray[Any]) -> FilePlace | None:
    root: Any = array
    found: np.memmap[Any, Any] | None = None
    while isinstance(root, np.ndarray):
        found = root if isinstance(root, np.memmap) else found
        root = root.base
    if found is None or found.filename is None or not array.flags.c_contiguous:
        return None
    start = array.__array_interface__["data"][0] - found.__array_interface__["data"][0]
    return FilePlace(Path(found.filename).resolve(), int(found.offset) + start, array.nbytes)


# --- models without their weights -----------------------------------------------------------------------------------


def copied(model: ir.Model) -> ir.Model:
    """Return a copy of a model that shares its heavy weights."""
    held = heavy_weights(model)
    copy = ir.from_proto(
        _relocated(model, {n: FilePlace(Path("weights"), 0, t.nbytes) for n, t in held.items()}, Path())
    )
    for name, tensor in held.items():
        copy.graph.initializers[name].const_value = tensor
    return copy


def weights_as_inputs(model: ir.Model) -> tuple[ir.Model, dict[str, NDArray[Any]]]:
    """Return a copy of a model whose large float weights are inputs, and those: a session makes no copy of them.

    Weights in files stay: the runtime maps them.
    """
    copy, found = copied(model), {}
    for name, tensor in heavy_weights(model).items():
        if tensor.dtype is ir.DataType.FLOAT and place_of(tensor) is None:
            value = copy.graph.initializers.pop(name)
            value.const_value = None
            copy.graph.inputs.append(value)
            found[name] = tensor.numpy()
    return copy, found


def skeleton(model: ir.Model) -> bytes:
    """Return the bytes of the model without its heavy weights, of which it has name, type and shape."""
    places = {n: FilePlace(Path("weights"), 0, t.nbytes) for n, t in heavy_weights(model).items()}
    return relocated(model, places, Path())


def relocated(model: ir.Model, places: Mapping[str, FilePlace], folder: Path) -> bytes:
    """Return the bytes of the model whose initializers in `places` refer to files under `folder`."""
    data: bytes = _relocated(model, places, folder).SerializeToString()
    return data


def _relocated(model: ir.Model, places: Mapping[str, FilePlace], folder: Path) -> onnx.ModelProto:
    # Not by way of `clone`: sub-graphs of a rendered model name values of the graph they were written for.
    values = {name: model.graph.initializers[name] for name in places}
    held = {name: value.const_value for name, value in values.items()}
    try:
        for name, place in places.items():
            tensor = held[name]
            if tensor is not None:
                where = os.path.relpath(place.path, folder)
                values[name].const_value = ir.ExternalTensor(
                    where, place.offset, place.length, tensor.dtype, shape=_shape(tensor), name=name
                )
        return model_proto(model)
    finally:
        for name, value in values.items():
            value.const_value = held[name]


def without_large_weights(model: ir.Model, spool: Path) -> tuple[bytes, Path]:
    """Return (the model's bytes without its heavy weights, the folder their locations start from).

    Weights in files are referred to where they are; others are written to a file in `spool`.
    """
    held = heavy_weights(model)
    inside = {name: tensor for name, tensor in held.items() if place_of(tensor) is None}
    places = {name: place for name, tensor in held.items() if (place := place_of(tensor))}
    if inside:
        path = (spool / "weights.data").resolve()
        with path.open("wb") as file:
            for chunk in packed(inside):
                file.write(chunk)
        places |= {n: FilePlace(path, *span) for n, span in layout(inside).items()}
    folder = Path(os.path.commonpath([p.path.parent for p in places.values()]))
    return relocated(model, places, folder), folder


def strip_initializers(model: ir.Model, names: Collection[str]) -> bytes:
    """Return the model's bytes without these initializers, which whoever loads it has to give."""
    held = {name: model.graph.initializers[name].const_value for name in names}
    places = {n: FilePlace(Path(GIVEN).resolve(), 0, t.nbytes) for n, t in held.items() if t is not None}
    return relocated(model, places, Path().resolve())


def layout(tensors: Mapping[str, ir.TensorProtocol]) -> dict[str, tuple[int, int]]:
    """Return the (offset, length) of tensors that are written one after the other, each at a page boundary.

    A tensor that stands under several names is written once.
    """
    found: dict[str, tuple[int, int]] = {}
    spans: dict[int, tuple[int, int]] = {}
    offset = 0
    for name, tensor in tensors.items():
        if id(tensor) not in spans:
            spans[id(tensor)] = (offset, tensor.nbytes)
            offset += -(-tensor.nbytes // PAGE) * PAGE
        found[name] = spans[id(tensor)]
    return found


def packed(tensors: Mapping[str, ir.TensorProtocol]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a data file in the order of `layout`; at most one tensor is in memory at a time."""
    for tensor in {id(t): t for t in tensors.values()}.values():
        yield _raw(tensor)
        yield bytes(-tensor.nbytes % PAGE)


def _raw(tensor: ir.TensorProtocol) -> bytes | memoryview:
    """Return a tensor's bytes, little-endian; without a copy where NumPy holds them so."""
    array = tensor.numpy() if tensor.dtype.bitwidth >= 8 else None
    if array is None or array.size == 0 or not array.flags.c_contiguous or array.dtype.byteorder == ">":
        return tensor.tobytes()
    return array.reshape(-1).view(np.uint8).data


# --- weights as inputs ----------------------------------------------------------------------------------------------


def without_weights(
    model: ir.Model, also: Collection[str] = ()
) -> tuple[onnx.ModelProto, dict[str, ir.TensorProtocol]]:
    """Return a protobuf in which weights in files are graph inputs, and those weights by name.

    Tools that take a whole model can then work on the graph; what needs the weights' values they leave alone. `also`:
    weights in memory that become inputs, too.
    """
    copy = copied(model)
    values = {n: v.const_value for n, v in copy.graph.initializers.items()}
    held = {n: t for n, t in values.items() if t is not None and (n in also or place_of(t))}
    for name, tensor in held.items():
        value = copy.graph.initializers.pop(name)
        value.const_value, value.type, value.shape = None, ir.TensorType(tensor.dtype), _shape(tensor)
        if value not in copy.graph.inputs:
            copy.graph.inputs.append(value)
    return model_proto(copy), held


def with_weights(proto: onnx.ModelProto, held: Mapping[str, ir.TensorProtocol]) -> ir.Model:
    """Return the model in which the inputs that `held` names are initializers again."""
    model = ir.from_proto(proto)
    for value in [v for v in model.graph.inputs if v.name in held]:
        model.graph.inputs.remove(value)
        value.const_value = held[value.name or ""]
        model.graph.register_initializer(value)
    return model


def _shape(tensor: ir.TensorProtocol) -> ir.Shape:
    return ir.Shape(tensor.shape.numpy())


def converted(tensor: ir.TensorProtocol, dtype: DTypeLike) -> NDArray[Any]:
    """Return a constant in another type; a constant in a file is converted by rows, into another file."""
    stored = tensor.numpy()
    if place_of(tensor) is None:
        return np.asarray(stored.astype(dtype))
    found: NDArray[Any] = file_array(tuple(tensor.shape.numpy()), dtype)
    for rows in row_blocks(stored):
        found[rows] = stored[rows]
    return found
