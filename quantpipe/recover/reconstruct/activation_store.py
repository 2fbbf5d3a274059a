"""Tensors of all batches between two segments: in memory up to a limit, in a file beyond it."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from threading import Lock
from types import TracebackType
from typing import Any, Self

import numpy as np

from quantpipe.arrays import Array

Key = tuple[str, int]


class ActivationStore:
    """Keep arrays by (tensor, batch), up to `limit` bytes in memory and the rest in a file.

    The file has no name, so that it vanishes with the store, or with the process. Several threads may put and get.
    """

    def __init__(self, limit: int) -> None:
        self._limit, self._used = limit, 0
        self._memory: dict[Key, Array] = {}
        self._elements: dict[Key, int] = {}
        self._spilled: dict[Key, _Spilled] = {}
        self._file = _SpillFile()
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Delete the file and forget everything."""
        self._memory.clear()
        self._spilled.clear()
        self._elements.clear()
        self._file.close()

    def put(self, tensor: str, batch: int, array: Array) -> None:
        """Keep the array of one tensor and batch, in the place of another one."""
        key, array = (tensor, batch), np.asarray(array, order="C")
        with self._lock:
            self._forget(key)
            if self._used + array.nbytes <= self._limit:
                self._memory[key] = array
                self._used += array.nbytes
                self._elements[key] = array.size
                return
            place = self._file.place(array.nbytes)
        self._file.write(place, array)
        with self._lock:
            self._spilled[key] = _Spilled(place, array.shape, array.dtype)
            self._elements[key] = array.size  # last: what is held can be read

    def get(self, tensor: str, batch: int) -> Array:
        """Return the array of one tensor and batch."""
        found = self._memory.get((tensor, batch))
        return found if found is not None else self._file.read(self._spilled[tensor, batch])

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

        `batch`: the number of the batch; None for all.
        """
        names, before = set(tensors), self._used
        with self._lock:
            for key in [k for k in self._elements if k[0] in names and batch in (None, k[1])]:
                self._forget(key)
        return before - self._used

    def _forget(self, key: Key) -> None:
        self._elements.pop(key, None)
        if key in self._memory:
            self._used -= self._memory.pop(key).nbytes
        if key in self._spilled:
            self._file.free(self._spilled.pop(key).place)


@dataclass(frozen=True)
class _Place:
    offset: int
    size: int


@dataclass(frozen=True)
class _Spilled:
    place: _Place
    shape: tuple[int, ...]
    dtype: np.dtype[Any]


class _SpillFile:
    """One file without a name. Places are used again, by arrays of the same size: most tensors have batches of one."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="quantpipe-")  # noqa: SIM115  (open as long as the store)
        self._free: dict[int, list[_Place]] = defaultdict(list)
        self._end = 0

    def close(self) -> None:
        self._file.close()

    def place(self, size: int) -> _Place:
        """A place that is free from here on no more; not for several threads at once, like `free`."""
        if self._free[size]:
            return self._free[size].pop()
        self._end += size
        return _Place(self._end - size, size)

    def free(self, place: _Place) -> None:
        self._free[place.size].append(place)

    def write(self, place: _Place, array: Array) -> None:
        data, offset = array.reshape(-1).view(np.uint8).data, place.offset
        while data:
            count = os.pwrite(self._file.fileno(), data, offset)
            data, offset = data[count:], offset + count

    def read(self, spilled: _Spilled) -> Array:
        found = np.empty(spilled.shape, spilled.dtype)
        data, offset = found.reshape(-1).view(np.uint8).data, spilled.place.offset
        while data:
            count = os.preadv(self._file.fileno(), [data], offset)
            if not count:
                raise OSError(f"the file of tensors between layers ends at byte {offset}")
            data, offset = data[count:], offset + count
        return found
