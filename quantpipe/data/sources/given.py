"""Samples that a caller has in hand: arrays, mappings of arrays, any iterable, with labels or without.

One set is divided by seed into calibrate, search and evaluate; `SampleSets` gives each of them its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.divide import WHOLE
from quantpipe.data.labels import as_groups, as_labels
from quantpipe.data.preprocess import Preprocess, SourceLayout
from quantpipe.data.source import SINGLE, NumberedSamples, Rows, Source, refuse_unequal
from quantpipe.data.sources.iterable import IterableSource
from quantpipe.data.split_options import SplitOptions
from quantpipe.data.splits import Splits
from quantpipe.data.user_functions import arrays_of
from quantpipe.errors import DataError
from quantpipe.types import TensorInfo


@dataclass(frozen=True, eq=False)
class SampleSets:
    """Samples for each purpose, where you have divided them already.

    Args:
        calibrate: Samples that ranges are taken from, in any form that `quantpipe.quantize` takes.
        evaluate: Samples that the result is judged by. No sample may be in two sets.
        search: Samples that candidates are judged by. None: a quarter of `calibrate` is set aside.
    """

    calibrate: Any
    evaluate: Any
    search: Any = None


class ArraysSource(NumberedSamples):
    """Rows of arrays in memory, one array per field; `labels` int64 `[N]` or None."""

    sequences: NDArray[np.int64] | None = None
    cheap = True

    def __init__(
        self, where: str, arrays: Mapping[str, NDArray[Any]], labels: Any = None, groups: str | None = None
    ) -> None:
        self.where = where
        arrays = dict(arrays)
        given = None
        if groups is not None:
            if groups not in arrays:
                names = ", ".join(filter(None, arrays)) or "one array alone"
                raise DataError(
                    f"have no array {groups!r} (dataset.groups); they hold {names}", stage="data", where=where
                )
            given = arrays.pop(groups)
        self._arrays = arrays
        self.fields: dict[str, SourceLayout] = dict.fromkeys(arrays, SourceLayout.AS_IS)
        for name, array in arrays.items():
            if array.ndim == 0:
                raise DataError(
                    f"{_called(name)} is a single number; legal is a row per sample", stage="data", where=where
                )
        refuse_unequal({_called(name): len(array) for name, array in arrays.items()}, where)
        self.labels = None if labels is None else as_labels(np.asarray(labels), len(self), where)
        self.groups = None if given is None else as_groups(given, len(self), f"{where}[{groups}]")

    def __len__(self) -> int:
        return len(next(iter(self._arrays.values())))

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the rows of these samples, by field."""
        return {name: array[indices] for name, array in self._arrays.items()}


@dataclass(frozen=True, eq=False)
class GivenDataset(SplitOptions):
    """Hold a data set of samples in memory.

    The options are the options of conf/dataset/callable.yaml, which mean the same for a function's results. An array is
    `[N, …]` with a row per sample; a mapping holds one for each model input; an iterable gives samples one by one. A
    tuple of two is (samples, labels).
    """

    given: Any = None
    sequence: str | None = None
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit.
        """
        sets = self.given
        if isinstance(sets, SampleSets):
            named = {"calibrate": sets.calibrate, "search": sets.search, "evaluate": sets.evaluate}
            for role in ("calibrate", "evaluate"):
                if named[role] is None:
                    raise DataError(f"there are no {role} samples; only search samples may be left out", stage="data")
            sources = {
                role: source_of(some, f"the {role} samples", self.sequence, self.groups)
                for role, some in named.items()
                if some is not None
            }
        else:
            sources = {WHOLE: source_of(sets, "the samples", self.sequence, self.groups)}
        return self.assemble(sources, Preprocess.of(self.preprocess), inputs, outputs_classes, seed=seed)


def source_of(given: Any, where: str, sequence: str | None = None, groups: str | None = None) -> Source:
    """Return the source of samples in any of their forms.

    Raises DataError for any other object.
    """
    labels = None
    if isinstance(given, tuple):
        if len(given) != 2:
            raise DataError(
                f"are a tuple of {len(given)}; legal is a tuple (samples, labels), or a list of samples",
                stage="data",
                where=where,
            )
        given, labels = given
    if isinstance(given, Mapping) or _is_array(given):
        return ArraysSource(where, arrays_of(given, where), labels, groups)
    if labels is not None:
        given = _labelled(given, labels, where)
    return IterableSource(given, where, None, sequence, groups=groups)


def _is_array(value: Any) -> bool:
    """Return whether it is a NumPy array, or another library's equivalent."""
    return hasattr(value, "__array__") and hasattr(value, "shape")


def _labelled(items: Any, labels: Any, where: str) -> Any:
    """Return samples one by one with the label of each."""
    numbers = np.asarray(labels)
    if not hasattr(items, "__len__"):
        raise DataError(
            "are an iterable without a length, and labels are given separately; yield pairs (sample, label) instead",
            stage="data",
            where=where,
        )
    checked = as_labels(numbers, len(items), where)
    return list(zip((items[i] for i in range(len(items))), checked.tolist(), strict=True))


def _called(name: str) -> str:
    return "the array" if name == SINGLE else f"the array of {name!r}"
