"""Class labels: read from a CSV file, and checked against the model before anything runs."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import ConfigError, DataError, nearest

INDEX = re.compile(r"[+-]?[0-9]{1,18}")  # all of them fit into int64


def read_labels(path: Path, columns: Sequence[str]) -> dict[str, int]:
    """Name -> class index, from a CSV file with a header line; `columns` are the name's and the index's column."""
    if len(columns) != 2:
        raise ConfigError(f"{list(columns)} must be two column names: [name, index].", where="dataset.label_columns")
    if not path.is_file():
        raise DataError("no such file; dataset.labels takes a CSV file, or null.", where=str(path))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return _rows(csv.DictReader(file), columns[0], columns[1], path)
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"cannot be read as a CSV file ({error}); save it as UTF-8 text.", where=str(path)) from error


def _rows(reader: csv.DictReader[str], name_column: str, index_column: str, path: Path) -> dict[str, int]:
    found = list(reader.fieldnames or ())
    for column in (name_column, index_column):
        if column not in found:
            raise DataError(
                f"has no column {column!r}{nearest(column, found)}; its header names {', '.join(found) or 'nothing'}. "
                "Set dataset.label_columns=[NAME,INDEX].",
                where=str(path),
            )
    labels: dict[str, int] = {}
    for row in reader:
        name, text = (row[name_column] or "").strip(), (row[index_column] or "").strip()
        where = f"{path}, line {reader.line_num}"
        index = int(text) if INDEX.fullmatch(text) else None
        if index is None:
            raise DataError(f"{text[:40]!r} in column {index_column!r} is not a class index (0, 1, …).", where=where)
        if labels.setdefault(name, index) != index:
            raise DataError(f"{name!r} has two class indices, {labels[name]} and {index}; keep one.", where=where)
    return labels


def read_groups(path: Path) -> dict[str, str]:
    """Name -> group, from the first two columns of a CSV file with a header line (`dataset.groups`)."""
    where = "dataset.groups"
    if not path.is_file():
        raise DataError(f"no such file ({where}); legal is a CSV file with a header line.", where=str(path))
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))[1:]
    except (UnicodeDecodeError, csv.Error, OSError) as error:
        raise DataError(f"cannot be read as a CSV file ({error}); save it as UTF-8 text.", where=str(path)) from error
    found: dict[str, str] = {}
    for number, row in enumerate(rows, 2):
        if not row:
            continue
        if len(row) < 2 or not row[0].strip() or found.setdefault(row[0].strip(), row[1].strip()) != row[1].strip():
            raise DataError(
                f"is {','.join(row)[:60]!r}; legal is a name and its group, one group for a name ({where}).",
                where=f"{path}, line {number}",
            )
    return found


def as_labels(raw: NDArray[Any], samples: int, where: str) -> NDArray[np.int64]:
    """Return an array of labels as int64 `[samples]`; `[samples, 1]` is taken too.

    Raises DataError for anything else than one integer per sample.
    """
    if raw.shape == (samples, 1):
        raw = raw[:, 0]
    if raw.ndim != 1:
        hint = " One-hot labels: store their argmax." if raw.ndim == 2 else ""
        raise DataError(
            f"labels have shape {list(raw.shape)}; legal is one integer per sample, [{samples}].{hint}", where=where
        )
    if len(raw) != samples:
        raise DataError(f"{samples} images but {len(raw)} labels; there must be one label for each image.", where=where)
    if raw.dtype.kind not in "iu":
        raise DataError(f"labels are {raw.dtype}; legal are integers (class indices).", where=where)
    if raw.dtype == np.uint64 and raw.max(initial=0) > np.iinfo(np.int64).max:
        raise DataError(f"a label is {raw.max()}; legal are class indices, which are small.", where=where)
    return raw.astype(np.int64)


def as_groups(raw: NDArray[Any], samples: int, where: str) -> NDArray[np.str_]:
    """Return the group of each sample (`dataset.groups`) as text `[samples]`.

    Raises DataError for anything else than one integer or text per sample.
    """
    if raw.shape == (samples, 1):
        raw = raw[:, 0]
    if raw.ndim != 1 or len(raw) != samples:
        raise DataError(
            f"groups have shape {list(raw.shape)}; dataset.groups takes one value for each of the {samples} samples, "
            f"[{samples}].",
            stage="data",
            where=where,
        )
    if raw.dtype.kind not in "iubSUO":
        raise DataError(
            f"groups are {raw.dtype}; legal are integers and texts. Cut floats into intervals first.",
            stage="data",
            where=where,
        )
    if raw.dtype.kind == "S":
        raw = np.char.decode(raw, "utf-8", "replace")
    return np.asarray([str(value) for value in raw.tolist()], dtype=np.str_)


def check_labels(labels: NDArray[np.int64], classes: int | None, where: str) -> None:
    """Check that labels `[N]` are classes of the model (`classes=None`: the number is unknown).

    Raises DataError for negative labels, and for labels of `classes` or more.
    """
    wrong = labels < 0
    if classes is not None:
        wrong |= labels >= classes
    if not wrong.any():
        return
    first = int(np.flatnonzero(wrong)[0])
    legal = f"0 to {classes - 1}, because the model gives {classes} classes" if classes is not None else "0 and above"
    hint = " They seem to be counted from 1: subtract 1." if labels.min() == 1 and labels.max() == classes else ""
    raise DataError(
        f"sample {first} has label {labels[first]} ({int(wrong.sum())} of {len(labels)} are out of range); "
        f"legal are {legal}.{hint}",
        where=where,
    )
