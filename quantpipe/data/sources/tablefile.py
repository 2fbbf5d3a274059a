"""Reading tables in pieces: CSV and TSV by the standard library, Parquet by pyarrow, both in bounded memory."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import DataError, brief, nearest

SUFFIXES = (".csv", ".tsv", ".parquet")
ROWS = 4096  # in memory at once


@dataclass(frozen=True, eq=False)
class Piece:
    """Some consecutive rows of some columns. `values[i]` is column i: an array of numbers, or a list of texts.

    `bad` maps rows (from 0 within the piece) to why they cannot be read; the values of such a row mean nothing.
    """

    values: list[NDArray[Any] | list[str]]
    bad: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values[0]) if self.values else 0


class TableFile:
    """One table. DataError if it cannot be read or lacks a column."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.suffix.lower() not in SUFFIXES or not path.is_file():
            raise DataError(f"legal is a file that ends in {', '.join(SUFFIXES)}.", stage="data", where=str(path))
        self._is_parquet = path.suffix.lower() == ".parquet"
        self.columns: tuple[str, ...] = tuple(self._open_parquet().schema_arrow.names if self._is_parquet else ())
        if not self._is_parquet:
            self.columns = self._csv_header()
        double = {c for c in self.columns if self.columns.count(c) > 1}
        if double or not self.columns:
            what = f"names {', '.join(sorted(double))} twice" if double else "has no header line"
            raise DataError(f"{what}; each column must have a name of its own.", stage="data", where=str(path))

    def require(self, columns: Sequence[str], key: str) -> None:
        """Raise DataError naming the first column that is not there."""
        for column in columns:
            if column not in self.columns:
                raise DataError(
                    f"has no column {column!r} ({key}){nearest(column, self.columns)}; its columns are "
                    f"{', '.join(self.columns)}.",
                    stage="data",
                    where=str(self.path),
                )

    def numbers(self, columns: Sequence[str]) -> Iterator[Piece]:
        """Yield the rows as numbers.

        They are int64 where all of a piece's values are integers, else floats (or a Parquet type).
        """
        if self._is_parquet:
            yield from self._parquet_numbers(columns)
            return
        for lines, rows in self._csv_rows(columns):
            piece = Piece([])
            for column, texts in zip(columns, rows, strict=True):
                piece.values.append(_parse(texts, column, lines, piece.bad))
            yield piece

    def texts(self, columns: Sequence[str]) -> Iterator[list[list[str]]]:
        """Yield per piece and column the values as texts (missing ones are empty)."""
        if not self._is_parquet:
            for _, rows in self._csv_rows(columns):
                yield rows
            return
        for batch in self._parquet_batches(columns):
            yield [["" if v is None else str(v) for v in batch.column(c).to_pylist()] for c in columns]

    # --- CSV --------------------------------------------------------------------------------------------------------

    def _csv_header(self) -> tuple[str, ...]:
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                return tuple(name.strip() for name in next(self._reader(file), []))
        except (ValueError, csv.Error, OSError) as error:
            raise self._unreadable(error) from error

    def _reader(self, file: Any) -> Any:
        return csv.reader(file, delimiter="\t" if self.path.suffix.lower() == ".tsv" else ",")

    def _csv_rows(self, columns: Sequence[str]) -> Iterator[tuple[list[int], list[list[str]]]]:
        """Yield line numbers and, per column, texts; empty lines do not count."""
        places = [self.columns.index(c) for c in columns]
        lines: list[int] = []
        rows: list[list[str]] = [[] for _ in columns]
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as file:
                reader = self._reader(file)
                next(reader, None)
                for row in reader:
                    if not row:
                        continue
                    lines.append(reader.line_num)
                    for column, place in zip(rows, places, strict=True):
                        column.append(row[place].strip() if place < len(row) else "")
                    if len(lines) == ROWS:
                        yield lines, rows
                        lines, rows = [], [[] for _ in columns]
        except (ValueError, csv.Error, OSError) as error:
            raise self._unreadable(error) from error
        if lines:
            yield lines, rows

    def _unreadable(self, error: Exception) -> DataError:
        return DataError(f"cannot be read as a table ({brief(error)}).", stage="data", where=str(self.path))

    # --- Parquet ----------------------------------------------------------------------------------------------------

    def _open_parquet(self) -> Any:
        from pyarrow import parquet

        try:
            return parquet.ParquetFile(self.path)
        except Exception as error:  # pyarrow raises its own types, and those of Python
            raise self._unreadable(error) from error

    def _parquet_batches(self, columns: Sequence[str]) -> Iterator[Any]:
        try:
            yield from self._open_parquet().iter_batches(batch_size=ROWS, columns=list(columns))
        except Exception as error:  # pyarrow raises its own types, and those of Python
            raise self._unreadable(error) from error

    def _parquet_numbers(self, columns: Sequence[str]) -> Iterator[Piece]:
        import pyarrow as pa

        schema = self._open_parquet().schema_arrow
        for column in columns:
            kind = schema.field(column).type
            numeric = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
            if not numeric and not pa.types.is_decimal(kind):
                raise DataError(
                    f"the column {column!r} holds {kind}; legal are integers, floats, booleans and decimals. Choose "
                    "columns by dataset.features or dataset.inputs.",
                    stage="data",
                    where=str(self.path),
                )
        done = 0
        for batch in self._parquet_batches(columns):
            piece = Piece([])
            for column in columns:
                array = batch.column(column)
                for row in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)):
                    piece.bad.setdefault(int(row), f"row {done + int(row)}: column {column!r} is empty")
                if pa.types.is_decimal(array.type):
                    array = array.cast(pa.float64())
                piece.values.append(array.fill_null(0).to_numpy(zero_copy_only=False))
            done += len(piece)
            yield piece


def _parse(texts: list[str], column: str, lines: list[int], bad: dict[int, str]) -> NDArray[Any]:
    """Return texts as int64, else float64; a text that is no number makes its row bad (its value is 0)."""
    try:
        return np.fromiter(map(int, texts), np.int64, len(texts))
    except (ValueError, OverflowError):
        pass
    try:
        return np.array(texts, dtype=np.float64)
    except ValueError:
        pass
    kept = list(texts)
    for row, text in enumerate(texts):
        try:
            float(text)
        except ValueError:
            what = f"holds {text!r}, which is not a number" if text else "is empty"
            bad.setdefault(row, f"line {lines[row]}: column {column!r} {what}")
            kept[row] = "0"
    return _parse(kept, column, lines, bad)
