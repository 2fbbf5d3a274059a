"""Samples from a folder of pictures: one sub-folder per class, or a flat folder.

Labels come from a CSV file (name of the sub-folder, or of the file in a flat folder, to class index); without one, the
sub-folders of all sources together are numbered in sorted order, and a flat folder is unlabeled. Pictures are decoded
batch by batch, with as many channels as the model takes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.labels import read_labels
from quantpipe.data.preprocess import Layout, Preprocess, SourceLayout
from quantpipe.data.source import Hasher
from quantpipe.data.splits import ROLES, Splits, build, divide, log, model_port, source_paths
from quantpipe.errors import DataError, nearest
from quantpipe.types import TensorInfo

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
MODES = {1: "L", 4: "RGBA"}  # Pillow's names by channels; all else is read as RGB


class FolderSource:
    """The pictures of one folder, in an order that is stable and takes turns among the sub-folders.

    First the first picture (by name) of each sub-folder, then the second of each: so that the first N samples show as
    many classes as they can. `classes` maps names of sub-folders (or files) to labels, None where there are none.
    """

    layout = SourceLayout.NHWC

    def __init__(self, folder: Path, classes: Mapping[str, int] | None, by_csv: bool, channels: int) -> None:
        self._folder, self._mode = folder, MODES.get(channels, "RGB")
        self.where = str(folder)
        groups = _groups(folder)
        if not by_csv and "" in groups and len(groups) > 1:
            raise DataError(
                f"mixes pictures ({groups[''][0].name}, …) with sub-folders of pictures; put every picture into the "
                "sub-folder of its class, or give dataset.labels.",
                stage="data",
                where=self.where,
            )
        turns = zip_longest(*(groups[name] for name in sorted(groups)))
        self._files = [path for turn in turns for path in turn if path is not None]
        self.labels = self._find_labels(classes, by_csv)

    def _find_labels(self, classes: Mapping[str, int] | None, by_csv: bool) -> NDArray[np.int64] | None:
        if classes is None or (not by_csv and all(path.parent == self._folder for path in self._files)):
            return None
        return np.array([self._label(path, classes) for path in self._files], dtype=np.int64)

    def _label(self, path: Path, classes: Mapping[str, int]) -> int:
        """By the name of the sub-folder, or, in a flat folder, of the file with or without its ending."""
        parts = path.relative_to(self._folder).parts
        names = (parts[0],) if len(parts) > 1 else (path.name, path.stem)
        for name in names:
            if name in classes:
                return classes[name]
        raise DataError(
            f"dataset.labels has no row for {names[0]!r}{nearest(names[0], classes)}; add one, or name other columns "
            "in dataset.label_columns=[NAME,INDEX].",
            stage="data",
            where=str(path),
        )

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        return str(self._files[index])

    def read(self, indices: NDArray[np.int64]) -> list[NDArray[np.uint8]]:
        return [_decode(self._files[int(i)], self._mode) for i in indices]

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        hasher.update(self._mode.encode())
        for index in indices:
            path = self._files[int(index)]
            try:
                content = hashlib.sha256(path.read_bytes()).digest()
            except OSError as error:
                raise DataError(f"cannot be read ({error}).", stage="data", where=str(path)) from error
            hasher.update(path.relative_to(self._folder).as_posix().encode() + b"\0" + content)


def _groups(folder: Path) -> dict[str, list[Path]]:
    """Name of the sub-folder ("" for the folder itself) -> its pictures, sorted. What is hidden does not count."""
    if not folder.is_dir():
        raise DataError("is a file; legal is a folder of pictures.", stage="data", where=str(folder))
    groups: dict[str, list[Path]] = {}
    for entry in sorted(folder.iterdir()):
        for path in sorted(entry.rglob("*")) if entry.is_dir() else [entry]:
            hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
            if path.suffix.lower() in SUFFIXES and path.is_file() and not hidden:
                groups.setdefault(entry.name if entry.is_dir() else "", []).append(path)
    if not groups:
        raise DataError(
            f"holds no pictures; legal endings are {', '.join(sorted(SUFFIXES))}.", stage="data", where=str(folder)
        )
    return groups


def _decode(path: Path, mode: str) -> NDArray[np.uint8]:
    """One picture, `[H, W, channels]` uint8."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            if picture.mode == "F" or picture.mode.startswith("I"):
                raise DataError(
                    f"has more than 8 bits per channel (mode {picture.mode}); convert it to 8 bits, or store the data "
                    "as arrays and use dataset=npz.",
                    stage="data",
                    where=str(path),
                )
            array = np.asarray(picture.convert(mode))
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(
            f"is not a picture that can be read ({error}); repair or remove it.", stage="data", where=str(path)
        ) from error
    return array[..., np.newaxis] if array.ndim == 2 else array


def sub_folder_classes(folders: Iterable[Path]) -> dict[str, int] | None:
    """Sub-folder names of all folders together -> position in sorted order; None where there are no sub-folders."""
    names = {p.name for f in folders if f.is_dir() for p in f.iterdir() if p.is_dir() and not p.name.startswith(".")}
    return {name: i for i, name in enumerate(sorted(names))} or None


@dataclass(frozen=True, eq=False)
class ImageFolderDataset:
    """See conf/dataset/image_folder.yaml for the keys; those left out have the defaults given there."""

    path: str | None = None
    calibrate: Mapping[str, Any] = field(default_factory=dict)
    search: Mapping[str, Any] = field(default_factory=dict)
    evaluate: Mapping[str, Any] = field(default_factory=dict)
    split: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    labels: str | None = None
    label_columns: Sequence[str] = ("wnid", "index")
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """The three splits for a model with these inputs. DataError where they do not fit, or a file is unusable."""
        preprocess = Preprocess.of(self.preprocess)
        paths = source_paths(self.path, dict(zip(ROLES, (self.calibrate, self.search, self.evaluate), strict=True)))
        channels = _channels(model_port(inputs), preprocess)
        classes = self._classes(list(paths.values()), outputs_classes)
        by_csv = self.labels is not None
        sources = {role: FolderSource(path, classes, by_csv, channels) for role, path in paths.items()}
        parts = divide(sources, self.split, self.search, seed)
        return build(parts, self.samples, preprocess, inputs, outputs_classes)

    def _classes(self, folders: Sequence[Path], outputs_classes: int | None) -> dict[str, int] | None:
        if self.labels is not None:
            return read_labels(Path(str(self.labels)).expanduser(), self.label_columns)
        classes = sub_folder_classes(folders)
        if classes is not None and outputs_classes is not None and len(classes) < outputs_classes:
            log.warning(
                "%d sub-folders stand for %d classes and are numbered in sorted order; if that is not the model's "
                "order, give dataset.labels=FILE.csv",
                len(classes),
                outputs_classes,
            )
        return classes


def _channels(port: TensorInfo, preprocess: Preprocess) -> int:
    """How many channels pictures must have; 3 where the model leaves it open."""
    if len(port.shape) != 4:
        return 3
    return port.shape[1 if preprocess.layout is Layout.NCHW else 3] or 3
