"""Samples of two splits that hold the same: found by content, wherever they lie and whatever they are called.

A picture may be copied, a row may be repeated, and many texts may share a line: then the result would be judged by the
samples it was fitted to. Contents are compared by digests of 8 bytes each, made in one reading of the raw samples, so
only the digests need memory. Two samples are the same if the contents of their source are equal, byte by byte; labels
and names do not count.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.source import Source, fingerprint_of
from quantpipe.errors import DataError

log = logging.getLogger(__name__)

Contents = Callable[[NDArray[np.int64]], NDArray[np.uint64]]
"""Digests of what is compared, for samples at some positions of a source."""
UNKNOWN = np.uint64(0)
"""Of a sample that cannot be read: it is like no other, and whoever reads it next says what is wrong with it."""
CHUNK = 256  # samples whose digests are made before it is asked whether there are enough
NAMED = 3  # samples that a warning names


@dataclass(frozen=True, eq=False)
class Shared:
    """Samples that were dropped from a split because another one holds them: positions in the source, in order."""

    indices: NDArray[np.int64]
    names: tuple[str, ...] = ()


NONE_SHARED = Shared(np.empty(0, np.int64))


def fingerprints(source: Source, indices: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return digests of the contents of some samples, `[len(indices)]`."""
    return np.array([_fingerprint(source, int(index)) for index in indices], dtype=np.uint64)


def sequence_contents(source: Source, indices: NDArray[np.int64], units: NDArray[np.int64]) -> Contents:
    """Return a function that gives the digests of samples' sequences, equal for all samples of a sequence.

    `units` is the number of each sample's sequence, `[len(source)]`.
    """
    own = fingerprints(source, indices)
    digests = {}
    for unit in np.unique(units[indices]):
        joined = hashlib.blake2b(own[units[indices] == unit].tobytes(), digest_size=8).digest()
        digests[int(unit)] = int.from_bytes(joined, "little")
    return lambda some: np.array([digests[int(unit)] for unit in units[some]], dtype=np.uint64)


def unshared(
    source: Source, indices: NDArray[np.int64], contents: Contents, taken: NDArray[np.uint64], *, limit: int | None
) -> tuple[NDArray[np.int64], Shared]:
    """Return the first `limit` samples (None: all) whose content is not `taken`, and those met whose content is.

    `indices` are the samples of the split, in order; `taken` are digests that other splits hold.
    """
    kept: list[int] = []
    dropped: list[int] = []
    for start in range(0, len(indices), CHUNK):
        chunk = indices[start : start + CHUNK]
        found = contents(chunk)
        for index, both in zip(chunk, np.isin(found, taken) & (found != UNKNOWN), strict=True):
            if limit is not None and len(kept) == limit:
                break
            (dropped if both else kept).append(int(index))
        if limit is not None and len(kept) == limit:
            break
    names = tuple(source.name(index) for index in dropped[:NAMED])
    return np.array(kept, dtype=np.int64), Shared(np.array(dropped, dtype=np.int64), names)


def say(role: str, left: int, shared: Shared, others: Sequence[str], *, where: str) -> str | None:
    """Return the warning about samples dropped from a split; None if nothing was dropped.

    Raises DataError where no sample is left.
    """
    count = len(shared.indices)
    if not count:
        return None
    if not left:
        raise DataError(
            f"all {count} samples of the {role} split are also in {' or '.join(others)}, so the result would be judged "
            "on its tuning samples. Give each split samples of its own, or set dataset.duplicates=allow.",
            stage="data",
            where=where,
        )
    names = ", ".join(shared.names) + (", …" if count > len(shared.names) else "")
    text = (
        f"{count} samples of the {role} split are also in {' or '.join(others)} and were left out of {role} "
        f"(dataset.duplicates=drop): {names}"
    )
    log.warning("%s", text)
    return text


def _fingerprint(source: Source, index: int) -> np.uint64:
    hasher = hashlib.blake2b(digest_size=8)
    try:
        fingerprint_of(source, index, hasher)
    except DataError:
        return UNKNOWN
    return np.uint64(int.from_bytes(hasher.digest(), "little"))
