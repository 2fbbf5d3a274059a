"""Tensors of all batches between two segments: in memory up to a limit, on disk beyond it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class ActivationStore:
    """Keep arrays by (tensor, batch), up to `limit` bytes in memory and the rest in files.

    The files vanish with the store. Several threads may put and get.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._memory: dict[tuple[str, int], Array] = {}
        self._elements: dict[tuple[str, int], int] = {}
        self._files: dict[tuple[str, int], Path] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="quantpipe-")
        self._number = 0
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the files and forget everything."""
        self._memory.clear()
        self._files.clear()
        self._elements.clear()
        self._folder.cleanup()

    def put(self, tensor: str, batch: int, array: Array) -> None:
        """Keep the array of one tensor and batch.

        Args:
            tensor: the tensor.
            batch: the number of the batch.
            array: its values.
        """
        with self._lock:
            if self._used + array.nbytes <= self._limit:
                self._memory[tensor, batch] = np.asarray(array, order="C")
                self._used += array.nbytes
                self._elements[tensor, batch] = array.size
                return
            self._number += 1
            path = Path(self._folder.name) / f"{self._number}.npy"
        np.save(path, array)
        self._files[tensor, batch] = path
        self._elements[tensor, batch] = array.size  # last: what is held can be read

    def get(self, tensor: str, batch: int) -> Array:
        """Return the array of one tensor and batch."""
        found = self._memory.get((tensor, batch))
        return found if found is not None else np.asarray(np.load(self._files[tensor, batch]))

    def elements(self, tensor: str, batch: int) -> int:
        """Return how many the array has; it is not read for that."""
        return self._elements[tensor, batch]

    def __contains__(self, tensor: str) -> bool:
        return any(name == tensor for name, _ in self._elements)

    def holds(self, tensor: str, batch: int) -> bool:
        """Return whether the array of one tensor and batch is kept."""
        return (tensor, batch) in self._elements

    def drop(self, tensors: Iterable[str], batch: int | None = None) -> int:
        """Forget tensors that nobody reads any more, of one batch or of all.

        Args:
            tensors: the tensors.
            batch: the number of the batch; None for all.

        Returns:
            The bytes of memory that this frees.
        """
        names, before = set(tensors), self._used
        for key in [k for k in self._elements if k[0] in names and batch in (None, k[1])]:
            del self._elements[key]
            if key in self._memory:
                self._used -= self._memory.pop(key).nbytes
            if key in self._files:
                self._files.pop(key).unlink(missing_ok=True)
        return before - self._used
