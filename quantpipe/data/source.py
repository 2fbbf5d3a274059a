"""The source of a data set: raw samples by index, before any preprocessing, with labels if it has some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import SourceLayout
from quantpipe.errors import DataError

SINGLE = ""
"""The field of a source with one array per sample: it goes into the model's one input, whatever that is called."""

Rows = Sequence[NDArray[Any]] | NDArray[Any]
"""Some samples of one field: one array `[n, …]`, or a list where shapes may differ."""


class Hasher(Protocol):
    """The part of a hashlib object that a source needs."""

    def update(self, data: bytes, /) -> None:
        """Include bytes in the digest."""


class Source(Protocol):
    """Raw samples in a stable order; a sample is one array or several, the fields.

    `where` names the file or folder in messages. `fields` describes the axes of each field: a field has the name of its
    model input, or is `SINGLE`. `labels` is int64 `[len(self)]` or None. `sequences` int64 `[len(self)]` numbers the
    samples that belong together in time (the frames of one recording) and must stay in one split; None where every
    sample is independent. `cheap`: reading everything is fast and may find errors, so it is checked at once.
    """

    @property
    def where(self) -> str:
        """Return where the data come from, as errors name it."""

    @property
    def fields(self) -> Mapping[str, SourceLayout]:
        """Return the layout of each field."""

    @property
    def labels(self) -> NDArray[np.int64] | None:
        """Return the class of each sample, `[N]`, or None."""

    @property
    def sequences(self) -> NDArray[np.int64] | None:
        """Return the sequence that each sample belongs to, `[N]`, or None."""

    @property
    def cheap(self) -> bool:
        """Return whether reading everything costs little and may find a fault, so that it is checked at once."""

    def __len__(self) -> int: ...

    def name(self, index: int) -> str:
        """Return how messages call one sample, file included."""

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the samples at `indices`, field by field.

        Args:
            indices: positions in the source, `[n]`.

        Returns:
            Field -> one array `[n, …]`, or a list of n arrays.

        Raises:
            DataError: naming a sample that cannot be read.
        """

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Feed the content of the samples at `indices`, in bounded memory.

        Args:
            hasher: the digest.
            indices: positions in the source, `[n]`.
        """


class NumberedSamples:
    """Name the samples of a source by their numbers in it, and digest them array by array."""

    where: str

    def name(self, index: int) -> str:
        """Return the name of a sample, as errors show it."""
        return f"sample {index} of {self.where}"

    def hash_into(self: Source, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Include these samples in a digest."""
        hash_arrays(hasher, self, indices)


def refuse_unequal(counts: Mapping[str, int], where: str | None = None) -> None:
    """Reject arrays of different numbers of rows, given by the name of each array."""
    if len(set(counts.values())) > 1:
        text = ", ".join(f"{name} has {count}" for name, count in counts.items())
        raise DataError(
            f"the arrays must have one row per sample each; {text} rows. Legal are equal numbers; an input that is the "
            "same for all samples is given by model.fixed",
            stage="data",
            where=where,
        )


def hash_arrays(hasher: Hasher, source: Source, indices: NDArray[np.int64]) -> None:
    """Include samples of any shape in a digest: name, dtype, shape and bytes of every array, sample by sample.

    It serves as `Source.hash_into`.
    """
    for index in indices:
        for field, rows in sorted(source.read(np.array([index], dtype=np.int64)).items()):
            array = np.ascontiguousarray(rows[0])
            hasher.update(f"{field}{array.dtype.str}{array.shape}".encode())
            hasher.update(array.tobytes())


def fingerprint_of(source: Source, index: int, hasher: Hasher) -> None:
    """Feed the content of one sample, such that equal samples of any source of a kind feed the same.

    A source that has a cheaper way than to read the sample, or that decodes it, offers `feed_content(index, hasher)`.
    """
    feed = getattr(source, "feed_content", None)
    if feed is not None:
        feed(index, hasher)
    else:
        hash_arrays(hasher, source, np.array([index], dtype=np.int64))
