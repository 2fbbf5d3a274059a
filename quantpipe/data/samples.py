"""One split as the rest of the program sees it: a source's samples, read lazily, fitted to the model's inputs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.cache_inputs import EMPTY, empty_cache
from quantpipe.data.duplicates import NONE_SHARED, Shared
from quantpipe.data.input_checks import Feed, cast, check_shape, one_number_each, shapes_of
from quantpipe.data.source import Rows, Source
from quantpipe.errors import ConfigError, DataError
from quantpipe.types import Batch, Objects
from quantpipe.types.run_files import SourceRecord


@dataclass(frozen=True)
class Skipped:
    """A sample that was left out (`dataset.on_error=skip`), and why."""

    index: int
    name: str
    reason: str


class SourceSamples:
    """The samples of `source` at `indices`, in that order, made into the model's inputs. Implements `types.Samples`.

    Nothing is kept between batches. `Batch.indices` are positions in the source, so that a sample can be named.
    `sequences` `[len(source)]` numbers the sequence of each sample (None: no sample follows another in time).
    """

    def __init__(
        self,
        source: Source,
        indices: NDArray[np.int64],
        feeds: Sequence[Feed],
        sequences: NDArray[np.int64] | None = None,
        *,
        skipped: Sequence[Skipped] = (),
        shared: Shared = NONE_SHARED,
    ) -> None:
        self._source, self._feeds = source, tuple(feeds)
        self._indices = np.asarray(indices, dtype=np.int64)
        self._sequences, self.skipped, self.shared = sequences, tuple(skipped), shared

    @property
    def indices(self) -> NDArray[np.int64]:
        """Return positions in the source."""
        return self._indices

    @property
    def source(self) -> Source:
        """Return the data that the samples are of."""
        return self._source

    @property
    def labelled(self) -> bool:
        """Return whether the data have labels."""
        return self._source.labels is not None

    @property
    def objects(self) -> tuple[Objects, ...] | None:
        """Return the objects in each picture, if the data have them."""
        known = getattr(self._source, "objects", None)
        return None if known is None else tuple(known[int(index)] for index in self._indices)

    @property
    def groups(self) -> NDArray[np.str_] | None:
        """Return the group of each sample, if the data have groups."""
        known = getattr(self._source, "groups", None)
        return None if known is None else np.asarray(known[self._indices])

    def name(self, position: int) -> str:
        """Return the name of the sample at a position of the split."""
        return self._source.name(int(self._indices[position]))

    @property
    def starts(self) -> NDArray[np.bool_]:
        """Return whether each sample begins a new sequence, `[len(self)]`."""
        if self._sequences is None:
            return np.ones(len(self), dtype=np.bool_)
        chosen = self._sequences[self._indices]
        return np.concatenate([np.ones(min(len(chosen), 1), np.bool_), chosen[1:] != chosen[:-1]])

    @property
    def units(self) -> NDArray[np.int64] | None:
        """Return which samples of the source must not be torn apart, `[len(source)]`: those with the same number."""
        return self._source.sequences if self._sequences is None else self._sequences

    def divided(self, aside: NDArray[np.bool_]) -> tuple[SourceSamples, SourceSamples]:
        """Return the samples, in the same order, without and with the samples `aside`, `[len(self)]` bool.

        Samples that were left out of the data stay with the first part.
        """
        stay, go = self._indices[~aside], self._indices[aside]
        first = SourceSamples(
            self._source, stay, self._feeds, self._sequences, skipped=self.skipped, shared=self.shared
        )
        return first, SourceSamples(self._source, go, self._feeds, self._sequences)

    def without(self, shared: Shared) -> SourceSamples:
        """Return the samples without some that another split holds, too."""
        stay = self._indices[~np.isin(self._indices, shared.indices)]
        both = Shared(np.concatenate([self.shared.indices, shared.indices]), (*self.shared.names, *shared.names))
        return SourceSamples(self._source, stay, self._feeds, self._sequences, skipped=self.skipped, shared=both)

    def __len__(self) -> int:
        return len(self._indices)

    def batches(self, size: int) -> Iterator[Batch]:
        """See `types.Samples`. DataError names the sample that is broken, not finite, or does not fit the input."""
        if size < 1:
            raise ConfigError(f"a batch of {size} samples; legal is 1 and above.", stage="data")
        labels = self._source.labels
        for start in range(0, len(self._indices), size):
            chosen = self._indices[start : start + size]
            raw = self._source.read(chosen)
            for begin, end in _runs(raw, [f for f in self._feeds if f.field != EMPTY], len(chosen)):
                some = chosen[begin:end]
                rows = {field: values[begin:end] for field, values in raw.items()}
                yield Batch(self._fitted(rows, some), None if labels is None else labels[some].copy(), some.copy())

    def values(self, chosen: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return model inputs `[n, …]` by name, of samples of one shape at positions `[n]` of the source."""
        return self._fitted(self._source.read(chosen), chosen)

    def _fitted(self, raw: Mapping[str, Rows], chosen: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        names = [self._source.name(int(i)) for i in chosen]
        found = {}
        for feed in self._feeds:
            if feed.field == EMPTY:
                found[feed.port.name] = empty_cache(feed.port, len(chosen))
                continue
            try:
                values = feed.preprocess.apply(raw[feed.field], feed.layout)
            except DataError as error:
                raise DataError(str(error), stage="data", where=self._source.where) from error
            values = one_number_each(values, feed.port)
            check_shape(values, feed, names[0])
            found[feed.port.name] = cast(values, feed.port, names)
        return found

    @cached_property
    def digest(self) -> str:
        """Return `sha256:…` over content, order and labels of the samples, the preprocessing and the inputs' dtypes."""
        hasher = hashlib.sha256()
        feeds = [(f.port.name, f.port.type_name, f.layout.value, f.preprocess) for f in self._feeds]
        hasher.update(repr((len(self), feeds)).encode())
        labels = self._source.labels
        hasher.update(b"unlabelled" if labels is None else labels[self._indices].tobytes())
        for shown in self.objects or ():
            hasher.update(shown.boxes.tobytes() + shown.classes.tobytes())
        if (groups := self.groups) is not None:
            hasher.update(repr(groups.tolist()).encode())
        if self._sequences is not None:
            hasher.update(self.starts.tobytes())
        self._source.hash_into(hasher, self._indices)
        return f"sha256:{hasher.hexdigest()}"

    @property
    def record(self) -> SourceRecord:
        """Return which samples these are, as plain data: docs/artifacts.md."""
        return {
            "source": self._source.where,
            "indices": ranges(self._indices),
            "duplicates": ranges(np.sort(self.shared.indices)),
            "skipped": [{"index": s.index, "name": s.name, "reason": s.reason} for s in self.skipped],
        }


def _runs(raw: Mapping[str, Rows], feeds: Sequence[Feed], count: int) -> Iterator[tuple[int, int]]:
    """Yield borders of the longest runs of neighbours of equal shape: nothing is padded, and the order stays."""
    if all(isinstance(raw[f.field], np.ndarray) for f in feeds):
        yield 0, count
        return
    shapes = [shapes_of(raw, feeds, number) for number in range(count)]
    begin = 0
    for end in range(1, count + 1):
        if end == count or shapes[end] != shapes[begin]:
            yield begin, end
            begin = end


def ranges(indices: NDArray[np.int64]) -> list[list[int]]:
    """Return indices `[n]` as `[first, last]` of each run that counts upwards by one, in order."""
    if not len(indices):
        return []
    borders = np.flatnonzero(np.diff(indices) != 1) + 1
    return [[int(part[0]), int(part[-1])] for part in np.split(indices, borders)]
