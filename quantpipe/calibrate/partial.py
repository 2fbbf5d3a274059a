"""Store an interrupted calibration in its run folder, for the next run to continue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantpipe.artifacts import Origin, read_kept, write_npz
from quantpipe.errors import DamagedError


@dataclass(frozen=True)
class Partial:
    """Keep the state of a measurement in a file.

    A file of another origin is ignored and replaced; so is a damaged one, which is reported to `damaged`.
    """

    path: Path
    origin: Origin
    damaged: Callable[[DamagedError], None] = lambda error: None

    def read(self) -> dict[str, NDArray[Any]] | None:
        """Return the state, or None."""
        return read_kept(self.path, self.origin, self.damaged)

    def write(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Replace the state, whole or not at all."""
        write_npz(self.path, state, self.origin)
