"""Samples that are made only once: appended to a temporary file and read back by number, in bounded memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.errors import StorageError

Arrays = Mapping[str, NDArray[Any]]


class SampleStore:
    """Any number of samples, each some named arrays of any shape. The file goes with the object."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="quantpipe-")  # noqa: SIM115 (lives as long as this object)
        self._entries: list[tuple[tuple[str, str, tuple[int, ...], int], ...]] = []
        self._end = 0

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, arrays: Arrays) -> int:
        """Store one sample; gives its number. StorageError when the disk is full."""
        entry = []
        try:
            for name, array in arrays.items():
                data = np.ascontiguousarray(array).tobytes()
                self._file.seek(self._end)
                self._file.write(data)
                entry.append((name, array.dtype.str, array.shape, self._end))
                self._end += len(data)
            self._file.flush()
        except OSError as error:
            raise StorageError(
                f"samples could not be kept in {tempfile.gettempdir()} ({error}); free space there, set TMPDIR, or "
                "use fewer samples (dataset.samples).",
                stage="data",
            ) from error
        self._entries.append(tuple(entry))
        return len(self._entries) - 1

    def read(self, number: int) -> dict[str, NDArray[Any]]:
        """Return a copy of one sample."""
        found = {}
        for name, dtype, shape, offset in self._entries[number]:
            count = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
            data = bytearray(os.pread(self._file.fileno(), count, offset))
            found[name] = np.frombuffer(data, dtype=dtype).reshape(shape)
        return found


class SampleCache:
    """Samples by index, made by `make` when first asked for. What `make` raises is raised again each time."""

    def __init__(self, make: Callable[[int], Arrays]) -> None:
        self._make, self._spool = make, SampleStore()
        self._known: dict[int, int] = {}

    def __call__(self, index: int) -> dict[str, NDArray[Any]]:
        """Return a sample, which is made when it is asked for first."""
        if index not in self._known:
            self._known[index] = self._spool.append(self._make(index))
        return self._spool.read(self._known[index])
