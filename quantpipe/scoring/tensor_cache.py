"""Keep tensors at the cuts for later candidates, bounded in bytes; tensors requested twice are kept longest.

A search probes one change after the other from one point. The tensors of that point are read again and again, the
tensors after a change never. A plain LRU cache would evict the former with the latter. So entries begin on
probation, are promoted when a second candidate has the same key, and are evicted from probation first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Any

from numpy.typing import NDArray

State = Mapping[str, NDArray[Any]]
"""Tensor -> array, of one batch."""

PROTECTED = 0.8
"""Share of the memory that promoted entries may take."""


class TensorCache:
    """States by (key, batch number). A key is a digest of all that its tensors depend on. Threads may share it."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._probation: OrderedDict[bytes, dict[int, State]] = OrderedDict()
        self._protected: OrderedDict[bytes, dict[int, State]] = OrderedDict()
        self._bytes: dict[bytes, int] = {}
        self._seen: set[bytes] = set()
        self._lock = Lock()

    @property
    def used(self) -> int:
        """Return bytes held."""
        return sum(self._bytes.values())

    def clear(self) -> None:
        """Drop every state."""
        with self._lock:
            for kept in (self._probation, self._protected, self._bytes, self._seen):
                kept.clear()

    def begin(self, keys: Iterable[bytes]) -> None:
        """Prepare for a candidate with these keys: stored ones are kept longer."""
        for key in keys:
            if key in self._protected:
                self._protected.move_to_end(key)
            elif key in self._probation:
                self._protected[key] = self._probation.pop(key)
            elif key in self._seen:
                self._protected[key] = {}
        kept = sum(self._bytes.get(key, 0) for key in self._protected)
        while kept > PROTECTED * self._limit and len(self._protected) > 1:
            key, states = self._protected.popitem(last=False)
            self._probation[key] = states
            kept -= self._bytes.get(key, 0)
        self._seen.update(keys)

    def get(self, key: bytes, batch: int) -> State | None:
        """Return the state of one batch under a key, or None where it is not kept."""
        with self._lock:
            states = self._protected.get(key) or self._probation.get(key) or {}
            return states.get(batch)

    def put(self, key: bytes, batch: int, state: State) -> None:
        """Keep a state; older entries go where it does not fit, or it is not kept at all."""
        size = sum(array.nbytes for array in state.values())
        with self._lock:
            place = self._protected if key in self._protected else self._probation
            if batch in place.get(key, ()):
                return
            while self.used + size > self._limit:
                if not (self._evict(self._probation, key) or (place is self._protected and self._evict(place, key))):
                    return
            place.setdefault(key, {})[batch] = state
            self._bytes[key] = self._bytes.get(key, 0) + size

    def _evict(self, place: OrderedDict[bytes, dict[int, State]], but: bytes) -> bool:
        """Drop the oldest entry that holds anything; return whether one did."""
        for key in place:
            if key != but and self._bytes.get(key):
                del place[key]
                del self._bytes[key]
                return True
        return False
