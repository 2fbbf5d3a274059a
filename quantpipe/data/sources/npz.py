"""Samples from arrays: a .npz file with images and labels, or a plain .npy file without labels.

Takes images of any kind (uint8 pictures, float features, flat vectors); `source_layout` names the axes. A model with
several inputs takes one array for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.labels import as_groups, as_labels
from quantpipe.data.preprocess import Preprocess, SourceLayout, one_of
from quantpipe.data.source import SINGLE, Hasher, Rows, refuse_unequal
from quantpipe.data.sources.arrays import ArrayFile, member_names
from quantpipe.data.split_options import FileOptions
from quantpipe.data.splits import Splits
from quantpipe.errors import ConfigError, DataError, nearest
from quantpipe.types import TensorInfo

DEFAULT_KEYS: Mapping[str, Any] = {"images": "images", "labels": "labels", "inputs": None, "sequence": None}
HASH_BYTES = 32 << 20  # of rows in memory at once while hashing


class ArraySource:
    """The rows of stored arrays, one per field. A missing array of labels is legal only under its default name.

    `arrays` maps fields to names in the file.
    """

    def __init__(
        self,
        path: Path,
        arrays: Mapping[str, str | None],
        keys: Mapping[str, Any],
        layout: SourceLayout,
        *,
        groups: str | None = None,
    ) -> None:
        names = member_names(path)
        self._arrays = {name: ArrayFile(path, key) for name, key in arrays.items()}
        self.where = str(path)
        self.fields = {name: _layout(file, layout, name) for name, file in self._arrays.items()}
        refuse_unequal({file.where: file.shape[0] for file in self._arrays.values()})
        self.labels = self._read_labels(path, names, keys["labels"])
        self.sequences = self._read_sequences(path, keys["sequence"])
        self.groups = None if groups is None else self._read_groups(path, names, groups)

    def _read_labels(self, path: Path, names: tuple[str, ...] | None, key: Any) -> NDArray[np.int64] | None:
        if names is None or key is None or (key == DEFAULT_KEYS["labels"] and key not in names):
            return None
        file = ArrayFile(path, str(key))
        return as_labels(file.rows(np.arange(file.shape[0])), len(self), file.where)

    def _read_sequences(self, path: Path, key: Any) -> NDArray[np.int64] | None:
        """Return numbers of sequences from an array of integers, one per row."""
        if key is None:
            return None
        file = ArrayFile(path, str(key))
        if file.shape != (len(self),) or file.dtype.kind not in "iu":
            raise DataError(
                f"is {file.dtype} {list(file.shape)}; dataset.keys.sequence takes an integer for each sample, "
                f"[{len(self)}].",
                stage="data",
                where=file.where,
            )
        return file.rows(np.arange(len(self))).astype(np.int64)

    def _read_groups(self, path: Path, names: tuple[str, ...] | None, key: str) -> NDArray[np.str_]:
        """Return the group of each row from an array of integers or texts."""
        if names is None or key not in names:
            raise DataError(
                f"has no array {key!r} (dataset.groups){nearest(key, names or ())}; legal are "
                f"{', '.join(names or ()) or 'the arrays of an .npz file'}.",
                stage="data",
                where=str(path),
            )
        try:
            with np.load(path, allow_pickle=False) as archive:
                raw = archive[key]
        except (OSError, ValueError) as error:
            raise DataError(f"cannot be read ({error}).", stage="data", where=f"{path}[{key}]") from error
        return as_groups(raw, len(self), f"{path}[{key}]")

    @property
    def cheap(self) -> bool:
        """Return whether values may be wrong one by one; pixels cannot: they have one shape, and every value fits."""
        return any(file.dtype != np.uint8 for file in self._arrays.values())

    def __len__(self) -> int:
        return next(iter(self._arrays.values())).shape[0]

    def name(self, index: int) -> str:
        """Return the name of a sample, as errors show it."""
        return f"sample {index} of {next(iter(self._arrays.values())).where if SINGLE in self._arrays else self.where}"

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return the rows of these samples, by field."""
        return {name: file.rows(indices) for name, file in self._arrays.items()}

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Include type, shape and content of these samples in a digest, field by field."""
        for name, file in sorted(self._arrays.items()):
            hasher.update(f"{name}{file.dtype.str}{file.shape[1:]}".encode())
            rows = max(1, HASH_BYTES // max(1, prod(file.shape[1:]) * file.dtype.itemsize))
            for start in range(0, len(indices), rows):
                hasher.update(file.rows(indices[start : start + rows]).tobytes())


def _layout(file: ArrayFile, layout: SourceLayout, name: str) -> SourceLayout:
    """Return the layout; of several arrays, arrays that cannot be images are taken as they are."""
    if name != SINGLE and layout is not SourceLayout.AUTO and len(file.shape) != (3 if layout == "NHW" else 4):
        return SourceLayout.AS_IS
    return layout.resolve(file.shape, file.dtype)


@dataclass(frozen=True, eq=False)
class NpzDataset(FileOptions):
    """See conf/dataset/npz.yaml for the keys; those left out have the defaults given there."""

    parts: ClassVar[Mapping[str, Sequence[str]]] = {**FileOptions.parts, "keys": tuple(DEFAULT_KEYS)}

    keys: Mapping[str, Any] = field(default_factory=dict)
    source_layout: str = SourceLayout.AUTO
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit, or a file is unusable.
        """
        preprocess = Preprocess.of(self.preprocess)
        layout = one_of(SourceLayout, self.source_layout, "dataset.source_layout")
        keys = {**DEFAULT_KEYS, **self.keys}
        needed = [i.name for i in self.data_inputs(inputs)]
        every = [i.name for i in inputs]
        paths = self.paths()
        arrays = {role: _arrays(path, needed, every, keys, groups=self.groups) for role, path in paths.items()}
        sources = {
            role: ArraySource(path, arrays[role], keys, layout, groups=self.groups) for role, path in paths.items()
        }
        splits = self.assemble(sources, preprocess, inputs, outputs_classes, seed=seed)
        notes = (
            f"array {array!r} feeds model input {needed[0]!r}, as the only one of each ({paths[role]})"
            for role, fields in arrays.items()
            if (array := fields.get(SINGLE)) not in (None, keys["images"])
        )
        return replace(splits, notes=tuple(notes))


def _arrays(
    path: Path, needed: Sequence[str], every: Sequence[str], keys: Mapping[str, Any], *, groups: str | None = None
) -> dict[str, str | None]:
    """Return field -> array: by `keys.inputs`; for a single input `keys.images`, if present; else the input's name.

    Without these, the only array of a file feeds a single input. First values of inputs that carry state (in `every`,
    not in `needed`) are taken where there are some.
    """
    names = member_names(path)
    given = keys["inputs"] or {}
    for name in given:
        if name not in every:
            raise ConfigError(
                f"is no input of the model{nearest(str(name), every)}; its inputs are {', '.join(every)}.",
                where=f"dataset.keys.inputs.{name}",
            )
    if names is None:
        return {SINGLE: None}
    if not names:
        raise DataError("holds no arrays; legal is one with a row per sample.", stage="data", where=str(path))
    found = {name: str(given.get(name, name)) for name in every if name in given or name in names}
    others: dict[str, str | None] = {
        name: name for name in names if name not in (keys["labels"], keys["sequence"], groups)
    }
    if len(needed) == 1 and needed[0] not in given and (needed[0] not in found or keys["images"] in names):
        state = {name: array for name, array in found.items() if name != needed[0]}
        free = [name for name in others if name != DEFAULT_KEYS["labels"]]
        if len(free) == 1 and not state and keys["images"] == DEFAULT_KEYS["images"]:
            return {SINGLE: free[0]}
        return {needed[0] if state else SINGLE: str(keys["images"]), **state}
    if not found and not others:
        raise DataError(
            f"holds {', '.join(names)} and nothing to give to the model; its inputs are {', '.join(every)}. Set "
            "dataset.keys.",
            stage="data",
            where=str(path),
        )
    return dict(found) or others
