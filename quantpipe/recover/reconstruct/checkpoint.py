"""Keep the progress of a walk: one file per solved layer, for the next run to go on from.

A layer's name is a digest of all that its numbers follow from: options, samples, seed, scales, and the layers before
it. So a file can only be found by a walk that would make the same numbers, in whatever step of recovery it belongs to.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts import Origin, damage, read_kept, read_origin, write_npz
from quantpipe.errors import DamagedError
from quantpipe.types import QuantPlan

Arrays = Mapping[str, NDArray[Any]]


class Kept(Protocol):
    """Keep solved layers between two runs of the program."""

    def read(self, key: str) -> Arrays | None:
        """Return the arrays of a finished layer, or None."""

    def write(self, key: str, layer: Arrays) -> None:
        """Keep the arrays of a finished layer."""


class NoCheckpoint:
    """Keep no layers: an interrupted walk begins again."""

    def read(self, key: str) -> Arrays | None:
        """Return None: nothing is kept."""
        return None

    def write(self, key: str, layer: Arrays) -> None:
        """Keep nothing."""


@dataclass(frozen=True)
class LayerCheckpoint:
    """Keep finished layers as files in a folder.

    A file of another origin is ignored and replaced; so is a damaged one, which is reported to `damaged`.
    """

    folder: Path
    origin: Origin
    damaged: Callable[[DamagedError], None] = lambda error: None

    def any(self) -> bool:
        """Return whether something of this origin is there."""
        return any(read_origin(path) == self.origin for path in self.folder.glob("*.npz") if damage(path) is None)

    def read(self, key: str) -> Arrays | None:
        """Return the arrays of a finished layer, or None where there is no valid file."""
        return read_kept(self._path(key), self.origin, self.damaged)

    def write(self, key: str, layer: Arrays) -> None:
        """Write the arrays of a finished layer to its file."""
        write_npz(self._path(key), layer, self.origin)

    def clear(self) -> None:
        """Delete them all: the walks are done."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.npz"


class WalkDigest:
    """Hold the digest of a walk so far."""

    def __init__(self, plan: QuantPlan, *settings: Any) -> None:
        self._digest = hashlib.blake2b(repr(settings).encode(), digest_size=16)
        for name, q in plan.quantizers.items():
            self._digest.update(repr((name, float(q.scale), q.zero_point, q.qmin, q.qmax, q.dtype)).encode())

    def key(self, name: str, *arrays: NDArray[Any] | None) -> str:
        """Return the key of the next layer, made of its node and the arrays that its numbers are made from."""
        self._digest.update(name.encode())
        self._add(*arrays)
        return self._digest.hexdigest()

    def solved(self, layer: Arrays) -> None:
        """Include the layer's numbers, which all later ones follow from."""
        self._add(*layer.values())

    def _add(self, *arrays: NDArray[Any] | None) -> None:
        for array in arrays:
            if array is not None:
                self._digest.update(repr((array.dtype.str, array.shape)).encode())
                self._digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
