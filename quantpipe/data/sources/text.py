"""Samples from text through a tokenizer of the user's: lines of a file, or a column of a table.

The tokenizer maps a string to an array, or to a mapping from model inputs to arrays. Lengths may differ: nothing is
cut or padded unless `cut`, or `max_length` and `pad`, ask for it. Each text is tokenized once.
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
from quantpipe.data.source import NumberedSamples, Rows
from quantpipe.data.sources.table import LABEL, integers, texts_of
from quantpipe.data.sources.tablefile import SUFFIXES, TableFile
from quantpipe.data.split_options import FileOptions
from quantpipe.data.splits import Splits
from quantpipe.data.user_functions import arrays_of, called, checked_function, fields_of, rows_of
from quantpipe.errors import ConfigError, DataError
from quantpipe.types import TensorInfo

KEY = "dataset.tokenizer"
IDS = "input_ids"
POSITIONS, MASK = ("position_ids", "cache_position"), "attention_mask"
"""The names of inputs whose values depend on where a piece of a text begins."""


@dataclass(frozen=True)
class TextPieces:
    """Cut texts along the last axis into samples of at most `tokens` tokens; None: a text is a sample.

    `carried`: a later piece goes on where the one before ended, with the cache of that one. Else it begins again.
    """

    tokens: int | None = None
    carried: bool = False

    def __post_init__(self) -> None:
        if self.tokens is not None and (not isinstance(self.tokens, int) or self.tokens < 1):
            raise ConfigError(f"{self.tokens!r} must be null or an integer above 0.", where="dataset.cut")

    def begins(self, arrays: Mapping[str, NDArray[Any]]) -> list[int]:
        """Return where the pieces of a text begin."""
        return [0] if self.tokens is None else list(range(0, max(_tokens(arrays), 1), self.tokens))

    def piece(self, arrays: Mapping[str, NDArray[Any]], begin: int) -> dict[str, NDArray[Any]]:
        """Return the arrays of the piece that begins at a token.

        Positions of a piece that begins again count from the text's first one. A mask reaches back over the cache.
        """
        if self.tokens is None:
            return dict(arrays)
        end, found, length = begin + self.tokens, {}, _tokens(arrays)
        for name, array in arrays.items():
            if not array.ndim or array.shape[-1] != length:
                found[name] = array  # of the whole text
                continue
            first = 0 if self.carried and name == MASK else begin
            part = array[..., first:end]
            begins_again = name in POSITIONS and not self.carried
            found[name] = part - part[..., :1] + array[..., :1] if begins_again else part
        return found


def _tokens(arrays: Mapping[str, NDArray[Any]]) -> int:
    """Return how many tokens a text has: by its ids, or else by the longest last axis."""
    if IDS in arrays and arrays[IDS].ndim:
        return int(arrays[IDS].shape[-1])
    return max((array.shape[-1] for array in arrays.values() if array.ndim), default=0)


@dataclass(frozen=True)
class Lengths:
    """Cut the last axis to `max_length`, and fill it up with `pad` (one number, or one by input) at its end.

    Or cut all of it into `pieces`.
    """

    max_length: int | None
    pad: float | Mapping[str, float] | None
    pieces: TextPieces = TextPieces()

    def __post_init__(self) -> None:
        if self.max_length is not None and (not isinstance(self.max_length, int) or self.max_length < 1):
            raise ConfigError(f"{self.max_length!r} must be null or an integer.", where="dataset.max_length")
        if self.pad is not None and self.max_length is None:
            raise ConfigError("pads to dataset.max_length, which is not set.", where="dataset.pad")
        if self.pieces.tokens is not None and self.max_length is not None:
            raise ConfigError(
                "cuts texts into samples, and dataset.max_length would leave out their ends. Give one of them.",
                where="dataset.cut",
            )

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


class TextSource(NumberedSamples):
    """The texts of one file, or pieces of them, tokenized on demand."""

    cheap = False
    sequences: NDArray[np.int64] | None = None

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
        self._places = [(index, 0) for index in range(len(self._texts))]
        self.fields = fields_of(partial(self._arrays, index) for index in range(len(self._texts)))
        if self._lengths.pieces.tokens is not None:
            self._cut()

    def _cut(self) -> None:
        """Find the pieces of all texts; pieces of one text stay together."""
        self._places = [
            (i, begin) for i in range(len(self._texts)) for begin in self._lengths.pieces.begins(self._arrays(i))
        ]
        owners = np.array([index for index, _ in self._places], dtype=np.int64)
        self.sequences = owners
        self.labels = self.labels[owners] if self.labels is not None else None
        self.groups = self.groups[owners] if self.groups is not None else None

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
        where = f"text {index} of {self.where}" if self._lengths.pieces.tokens is not None else self.name(index)
        return self._lengths.apply(arrays_of(called(self._tokenizer, where, KEY, self._text(index)), where))

    def __len__(self) -> int:
        return len(self._places)

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the tokenizer's arrays for these texts, by field.

        Raises DataError where its fields differ from the fields of the first text.
        """
        return rows_of(self, self._sample, indices, key=KEY, one="text")

    def _sample(self, index: int) -> dict[str, NDArray[Any]]:
        text, begin = self._places[index]
        return self._lengths.pieces.piece(self._arrays(text), begin)


@dataclass(frozen=True, eq=False)
class TextDataset(FileOptions):
    """See conf/dataset/text.yaml for the keys; `tokenizer` is the function itself here."""

    tokenizer: Callable[[str], Any] | None = None
    column: str = "text"
    label: str | None = LABEL
    classes: Sequence[str] | None = None
    max_length: int | None = None
    pad: float | Mapping[str, float] | None = None
    cut: int | None = None

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit, or a file is unusable.
        """
        tokenizer = checked_function(self.tokenizer, KEY)
        lengths = Lengths(self.max_length, self.pad, TextPieces(self.cut, carried=bool(self.state)))
        sources = {
            role: TextSource(
                path, tokenizer, lengths, self.column, label=self.label, classes=self.classes, groups=self.groups
            )
            for role, path in self.paths().items()
        }
        return self.assemble(sources, Preprocess(), inputs, outputs_classes, seed=seed)
