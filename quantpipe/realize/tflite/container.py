"""Build a .tflite file: tensors with their scales, operators with their options, buffers, metadata.

It handles the container alone. Content and layout come from the other modules of this package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.intake.tflite import litert
from quantpipe.intake.tflite.operators import IDENTIFIER, SCHEMA_VERSION, TYPES
from quantpipe.types import DType

PLACEHOLDER = 127
"""What readers older than builtin codes above 127 find in place of such a code."""


@dataclass(frozen=True, eq=False)
class TensorQuantization:
    """Say what the integers of a tensor mean: real = scale · (q - zero_point), along one axis where there are several.

    `scale` is `[C]` or `()`, real units per integer step.
    """

    scale: NDArray[Any]
    zero_point: int = 0
    axis: int = 0


class Container:
    """Collect the parts of one model; tensors are known by their numbers."""

    def __init__(self) -> None:
        self._schema = litert.schema()
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._codes: dict[tuple[str, int], int] = {}
        self._buffers: list[Any] = [self._schema.BufferT()]
        self._constants: dict[tuple[str, str, tuple[int, ...], bytes], int] = {}
        self.count: dict[str, int] = {}
        """Operator -> how often it was written."""

    def tensor(
        self,
        name: str,
        shape: Sequence[int],
        dtype: str,
        *,
        grid: TensorQuantization | None = None,
        free: bool = False,
        data: NDArray[Any] | None = None,
    ) -> int:
        """Add a tensor with the shape of a single sample, and return its number.

        `dtype` is a key of TYPES, `free` lets its first axis have any size, and `data` is a constant's content (4-bit
        integers: a byte each).
        """
        found = self._schema.TensorT()
        found.name, found.shape = name, [int(d) for d in shape]
        found.shapeSignature = [-1, *found.shape[1:]] if free and found.shape else None
        found.type = getattr(self._schema.TensorType, TYPES[dtype])
        found.buffer = 0 if data is None else self._buffer(packed(data) if dtype == DType.INT4 else data)
        if grid is not None:
            numbers = self._schema.QuantizationParametersT()
            numbers.scale = np.atleast_1d(np.asarray(grid.scale, np.float32))
            numbers.zeroPoint = np.full(numbers.scale.shape, grid.zero_point, np.int64)
            numbers.quantizedDimension = grid.axis
            found.quantization = numbers
        self._tensors.append(found)
        return len(self._tensors) - 1

    def constant(self, name: str, value: NDArray[Any], dtype: str, grid: TensorQuantization | None = None) -> int:
        """Add a constant, once per content where it has no scale."""
        array = np.ascontiguousarray(value)
        if grid is not None:
            return self.tensor(name, array.shape, dtype, grid=grid, data=array)
        key = ("", dtype, array.shape, array.tobytes())
        if key not in self._constants:
            self._constants[key] = self.tensor(name, array.shape, dtype, data=array)
        return self._constants[key]

    def operator(
        self, op: str, inputs: Sequence[int], outputs: Sequence[int], version: int = 1, **options: Any
    ) -> None:
        """Add an operator, named as in the schema, such as CONV_2D.

        Inputs and outputs are numbers of tensors. `options` have their names in the schema; `kind` names their table.
        """
        kind = options.pop("kind", None)
        found = self._schema.OperatorT()
        found.opcodeIndex = self._codes.setdefault((op, version), len(self._codes))
        found.inputs, found.outputs = list(inputs), list(outputs)
        if kind is not None:
            found.builtinOptionsType = getattr(self._schema.BuiltinOptions, kind)
            found.builtinOptions = getattr(self._schema, f"{kind}T")()
            for name, value in options.items():
                setattr(found.builtinOptions, name, value)
        self._operators.append(found)
        self.count[op] = self.count.get(op, 0) + 1

    def enum(self, kind: str, name: str) -> int:
        """Return a value of an enumeration of the schema."""
        return int(getattr(getattr(self._schema, kind), name))

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a tensor, of a single sample."""
        return tuple(self._tensors[tensor].shape)

    def name(self, tensor: int) -> str:
        """Return the name of a tensor."""
        return str(self._tensors[tensor].name)

    def build(
        self,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int],
        description: str,
        metadata: Mapping[str, bytes],
        *,
        free: bool = True,
    ) -> bytes:
        """Return the file, whose inputs and outputs map names to tensors, with its metadata by name.

        `free` lets first axes that are marked free have any size.
        """
        if not free:
            for tensor in self._tensors:
                tensor.shapeSignature = None
        s = self._schema
        model, graph = s.ModelT(), s.SubGraphT()
        model.version, model.description = SCHEMA_VERSION, description
        graph.name, graph.tensors, graph.operators = "main", self._tensors, self._operators
        graph.inputs, graph.outputs = list(inputs.values()), list(outputs.values())
        model.operatorCodes = [self._code(op, version) for op, version in self._codes]
        model.metadata = []
        for name, content in metadata.items():
            entry = s.MetadataT()
            entry.name, entry.buffer = name, self._buffer(np.frombuffer(content, np.uint8))
            model.metadata.append(entry)
        model.signatureDefs = [self._signature(inputs, outputs)]
        model.subgraphs, model.buffers = [graph], self._buffers
        builder = litert.flatbuffers().Builder(sum(len(b.data) for b in self._buffers if b.data is not None) + 4096)
        builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
        return bytes(builder.Output())

    def _buffer(self, data: NDArray[Any]) -> int:
        found = self._schema.BufferT()
        found.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self._buffers.append(found)
        return len(self._buffers) - 1

    def _code(self, op: str, version: int) -> Any:
        found = self._schema.OperatorCodeT()
        found.builtinCode = self.enum("BuiltinOperator", op)
        found.deprecatedBuiltinCode = min(found.builtinCode, PLACEHOLDER)
        found.version = version
        return found

    def _signature(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Any:
        """Return the names by which a runtime asks for inputs and outputs."""
        found = self._schema.SignatureDefT()
        found.signatureKey, found.subgraphIndex = "serving_default", 0
        for field, ports in (("inputs", inputs), ("outputs", outputs)):
            maps = []
            for name, tensor in ports.items():
                entry = self._schema.TensorMapT()
                entry.name, entry.tensorIndex = name, tensor
                maps.append(entry)
            setattr(found, field, maps)
        return found


def packed(values: NDArray[Any]) -> NDArray[np.uint8]:
    """Return 4-bit integers two to the byte, `[ceil(n / 2)]`, the first one in the low half."""
    flat = np.append(values.reshape(-1), np.zeros(values.size % 2, values.dtype)).astype(np.uint8) & 15
    return np.asarray(flat[0::2] | (flat[1::2] << 4), np.uint8)
