"""Write a .tflite file's description into TensorFlow Lite's own metadata, so that other tools read it.

That is a flatbuffer of the metadata schema (file identifier M001) under the name TFLITE_METADATA. It describes the
preprocessing of a picture, and names the file of the class names. Such files are appended to the model as a zip
archive.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantpipe.intake.tflite import litert

NAME = "TFLITE_METADATA"
IDENTIFIER = b"M001"
LABELS = "labels.txt"
PARSER = "1.0.0"
"""The least version of a reader that knows all fields in use."""

# Places of fields in the tables of metadata_schema.fbs, and values of its enumerations.
MODEL = {"name": 0, "description": 1, "version": 2, "subgraphs": 3, "least_parser": 7}
SUBGRAPH = {"inputs": 2, "outputs": 3}
TENSOR = {"name": 0, "description": 1, "process_units": 4, "associated_files": 6}
UNIT = {"type": 0, "options": 1}
NORMALIZATION = {"mean": 0, "std": 1}
FILE = {"name": 0, "description": 1, "type": 2}
IS_NORMALIZATION = 1
TENSOR_AXIS_LABELS = 2

Value = int | None
"""Where something lies in the buffer; None: it is left out."""


@dataclass(frozen=True)
class Port:
    """Say of an input or output its name, what it is, and the numbers by which samples are normalized.

    `mean` and `std` are the terms of (x - mean) / std in units of raw samples, one value or one per channel; empty: no
    normalization. `labelled`: its last axis has one element per class.
    """

    name: str
    description: str
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    labelled: bool = False


def normalization(given: Mapping[str, Any]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std of (x - mean) / std for a preprocessing of (x * scale - mean) / std; empty for none."""
    if not given:
        return (), ()
    scale = float(given.get("scale", 1.0))
    parts = (np.atleast_1d(np.asarray(given.get(k, v), np.float64)) / scale for k, v in (("mean", 0.0), ("std", 1.0)))
    mean, std = (tuple(float(v) for v in part) for part in parts)
    return mean, std


def written(version: str, inputs: Sequence[Port], outputs: Sequence[Port]) -> bytes:
    """Return the metadata of a model as a flatbuffer; its ports are in order."""
    made = _Tables()
    tensors = {"inputs": [made.tensor(p) for p in inputs], "outputs": [made.tensor(p) for p in outputs]}
    graph = made.table(SUBGRAPH, {key: made.offsets(rows) for key, rows in tensors.items()})
    texts = {
        "name": "quantized model",
        "description": "quantized by quantpipe",
        "version": version,
        "least_parser": PARSER,
    }
    fields = {key: made.text(text) for key, text in texts.items()}
    model = made.table(MODEL, {**fields, "subgraphs": made.offsets([graph])})
    made.builder.Finish(model, file_identifier=IDENTIFIER)
    return bytes(made.builder.Output())


def with_labels(content: bytes, names: Sequence[str]) -> bytes:
    """Return a model with the names of its classes appended, one a line, as an archive."""
    buffer = io.BytesIO()
    buffer.write(content)
    with zipfile.ZipFile(buffer, "a") as archive:
        entry = zipfile.ZipInfo(LABELS, (1980, 1, 1, 0, 0, 0))  # the same bytes, whenever they are written
        archive.writestr(entry, "\n".join(names))
    return buffer.getvalue()


class _Tables:
    """Writes tables of the schema; everything that a table points at is written before it."""

    def __init__(self) -> None:
        self.builder = litert.flatbuffers().Builder(1024)

    def tensor(self, port: Port) -> Value:
        units = self.offsets([self._unit(port)] if port.mean else [])
        files = self.offsets([self._labels()] if port.labelled else [])
        fields = {"name": self.text(port.name), "description": self.text(port.description)}
        return self.table(TENSOR, {**fields, "process_units": units, "associated_files": files})

    def _unit(self, port: Port) -> Value:
        numbers = self.table(NORMALIZATION, {"mean": self._floats(port.mean), "std": self._floats(port.std)})
        return self.table(UNIT, {"options": numbers}, {"type": IS_NORMALIZATION})

    def _labels(self) -> Value:
        fields = {"name": self.text(LABELS), "description": self.text("names of the classes, by index")}
        return self.table(FILE, fields, {"type": TENSOR_AXIS_LABELS})

    def text(self, text: str) -> Value:
        return self.builder.CreateString(text)  # type: ignore[no-any-return]

    def _floats(self, values: Sequence[float]) -> Value:
        return self.builder.CreateNumpyVector(np.asarray(values, np.float32))  # type: ignore[no-any-return]

    def offsets(self, rows: Sequence[Value]) -> Value:
        if not rows:
            return None
        return self._vector(4, rows, self.builder.PrependUOffsetTRelative)

    def _vector(self, size: int, rows: Sequence[Value], put: Callable[[Value], None]) -> Value:
        self.builder.StartVector(size, len(rows), size)
        for row in reversed(rows):
            put(row)
        return self.builder.EndVector()  # type: ignore[no-any-return]

    def table(
        self, places: Mapping[str, int], parts: Mapping[str, Value], bytes_: Mapping[str, int] | None = None
    ) -> Value:
        """Write a table: `parts` lie elsewhere in the buffer, `bytes_` are numbers of one byte."""
        self.builder.StartObject(max(places.values()) + 1)
        for key, value in parts.items():
            if value is not None:
                self.builder.PrependUOffsetTRelativeSlot(places[key], value, 0)
        for key, number in (bytes_ or {}).items():
            self.builder.PrependInt8Slot(places[key], number, 0)
        return self.builder.EndObject()  # type: ignore[no-any-return]
