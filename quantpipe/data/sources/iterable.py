"""Samples from any Python iterable that a function gives: generators, lists, map-style data sets.

The function is called once, with `split` (calibrate, search or evaluate, one call for each) and `seed` if it takes
them. What it gives is read once and kept in a temporary file, so an iterable that can be read only once is good enough.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.divide import ROLES, WHOLE
from quantpipe.data.duplicates import UNKNOWN, fingerprints
from quantpipe.data.labels import as_groups
from quantpipe.data.preprocess import Preprocess, SourceLayout
from quantpipe.data.sample_store import SampleStore
from quantpipe.data.source import NumberedSamples, Rows
from quantpipe.data.split_options import SplitOptions
from quantpipe.data.splits import DEFAULT_SAMPLES, Splits
from quantpipe.data.user_functions import arrays_of, called, checked_function, name_of
from quantpipe.errors import ConfigError, DataError
from quantpipe.types import TensorInfo

KEY = "dataset.target"
TOLD_SECONDS = 10.0
"""Between two lines about samples that go on coming where no limit is set."""

log = logging.getLogger(__name__)


class IterableSource(NumberedSamples):
    """Hold the samples of one call, at most `limit`, spooled. A sample is an array, a mapping, or (either, label).

    `sequence` names the entry of a mapping that numbers the sequence a sample belongs to.
    """

    cheap = True

    def __init__(
        self, items: Any, where: str, limit: int | None, sequence: str | None = None, *, groups: str | None = None
    ) -> None:
        self.where = where
        self._sequence, self._groups = sequence, groups
        self._spool = SampleStore()
        self._broken: dict[int, DataError] = {}
        self._names: tuple[str, ...] | None = None
        self._labelled: bool | None = None
        labels: list[int] = []
        sequences: list[int] = []
        members: list[int] = []
        told = time.monotonic()
        for number, item in enumerate(islice(_each(items, where), limit)):
            if limit is None and time.monotonic() - told > TOLD_SECONDS:
                told = time.monotonic()
                log.warning("%s has given %d samples and goes on; dataset.limit=N ends it after N", where, number)
            try:
                if isinstance(item, DataError):
                    raise item
                arrays, label, member, group = self._take(item, self.name(number))
            except DataError as error:
                self._broken[number] = error
                arrays, label, member, group = {}, 0, sequences[-1] if sequences else 0, 0
            self._spool.append(arrays)
            labels.append(label)
            sequences.append(member)
            members.append(group)
        if len(self._broken) == len(labels) and self._broken:
            raise self._broken[0]
        self.labels = np.array(labels, dtype=np.int64) if self._labelled else None
        self.sequences = np.array(sequences, dtype=np.int64) if sequence is not None else None
        self.groups = None if groups is None else as_groups(np.array(members, dtype=np.int64), len(members), where)
        self.fields: dict[str, SourceLayout] = dict.fromkeys(self._names or (), SourceLayout.AS_IS)

    def _take(self, item: Any, name: str) -> tuple[dict[str, NDArray[Any]], int, int, int]:
        """Return arrays, label, sequence and group (0 if absent) of one sample, which must be like the first."""
        label = None
        if isinstance(item, tuple):
            if len(item) != 2:
                raise DataError(
                    f"is a tuple of {len(item)}; legal are an array, a mapping, or a tuple (inputs, label).",
                    stage="data",
                    where=name,
                )
            item, label = item
        arrays = arrays_of(item, name)
        member = self._member(arrays, self._sequence, name, key="sequence")
        group = self._member(arrays, self._groups, name, key="groups")
        number = None if label is None else _index(label, "label", name)
        if self._names is None:
            self._names, self._labelled = tuple(arrays), number is not None
        if set(arrays) != set(self._names) or (number is not None) != self._labelled:
            known = ", ".join(n or "one array" for n in self._names)
            raise DataError(
                f"holds {', '.join(n or 'one array' for n in arrays)}{'' if number is None else ' and a label'}, the "
                f"first sample {known}{' and a label' if self._labelled else ''}; all must hold the same.",
                stage="data",
                where=name,
            )
        return arrays, number or 0, member, group

    @staticmethod
    def _member(arrays: dict[str, NDArray[Any]], entry: str | None, name: str, *, key: str) -> int:
        """Return the number of the sequence or group, taken out of the arrays."""
        if entry is None:
            return 0
        if entry not in arrays:
            raise DataError(
                f"has no entry {entry!r} (dataset.{key}); it holds {', '.join(filter(None, arrays))}.",
                stage="data",
                where=name,
            )
        return _index(arrays.pop(entry), f"{key} number", name)

    def __len__(self) -> int:
        return len(self._spool)

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return these samples, by field."""
        found = [self._sample(int(index)) for index in indices]
        return {name: [sample[name] for sample in found] for name in self.fields}

    def _sample(self, index: int) -> Mapping[str, NDArray[Any]]:
        if index in self._broken:
            raise self._broken[index]
        return self._spool.read(index)

    def fingerprints(self) -> set[int]:
        """Return a short digest of every sample."""
        found = fingerprints(self, np.arange(len(self), dtype=np.int64))
        return {int(digest) for digest in found if digest != UNKNOWN}


def _each(items: Any, where: str) -> Iterator[Any]:
    """Yield the items; in the place of one that cannot be had, its DataError (if the next one still can)."""
    if not isinstance(items, Iterable) and hasattr(items, "__getitem__") and hasattr(items, "__len__"):
        for number in range(len(items)):
            try:
                yield called(items.__getitem__, f"sample {number} of {where}", KEY, number)
            except DataError as error:
                yield error
        return
    if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping):
        raise DataError(
            f"gave a {type(items).__name__}; legal is an iterable of samples (a generator, a list, a map-style data "
            "set).",
            stage="data",
            where=where,
        )
    number, found = 0, iter(items)
    while True:
        try:
            item = next(found)
        except StopIteration:
            return
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # the user's own code, SystemExit included; a generator is over after it
            raise DataError(
                f"failed at sample {number}: {type(error).__name__}: {' '.join(str(error).split())[:200]}. A data set "
                "with __len__ and __getitem__ can continue after a broken sample (dataset.on_error=skip); a generator "
                "cannot.",
                stage="data",
                where=where,
            ) from error
        yield item
        number += 1


def _index(value: Any, what: str, name: str) -> int:
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iu":
        raise DataError(f"has the {what} {value!r}; legal is an integer (0, 1, …).", stage="data", where=name)
    return int(array.reshape(-1)[0])


@dataclass(frozen=True, eq=False)
class CallableDataset(SplitOptions):
    """See conf/dataset/callable.yaml for the keys; `target` is the function itself here."""

    target: Callable[..., Any] | None = None
    limit: int | None = None
    sequence: str | None = None
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit.
        """
        function = checked_function(self.target, KEY)
        if self.limit is not None and (not isinstance(self.limit, int) or self.limit < 1):
            raise ConfigError(f"{self.limit!r} must be null (all) or an integer above 0.", where="dataset.limit")
        known = _accepted(function, ("split", "seed"))
        sources = {}
        for role in ROLES if "split" in known else (WHOLE,):
            given = {name: value for name, value in (("split", role), ("seed", seed)) if name in known}
            where = f"{name_of(function)}({', '.join(f'{k}={v!r}' for k, v in given.items())})"
            items = called(function, where, KEY, **given)
            sources[role] = IterableSource(items, where, self._limit(role), self.sequence, groups=self.groups)
        if WHOLE not in sources:
            _refuse_shared(sources)
        return self.assemble(sources, Preprocess.of(self.preprocess), inputs, outputs_classes, seed=seed)

    def _limit(self, role: str) -> int | None:
        """Return how many samples are requested: no more than are used, if that is known beforehand."""
        wanted = {**DEFAULT_SAMPLES, **self.samples}.get(role)
        if role == WHOLE or self.shuffle or self.on_error != "fail" or not isinstance(wanted, int):
            return self.limit
        return wanted if self.limit is None else min(wanted, self.limit)


def _accepted(function: Callable[..., Any], names: Sequence[str]) -> set[str]:
    """Return which keyword arguments it takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # built-in functions may have no signature
        return set()
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return set(names)
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {p.name for p in parameters if p.kind in by_name and p.name in names}


def _refuse_shared(sources: Mapping[str, IterableSource]) -> None:
    """Reject splits that hold the same samples: the function takes `split` and ignores it."""
    found = {role: source.fingerprints() for role, source in sources.items()}
    for i, role in enumerate(ROLES):
        for other in ROLES[:i]:
            both = found[role] & found[other]
            if both and len(both) == min(len(found[role]), len(found[other])):
                raise DataError(
                    f"gives the same samples for {other} and for {role}, so the result would be judged on its tuning "
                    "samples. Give each split samples of its own, or remove the argument `split` to have all samples "
                    "divided.",
                    stage="data",
                    where=sources[role].where,
                )
