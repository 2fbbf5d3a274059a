"""Writing artifacts: whole or not at all, each with its origin.

A file is written next to its target, synced, and renamed onto it. Several files together are one `Unit`.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantpipe.artifacts.origin import Origin
from quantpipe.artifacts.unit import ArtifactUnit


def write_bytes(path: str | os.PathLike[str], data: bytes | memoryview, origin: Origin | None = None) -> None:
    """Put `data` at `path`, whole or not at all, surviving a crash and a power cut once this returns.

    With an `origin`, a side file `<name>.origin.json`, written as one unit with the file, records where the bytes came
    from. Raises StorageError, with the old file untouched, when the disk is full or the folder cannot be written.
    """
    write_pieces(path, [data], origin)


def write_pieces(
    path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview], origin: Origin | None = None
) -> None:
    """Write what is too large to hold, as `write_bytes` does.

    The pieces come one after the other, and are hashed on the way.
    """
    with ArtifactUnit(Path(path).parent) as unit:
        unit.pieces(Path(path), pieces, origin)


def write_json(path: str | os.PathLike[str], payload: Mapping[str, Any], origin: Origin) -> None:
    """Write a JSON object, with its origin under the key `origin` (which `payload` must not use)."""
    with ArtifactUnit(Path(path).parent) as unit:
        unit.json(Path(path), payload, origin)


def write_text(path: str | os.PathLike[str], text: str, origin: Origin, comment: str = "#") -> None:
    """Write text after comment lines that hold the origin.

    `comment` opens a comment line: `#`, `//`, or `<!--` for HTML. Raises StorageError where the file cannot be written.
    """
    with ArtifactUnit(Path(path).parent) as unit:
        unit.text(Path(path), text, origin, comment)


def write_npz(
    path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], origin: Origin, *, compressed: bool = True
) -> None:
    """Write an npz with an `__origin__` string entry; equal arrays give equal bytes.

    Raises StorageError where the file cannot be written.
    """
    with ArtifactUnit(Path(path).parent) as unit:
        unit.npz(Path(path), arrays, origin, compressed=compressed)
