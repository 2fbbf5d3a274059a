"""Samples from arrays: a .npz file with images and labels, or a plain .npy file without labels.

Takes images of any kind (uint8 pictures, float features, flat vectors); `source_layout` says what the axes mean.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.arrays import ArrayFile, member_names
from quantpipe.data.labels import as_labels
from quantpipe.data.preprocess import Preprocess, SourceLayout, one_of
from quantpipe.data.source import Hasher
from quantpipe.data.splits import ROLES, Splits, build, divide, source_paths
from quantpipe.types import TensorInfo

DEFAULT_KEYS: Mapping[str, Any] = {"images": "images", "labels": "labels"}
HASH_ROWS = 256  # rows in memory at once while hashing


class ArraySource:
    """The rows of a stored array. A missing array of labels is legal only under its default name."""

    def __init__(self, path: Path, keys: Mapping[str, Any], layout: SourceLayout) -> None:
        names = member_names(path)
        self._images = ArrayFile(path, None if names is None else str(keys["images"]))
        self.where = str(path)
        self.layout = layout.resolve(self._images.shape, self._images.dtype)
        self.labels = self._read_labels(path, names, keys["labels"])

    def _read_labels(self, path: Path, names: tuple[str, ...] | None, key: Any) -> NDArray[np.int64] | None:
        if names is None or key is None or (key == DEFAULT_KEYS["labels"] and key not in names):
            return None
        file = ArrayFile(path, str(key))
        return as_labels(file.rows(np.arange(file.shape[0])), len(self), file.where)

    def __len__(self) -> int:
        return self._images.shape[0]

    def name(self, index: int) -> str:
        return f"sample {index} of {self._images.where}"

    def read(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        return self._images.rows(indices)

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        hasher.update(f"{self._images.dtype.str}{self._images.shape[1:]}".encode())
        for start in range(0, len(indices), HASH_ROWS):
            hasher.update(self._images.rows(indices[start : start + HASH_ROWS]).tobytes())


@dataclass(frozen=True, eq=False)
class NpzDataset:
    """See conf/dataset/npz.yaml for the keys; those left out have the defaults given there."""

    path: str | None = None
    calibrate: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Mapping[str, Any] = field(default_factory=dict)
    split: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, Any] = field(default_factory=dict)
    source_layout: str = SourceLayout.AUTO
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """The three splits for a model with these inputs. DataError where they do not fit, or a file is unusable."""
        preprocess = Preprocess.of(self.preprocess)
        layout = one_of(SourceLayout, self.source_layout, "dataset.source_layout")
        paths = source_paths(self.path, dict(zip(ROLES, (self.calibrate, self.search, self.evaluate), strict=True)))
        sources = {role: ArraySource(path, {**DEFAULT_KEYS, **self.keys}, layout) for role, path in paths.items()}
        parts = divide(sources, self.split, self.search, seed)
        return build(parts, self.samples, preprocess, inputs, outputs_classes)
