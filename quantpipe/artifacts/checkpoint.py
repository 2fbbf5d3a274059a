"""Keep the progress of an interrupted stage in the run folder, for the next run to continue.

A file of another origin is ignored and replaced. So is a damaged one, which is reported.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from numpy.typing import NDArray

from quantpipe.artifacts.origin import Origin
from quantpipe.artifacts.read import damage, read_kept, read_origin
from quantpipe.artifacts.write import write_npz
from quantpipe.errors import DamagedError

Arrays = Mapping[str, NDArray[Any]]


class Kept(Protocol):
    """Keep finished parts, such as solved layers, between two runs of the program."""

    def read(self, key: str) -> Arrays | None:
        """Return the arrays of a finished part, or None."""

    def write(self, key: str, part: Arrays) -> None:
        """Keep the arrays of a finished part."""


class NoCheckpoint:
    """Keep nothing: an interrupted stage begins again."""

    def read(self, key: str) -> Arrays | None:
        """Return None: nothing is kept."""
        return None

    def write(self, key: str, part: Arrays) -> None:
        """Keep nothing."""


@dataclass(frozen=True)
class StateCheckpoint:
    """Keep the state of a measurement in a file; `damaged` gets the error of a damaged one."""

    path: Path
    origin: Origin
    damaged: Callable[[DamagedError], None] = lambda error: None

    def read(self) -> dict[str, NDArray[Any]] | None:
        """Return the state, or None where there is no valid file."""
        return read_kept(self.path, self.origin, self.damaged)

    def write(self, state: Arrays) -> None:
        """Replace the state, whole or not at all."""
        write_npz(self.path, state, self.origin, compressed=False)  # it is soon deleted


@dataclass(frozen=True)
class PartCheckpoint:
    """Keep finished parts as files in a folder; `damaged` gets the errors of damaged ones."""

    folder: Path
    origin: Origin
    damaged: Callable[[DamagedError], None] = lambda error: None

    def any(self) -> bool:
        """Return whether something of this origin is there."""
        return any(read_origin(path) == self.origin for path in self.folder.glob("*.npz") if damage(path) is None)

    def read(self, key: str) -> Arrays | None:
        """Return the arrays of a finished part, or None where there is no valid file."""
        return self._file(key).read()

    def write(self, key: str, part: Arrays) -> None:
        """Write the arrays of a finished part to its file."""
        self._file(key).write(part)

    def clear(self) -> None:
        """Delete them all: the stage is done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _file(self, key: str) -> StateCheckpoint:
        return StateCheckpoint(self.folder / f"{key}.npz", self.origin, self.damaged)
