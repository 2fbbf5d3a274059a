"""Samples from text through a tokenizer of the user's: lines of a file, or a column of a table.

The tokenizer maps a string to an array, or to a mapping from model inputs to arrays. Lengths may differ: nothing is
cut or padded unless `max_length` and `pad` ask for it. Each text is tokenized once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import Preprocess
from quantpipe.data.sample_store import SampleCache, SampleStore
from quantpipe.data.source import Hasher, Rows, hash_arrays
from quantpipe.data.sources.table import LABEL, integers, texts_of
from quantpipe.data.sources.tablefile import SUFFIXES, TableFile
from quantpipe.data.split_options import FileOptions
from quantpipe.data.splits import Splits
from quantpipe.data.user_functions import arrays_of, called, checked_function, fields_of, rows_of
from quantpipe.errors import ConfigError, DataError
from quantpipe.types import TensorInfo

KEY = "dataset.tokenizer"


@dataclass(frozen=True)
class Lengths:
    """Cut the last axis to `max_length`, and fill it up with `pad` (one number, or one by input) at its end."""

    max_length: int | None
    pad: float | Mapping[str, float] | None

    def __post_init__(self) -> None:
        if self.max_length is not None and (not isinstance(self.max_length, int) or self.max_length < 1):
            raise ConfigError(f"{self.max_length!r} must be null or an integer.", where="dataset.max_length")
        if self.pad is not None and self.max_length is None:
            raise ConfigError("pads to dataset.max_length, which is not set.", where="dataset.pad")

    def apply(self, arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return each array as long as it may be."""
        return {name: self._one(name, array) for name, array in arrays.items()}

    def _one(self, name: str, array: NDArray[Any]) -> NDArray[Any]:
        if self.max_length is None or array.ndim == 0:
            return array
        cut = array[..., : self.max_length]
        value = self.pad.get(name) if isinstance(self.pad, Mapping) else self.pad
        missing = self.max_length - cut.shape[-1]
        if value is None or not missing:
            return cut
        return np.pad(cut, [(0, 0)] * (cut.ndim - 1) + [(0, missing)], constant_values=value)


class TextSource:
    """The texts of one file, tokenized on demand."""

    cheap = False
    sequences = None

    def __init__(
        self,
        path: Path,
        tokenizer: Callable[[str], Any],
        lengths: Lengths,
        column: str,
        *,
        label: str | None,
        classes: Sequence[str] | None,
        groups: str | None = None,
    ) -> None:
        self.where = str(path)
        self._tokenizer, self._lengths = tokenizer, lengths
        self._texts = SampleStore()
        self.labels: NDArray[np.int64] | None = None
        self.groups: NDArray[np.str_] | None = None
        if path.suffix.lower() in SUFFIXES:
            self._read_table(path, column, label, classes)
            if groups is not None:
                file = TableFile(path)
                file.require([groups], "dataset.groups")
                self.groups = texts_of(file, groups)
        elif groups is not None:
            raise ConfigError(
                f"is {groups!r}, and {path} is a file of lines; legal is a column of a table ({', '.join(SUFFIXES)}).",
                where="dataset.groups",
            )
        else:
            self._read_lines(path)
        self._arrays = SampleCache(self._tokenized)
        self.fields = fields_of(partial(self._arrays, index) for index in range(len(self)))

    def _read_table(self, path: Path, column: str, label: str | None, classes: Sequence[str] | None) -> None:
        file = TableFile(path)
        file.require([column], "dataset.column")
        if label == LABEL and LABEL not in file.columns:
            label = None
        for (texts,) in file.texts([column]):
            for text in texts:
                self._keep(text)
        if label is not None:
            file.require([label], "dataset.label")
            self.labels = integers(file, label, classes, "label")

    def _read_lines(self, path: Path) -> None:
        if path.is_dir():
            raise DataError(
                f"is a folder; legal is a text file (a line is a sample) or a table ({', '.join(SUFFIXES)}).",
                stage="data",
                where=str(path),
            )
        try:
            with path.open(encoding="utf-8-sig") as file:
                for line in file:
                    if line.strip():
                        self._keep(line.rstrip("\r\n"))
        except (UnicodeDecodeError, OSError) as error:
            raise DataError(f"cannot be read as UTF-8 text ({error}).", stage="data", where=str(path)) from error

    def _keep(self, text: str) -> None:
        self._texts.append({"text": np.frombuffer(text.encode(), dtype=np.uint8)})

    def _text(self, index: int) -> str:
        return bytes(self._texts.read(index)["text"]).decode()

    def _tokenized(self, index: int) -> dict[str, NDArray[Any]]:
        where = self.name(index)
        return self._lengths.apply(arrays_of(called(self._tokenizer, where, KEY, self._text(index)), where))

    def __len__(self) -> int:
        return len(self._texts)

    def name(self, index: int) -> str:
        """Return the name of a text, as errors show it."""
        return f"sample {index} of {self.where}"

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the tokenizer's arrays for these texts, by field.

        Raises DataError where its fields differ from the fields of the first text.
        """
        return rows_of(self, self._arrays, indices, key=KEY, one="text")

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Include the arrays of these texts in a digest."""
        hash_arrays(hasher, self, indices)


@dataclass(frozen=True, eq=False)
class TextDataset(FileOptions):
    """See conf/dataset/text.yaml for the keys; `tokenizer` is the function itself here."""

    tokenizer: Callable[[str], Any] | None = None
    column: str = "text"
    label: str | None = LABEL
    classes: Sequence[str] | None = None
    max_length: int | None = None
    pad: float | Mapping[str, float] | None = None

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit, or a file is unusable.
        """
        tokenizer, lengths = checked_function(self.tokenizer, KEY), Lengths(self.max_length, self.pad)
        sources = {
            role: TextSource(
                path, tokenizer, lengths, self.column, label=self.label, classes=self.classes, groups=self.groups
            )
            for role, path in self.paths().items()
        }
        return self.assemble(sources, Preprocess(), inputs, outputs_classes, seed=seed)
