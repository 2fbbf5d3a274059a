"""Samples from tables (CSV, TSV, Parquet): a row is a sample, columns are features, grouped by model input.

Only the chosen columns are read, piece by piece, into a temporary file that is then mapped: memory does not grow with
the table.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import Preprocess, SourceLayout
from quantpipe.data.source import SINGLE, Hasher, NumberedSamples, Rows
from quantpipe.data.sources.tablefile import TableFile
from quantpipe.data.split_options import FileOptions
from quantpipe.data.splits import Splits
from quantpipe.errors import ConfigError, DataError, StorageError, nearest
from quantpipe.types import TensorInfo

LABEL = "label"  # the one column of labels that may be absent
HASH_ROWS = 4096


class Columns:
    """Some columns of a table as one array `[rows, columns]`, on disk."""

    def __init__(self, dtype: np.dtype[Any], width: int) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="quantpipe-")  # noqa: SIM115 (lives as long as this)
        self.dtype, self.width, self.rows = dtype, width, 0

    def append(self, values: Sequence[NDArray[Any]]) -> None:
        """Add rows: one array `[n]` per column.

        Raises StorageError when the disk is full.
        """
        piece = np.stack([np.asarray(v).astype(self.dtype) for v in values], axis=1)
        try:
            self._file.write(piece.tobytes())
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"a table could not be kept in {tempfile.gettempdir()} ({error}); free space there, or set TMPDIR.",
                stage="data",
            ) from error
        self.rows += len(piece)

    def read(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return a copy of some rows, `[len(indices), columns]`."""
        if not self.rows:
            return np.empty((len(indices), self.width), self.dtype)
        mapped = np.memmap(self._file, dtype=self.dtype, mode="r", shape=(self.rows, self.width))
        return np.ascontiguousarray(np.asarray(mapped)[indices])


class TableSource(NumberedSamples):
    """The rows of one table. `groups` maps fields to columns, `shapes` fields to the shape of a sample.

    A cell that is empty or no number makes its row unusable: reading it raises DataError with line and column.
    """

    cheap = True

    def __init__(
        self,
        file: TableFile,
        groups: Mapping[str, Sequence[str]],
        shapes: Mapping[str, tuple[int, ...]],
        label: str | None,
        *,
        classes: Sequence[str] | None,
        sequence: str | None,
        column_of_groups: str | None = None,
    ) -> None:
        self.where = str(file.path)
        self.fields = dict.fromkeys(groups, SourceLayout.AS_IS)
        self._shapes = shapes
        every = list(dict.fromkeys(c for columns in groups.values() for c in columns))
        self._bad: dict[int, str] = {}
        self._columns = self._load(file, groups, every)
        self.labels = integers(file, label, classes, "label") if label is not None else None
        self.sequences = integers(file, sequence, None, "sequence") if sequence is not None else None
        self.groups = None if column_of_groups is None else texts_of(file, column_of_groups)

    def _load(self, file: TableFile, groups: Mapping[str, Sequence[str]], every: list[str]) -> dict[str, Columns]:
        dtypes: dict[str, np.dtype[Any]] = {}
        for piece in file.numbers(every):  # a column is what its widest piece is
            for column, values in zip(every, piece.values, strict=True):
                dtypes[column] = np.result_type(dtypes.get(column, np.asarray(values).dtype), np.asarray(values).dtype)
        found = {
            name: Columns(np.result_type(*(dtypes.get(c, np.dtype(np.float64)) for c in columns)), len(columns))
            for name, columns in groups.items()
        }
        done = 0
        for piece in file.numbers(every):
            values_of = dict(zip(every, piece.values, strict=True))
            for name, columns in groups.items():
                found[name].append([np.asarray(values_of[c]) for c in columns])
            self._bad.update({done + row: why for row, why in piece.bad.items()})
            done += len(piece)
        return found

    def __len__(self) -> int:
        return next(iter(self._columns.values())).rows

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return these rows by field, in the fields' shapes.

        Raises DataError for a row with a missing or non-numeric value.
        """
        for index in indices if self._bad else ():
            if int(index) in self._bad:
                raise DataError(
                    f"{self._bad[int(index)]}; fill it, leave the row out, or set dataset.on_error=skip.",
                    stage="data",
                    where=self.name(int(index)),
                )
        return {
            name: columns.read(indices).reshape(len(indices), *self._shapes[name])
            for name, columns in self._columns.items()
        }

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Include type, shape and content of these rows in a digest, field by field."""
        for name, columns in sorted(self._columns.items()):
            hasher.update(f"{name}{columns.dtype.str}{self._shapes[name]}".encode())
            for start in range(0, len(indices), HASH_ROWS):
                hasher.update(columns.read(indices[start : start + HASH_ROWS]).tobytes())


def texts_of(file: TableFile, column: str) -> NDArray[np.str_]:
    """Return a column `[rows]` as texts."""
    return np.asarray([text for (texts,) in file.texts([column]) for text in texts], dtype=np.str_)


def integers(file: TableFile, column: str, classes: Sequence[str] | None, what: str) -> NDArray[np.int64]:
    """Return a column `[rows]` of integers, or of names in `classes` (then their positions)."""
    place = {str(name): i for i, name in enumerate(classes or ())}
    found: list[int] = []
    for (texts,) in file.texts([column]):
        for text in texts:
            try:
                found.append(place[text] if place else int(text))
            except (KeyError, ValueError):
                hint = nearest(text, place) if place else ""
                legal = "one of dataset.classes" if place else "an integer"
                more = "" if place or what != "label" else ", or name the classes in order: dataset.classes=[…]"
                raise DataError(
                    f"{text!r} in column {column!r} is no {what}{hint}; legal is {legal}{more}.",
                    stage="data",
                    where=f"sample {len(found)} of {file.path}",
                ) from None
    return np.array(found, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class TableDataset(FileOptions):
    """See conf/dataset/table.yaml for the keys; those left out have the defaults given there."""

    features: Sequence[str] | None = None
    inputs: Mapping[str, Sequence[str]] | None = None
    label: str | None = LABEL
    classes: Sequence[str] | None = None
    sequence: str | None = None
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit, or a file is unusable.
        """
        sources = {role: self._source(path, inputs) for role, path in self.paths().items()}
        return self.assemble(sources, Preprocess.of(self.preprocess), inputs, outputs_classes, seed=seed)

    def _source(self, path: Path, inputs: Sequence[TensorInfo]) -> TableSource:
        file = TableFile(path)
        label = None if self.label == LABEL and LABEL not in file.columns else self.label
        groups = self._groups(file, [c for c in (label, self.sequence, self.groups) if c is not None], inputs)
        for name, columns in groups.items():
            file.require(columns, f"dataset.inputs.{name}" if name != SINGLE else "dataset.features")
        file.require([label] if label else [], "dataset.label")
        file.require([self.sequence] if self.sequence else [], "dataset.sequence")
        file.require([self.groups] if self.groups else [], "dataset.groups")
        needed = self.data_inputs(inputs)
        ports = {i.name: i for i in inputs} | ({SINGLE: needed[0]} if needed else {})
        shapes = {name: _sample_shape(ports.get(name), len(columns)) for name, columns in groups.items()}
        return TableSource(
            file, groups, shapes, label, classes=self.classes, sequence=self.sequence, column_of_groups=self.groups
        )

    def _groups(
        self, file: TableFile, others: Sequence[str], inputs: Sequence[TensorInfo]
    ) -> Mapping[str, Sequence[str]]:
        """Return field -> columns."""
        if self.inputs:
            if self.features:
                raise ConfigError("given together with dataset.inputs; give one of them.", where="dataset.features")
            names = [i.name for i in inputs]
            for name, columns in self.inputs.items():
                if name not in names or not columns or isinstance(columns, str):
                    raise ConfigError(
                        f"legal is a list of columns under the name of a model input ({', '.join(names)}), such as "
                        f"dataset.inputs={{{names[0]}: [first,second]}}.",
                        where=f"dataset.inputs.{name}",
                    )
            return self.inputs
        chosen = [c for c in file.columns if c not in others] if self.features is None else list(self.features)
        if not chosen:
            raise DataError("has no column of features.", stage="data", where=str(file.path))
        needed = self.data_inputs(inputs)
        if len(needed) > 1 and all(i.name in file.columns for i in needed):
            return {i.name: [i.name] for i in needed}  # a column for each input
        return {SINGLE: chosen}


def _sample_shape(port: TensorInfo | None, width: int) -> tuple[int, ...]:
    """Return the shape of a row: `[width]`, or the input's own where that has as many elements (C order)."""
    if port is None:
        return (width,)
    wanted = port.shape[1:]
    fixed = tuple(n for n in wanted if n is not None)
    return fixed if len(fixed) == len(wanted) and prod(fixed) == width else (width,)
