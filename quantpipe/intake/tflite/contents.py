"""The content of a .tflite file, checked: no offset, length, number or shape of it is trusted.

Vectors are counted as they are read. A file that names the same vector many times runs out of its budget, which its own
size gives.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ModelError, brief
from quantpipe.intake.tflite import litert
from quantpipe.intake.tflite.operators import IDENTIFIER, SCHEMA_VERSION
from quantpipe.intake.tflite.sparse import dense_array

STAGE = "model"
MOST_AXES = 8
MOST_ELEMENTS = 1 << 31
"""Elements of one tensor, of a single sample."""
MOST_SPARSE = 16
"""Elements of a sparse constant for which the file must have a byte."""
NO_TENSOR = -1
"""What an operator has in place of an optional input."""

NUMPY: Mapping[str, str] = {
    "FLOAT32": "<f4",
    "FLOAT16": "<f2",
    "FLOAT64": "<f8",
    "INT64": "<i8",
    "INT32": "<i4",
    "INT16": "<i2",
    "INT8": "<i1",
    "UINT8": "<u1",
    "UINT16": "<u2",
    "UINT32": "<u4",
    "UINT64": "<u8",
    "BOOL": "|b1",
    "INT4": "<i1",
}
"""Types of tensors that are read -> their numbers in memory; 4-bit integers are unpacked to bytes."""


@dataclass(frozen=True, eq=False)
class FileTensor:
    """Hold one tensor of a file.

    `kind` is its type in the schema. `free` are the axes of any size. `scale` is `[C]` or `[1]` float32, None for a
    tensor without; `zero` is int64 in the same shape; `axis` has the channels. `data` is a constant's content.
    """

    number: int
    name: str
    shape: tuple[int, ...]
    kind: str
    free: frozenset[int] = frozenset()
    scale: NDArray[np.float32] | None = None
    zero: NDArray[np.int64] | None = None
    axis: int = 0
    data: NDArray[Any] | None = field(default=None, repr=False)

    @property
    def quantized(self) -> bool:
        """Return whether its integers represent real values."""
        return self.scale is not None and np.dtype(NUMPY[self.kind]).kind in "iu"


@dataclass(frozen=True, eq=False)
class FileOperator:
    """Hold one operator of a file: its name in the schema, and the numbers of its tensors."""

    number: int
    op: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any = field(default=None, repr=False)

    def option(self, name: str, default: Any) -> Any:
        """Return an option by its name in the schema, such as strideW; a vector as a list of integers."""
        capital = name[:1].upper() + name[1:]
        if self.options is None or not hasattr(self.options, capital):
            return default
        as_numpy = getattr(self.options, f"{capital}AsNumpy", None)
        if as_numpy is None:
            return getattr(self.options, capital)()
        found = as_numpy()
        return [int(v) for v in found] if isinstance(found, np.ndarray) and found.size <= MOST_AXES else default


@dataclass(frozen=True, eq=False)
class Contents:
    """Hold a file's main graph and metadata; inputs and outputs map names to numbers of tensors."""

    tensors: tuple[FileTensor, ...]
    operators: tuple[FileOperator, ...]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    metadata: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def contents_of(content: bytes, where: str) -> Contents:
    """Return what a .tflite file holds.

    Raises ModelError for a file of another format, or that is cut short or contradicts itself.
    """
    if content[4:8] != IDENTIFIER:
        raise refused(where, "is no TensorFlow Lite file: its bytes 4 to 8 are not TFL3")
    why = litert.missing()
    if why is not None:
        raise ModelError(why, stage=STAGE, where=where)
    try:
        return _Parser(content, where).contents()
    except (AttributeError, ValueError, IndexError, TypeError, OverflowError, struct.error) as error:
        raise refused(where, f"is a damaged TensorFlow Lite file ({type(error).__name__}: {brief(error)})") from error


WHOLE = f"a whole .tflite file of schema version {SCHEMA_VERSION}, as a converter wrote it"


def refused(where: str, problem: str, legal: str = WHOLE) -> ModelError:
    """Return the error for a file that cannot be read."""
    return ModelError(f"it {problem}; legal is {legal}", stage=STAGE, where=where)


@cache
def names_of(enumeration: str) -> Mapping[int, str]:
    """Return the names of an enumeration of the schema, by value."""
    found = vars(getattr(litert.schema(), enumeration))
    return {value: name for name, value in found.items() if isinstance(value, int)}


class _Parser:
    """Reads one file."""

    def __init__(self, content: bytes, where: str) -> None:
        self._content, self._where = content, where
        self._budget = 4096 + 4 * len(content)
        self._model = litert.schema().Model.GetRootAs(content)

    def contents(self) -> Contents:
        model = self._model
        if model.Version() != SCHEMA_VERSION:
            raise self._refused(f"has the schema version {model.Version()}")
        if self._count(model.SubgraphsLength()) < 1:
            raise self._refused("has no graph")
        graph = model.Subgraphs(0)
        codes = [self._code(model.OperatorCodes(n)) for n in range(self._count(model.OperatorCodesLength()))]
        tensors = tuple(self._tensor(n, graph.Tensors(n)) for n in range(self._count(graph.TensorsLength())))
        operators = tuple(
            self._operator(n, graph.Operators(n), codes, len(tensors))
            for n in range(self._count(graph.OperatorsLength()))
        )
        ports = [self._numbers(v, len(tensors), "a port") for v in (graph.InputsAsNumpy(), graph.OutputsAsNumpy())]
        tensors, operators = _written_out(tensors, operators)
        self._check_order(tensors, operators, ports)
        names = [self._named(rows, tensors, side) for rows, side in zip(ports, ("Inputs", "Outputs"), strict=True)]
        inputs, outputs = names
        outputs = {f"{name}_out" if name in inputs else name: number for name, number in outputs.items()}
        return Contents(tensors, operators, inputs, outputs, self._metadata())

    def _metadata(self) -> dict[str, bytes]:
        found = {}
        for number in range(self._count(self._model.MetadataLength())):
            entry = self._model.Metadata(number)
            if 0 <= entry.Buffer() < self._model.BuffersLength():
                raw = self._model.Buffers(entry.Buffer()).DataAsNumpy()
                self._count(raw.size if isinstance(raw, np.ndarray) else 0)
                found[self._text(entry.Name())] = raw.tobytes() if isinstance(raw, np.ndarray) else b""
        return found

    def _count(self, length: int) -> int:
        """Return a length, and take it off the budget."""
        self._budget -= length
        if length < 0 or self._budget < 0:
            raise self._refused("names more elements than it has bytes for")
        return length

    def _refused(self, problem: str) -> ModelError:
        return refused(self._where, problem)

    def _text(self, text: bytes | None) -> str:
        self._count(len(text or b""))
        return (text or b"").decode(errors="replace")

    def _code(self, code: Any) -> str:
        number = max(code.BuiltinCode(), code.DeprecatedBuiltinCode())
        known = names_of("BuiltinOperator").get(number, f"operator {number}")
        return known if known != "CUSTOM" else f"custom operator {self._text(code.CustomCode())[:60]!r}"

    def _numbers(self, vector: Any, limit: int, what: str, least: int = 0) -> tuple[int, ...]:
        """Return a vector of numbers of tensors, each of which exists."""
        found = vector if isinstance(vector, np.ndarray) else np.zeros(0, np.int32)
        self._count(found.size)
        if np.any(found < least) or np.any(found >= limit):
            wrong = found[(found < least) | (found >= limit)][0]
            raise self._refused(f"has {what} with the tensor {wrong}, and {limit} tensors")
        return tuple(int(v) for v in found)

    def _operator(self, number: int, found: Any, codes: list[str], tensors: int) -> FileOperator:
        if not 0 <= found.OpcodeIndex() < len(codes):
            raise self._refused(f"has an operator of the code {found.OpcodeIndex()}, and {len(codes)} codes")
        op = codes[found.OpcodeIndex()]
        what = f"{op} (operator {number})"
        inputs = self._numbers(found.InputsAsNumpy(), tensors, what, NO_TENSOR)
        outputs = self._numbers(found.OutputsAsNumpy(), tensors, what)
        if not outputs:
            raise self._refused(f"has {what}, which makes nothing")
        kind, table = names_of("BuiltinOptions").get(found.BuiltinOptionsType(), "NONE"), found.BuiltinOptions()
        options = None
        if kind != "NONE" and table is not None:
            options = getattr(litert.schema(), kind)()
            options.Init(table.Bytes, table.Pos)
        return FileOperator(number, op, inputs, outputs, options)

    def _tensor(self, number: int, found: Any) -> FileTensor:
        name = self._text(found.Name()) or f"tensor_{number}"
        where, kind = f"the tensor {name[:60]!r}", names_of("TensorType").get(found.Type(), str(found.Type()))
        shape, signature = (self._sizes(v, where) for v in (found.ShapeAsNumpy(), found.ShapeSignatureAsNumpy()))
        free = frozenset(a for a, size in enumerate(signature) if size < 0) if len(signature) == len(shape) else ()
        if min(shape, default=0) < 0:
            raise self._refused(f"has {where} of the shape {list(shape)}")
        if _size(shape) > MOST_ELEMENTS:
            raise self._refused(f"has {where} of the shape {list(shape)}, which is more than {MOST_ELEMENTS} elements")
        if kind not in NUMPY:
            return FileTensor(number, name, shape, kind)  # where nothing reads its operators, that is said of them
        if found.IsVariable():
            raise refused(self._where, f"has {where}, which keeps its values between runs", "a model without a state")
        data = self._data(found, kind, shape, where)
        if data is None and found.Sparsity() is not None:
            raise refused(self._where, f"has {where}, which is sparse and no constant", "a sparse constant")
        scale, zero, axis = self._grid(found.Quantization(), shape, kind, where)
        return FileTensor(number, name, shape, kind, frozenset(free), scale, zero, axis, data)

    def _sizes(self, vector: Any, where: str) -> tuple[int, ...]:
        found = vector if isinstance(vector, np.ndarray) else np.zeros(0, np.int32)
        if found.size > MOST_AXES:
            raise self._refused(f"has {where} with {found.size} axes (at most {MOST_AXES})")
        self._count(found.size)
        return tuple(int(v) for v in found)

    def _data(self, found: Any, kind: str, shape: tuple[int, ...], where: str) -> NDArray[Any] | None:
        """Return the content of a constant, `shape`; None for a tensor that is computed."""
        number, sparsity = found.Buffer(), found.Sparsity()
        if not 0 <= number < self._model.BuffersLength():
            raise self._refused(f"has {where} in the buffer {number}, and {self._model.BuffersLength()} buffers")
        buffer = self._model.Buffers(number)
        raw = buffer.DataAsNumpy()
        begin, size = buffer.Offset(), buffer.Size()
        if begin > 1 and size:  # files above 2 GiB have their constants behind the graph
            if begin + size > len(self._content):
                raise self._refused(f"has {where} in the bytes {begin} to {begin + size}, and {len(self._content)}")
            raw = np.frombuffer(self._content, np.uint8, size, begin)
        if number == 0 or not isinstance(raw, np.ndarray) or (not raw.size and _size(shape) and sparsity is None):
            return None
        self._count(raw.size)
        item, count = np.dtype(NUMPY[kind]), _size(shape)
        if sparsity is not None:
            return self._dense(sparsity, raw, kind, shape=shape, where=where)
        needed = -(-count // 2) if kind == "INT4" else count * item.itemsize
        if raw.size != needed:
            raise self._refused(f"has {where} of {kind} {list(shape)}, which takes {needed} bytes, in {raw.size} bytes")
        return _unpacked(raw, count).reshape(shape) if kind == "INT4" else raw.view(item).reshape(shape)

    def _dense(
        self, sparsity: Any, raw: NDArray[np.uint8], kind: str, *, shape: tuple[int, ...], where: str
    ) -> NDArray[Any]:
        """Return a sparse constant as a dense one."""
        item, vectors = np.dtype(NUMPY[kind]), names_of("SparseIndexVector")
        if kind == "INT4" or raw.size % item.itemsize:
            raise self._refused(f"has {where} of {kind}, which is sparse, in {raw.size} bytes")
        self._count(_size(shape) // MOST_SPARSE)
        try:
            tables = {number: getattr(litert.schema(), name) for number, name in vectors.items() if name != "NONE"}
            return dense_array(sparsity, raw.view(item), shape, tables)
        except ValueError as error:
            raise self._refused(f"has {where}, which is sparse: {error}") from error

    def _grid(
        self, found: Any, shape: tuple[int, ...], kind: str, where: str
    ) -> tuple[NDArray[np.float32] | None, NDArray[np.int64] | None, int]:
        """Return scales, zero points and the axis of the channels."""
        scale = found.ScaleAsNumpy() if found is not None else None
        if found is not None and found.DetailsType():
            raise self._refused(f"has {where} with scales of another kind than one per tensor or channel")
        if not isinstance(scale, np.ndarray) or not scale.size or np.dtype(NUMPY[kind]).kind not in "iu":
            return None, None, 0
        self._count(scale.size)
        zero, axis = found.ZeroPointAsNumpy(), found.QuantizedDimension()
        offset = zero if isinstance(zero, np.ndarray) and zero.size else np.zeros(1, np.int64)
        if scale.size > 1 and (not 0 <= axis < len(shape) or shape[axis] != scale.size):
            raise self._refused(f"has {where} of the shape {list(shape)} with {scale.size} scales along axis {axis}")
        limits = np.iinfo(np.dtype(NUMPY[kind]))
        if offset.size not in (1, scale.size) or np.any(offset < limits.min) or np.any(offset > limits.max):
            raise self._refused(f"has {where} of {kind} with the zero points {offset[:4].tolist()}")
        legal = np.isfinite(scale) & (scale > 0)
        if not np.all(legal):
            raise self._refused(f"has {where} with the scale {float(scale[~legal][0]):g}")
        return scale.astype(np.float32), np.broadcast_to(offset, scale.shape).astype(np.int64), axis

    def _check_order(
        self, tensors: tuple[FileTensor, ...], operators: tuple[FileOperator, ...], ports: list[tuple[int, ...]]
    ) -> None:
        """Reject tensors that nothing makes before they are read, and those that are made twice."""
        made = {t.number for t in tensors if t.data is not None} | set(ports[0])
        for operator in operators:
            missing = [n for n in operator.inputs if n != NO_TENSOR and n not in made and _size(tensors[n].shape)]
            if missing:
                raise self._refused(
                    f"has {operator.op} read {tensors[missing[0]].name[:60]!r} before anything makes it"
                )
            again = made.intersection(operator.outputs)
            if again or len(set(operator.outputs)) < len(operator.outputs):
                raise self._refused(f"has {operator.op} make a tensor that exists already")
            made.update(operator.outputs)
        for number in ports[1]:
            if number not in made or (tensors[number].quantized and tensors[number].data is not None):
                raise self._refused(f"has the output {tensors[number].name[:60]!r}, which no operator makes")

    def _named(self, ports: tuple[int, ...], tensors: tuple[FileTensor, ...], side: str) -> dict[str, int]:
        """Return ports by their names in the signature of the graph; without one, by their tensors' names."""
        signed: dict[int, str] = {}
        for number in range(self._count(self._model.SignatureDefsLength())):
            signature = self._model.SignatureDefs(number)
            if signature.SubgraphIndex() == 0 and not signed:
                for row in range(self._count(getattr(signature, f"{side}Length")())):
                    entry = getattr(signature, side)(row)
                    signed[entry.TensorIndex()] = self._text(entry.Name())
        found = {signed.get(n) or tensors[n].name: n for n in ports}
        if len(found) < len(ports) or set(signed) - set(ports):
            found = {tensors[n].name: n for n in ports}
        return found if len(found) == len(ports) else {f"{tensors[n].name}_{k}": n for k, n in enumerate(ports)}


def _written_out(
    tensors: tuple[FileTensor, ...], operators: tuple[FileOperator, ...]
) -> tuple[tuple[FileTensor, ...], tuple[FileOperator, ...]]:
    """Return the tensors and operators without DENSIFY of a constant: its result is the constant."""
    found = [o for o in operators if o.op == "DENSIFY" and o.inputs[0] != NO_TENSOR]
    pairs = [(tensors[o.inputs[0]], tensors[o.outputs[0]]) for o in found]
    made = {b.number: a.data for a, b in pairs if a.data is not None and (a.shape, a.kind) == (b.shape, b.kind)}
    kept = tuple(o for o in operators if o.op != "DENSIFY" or o.outputs[0] not in made)
    return tuple(replace(t, data=made[t.number]) if t.number in made else t for t in tensors), kept


def _size(shape: tuple[int, ...]) -> int:
    """Return the number of elements, which does not overflow."""
    return math.prod(int(size) for size in shape)


def _unpacked(raw: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    """Return 4-bit integers of two to the byte, the first in the low half, as bytes `[count]`."""
    halves = np.stack([raw & 15, raw >> 4], axis=-1).reshape(-1)[:count].astype(np.int8)
    return np.where(halves > 7, halves - 16, halves).astype(np.int8)
