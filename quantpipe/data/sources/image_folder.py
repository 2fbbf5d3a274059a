"""Samples from a folder of pictures: one sub-folder per class, or a flat folder (labels: `data/sources/folder.py`).

Pictures are decoded batch by batch, with as many channels as the model takes.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import Layout, Preprocess, SourceLayout
from quantpipe.data.source import SINGLE, Hasher, Rows
from quantpipe.data.sources.folder import FILE_OF_GROUPS, ClassFolder, classes_of
from quantpipe.data.split_options import FileOptions
from quantpipe.data.splits import Splits
from quantpipe.errors import DataError, brief
from quantpipe.types import TensorInfo

SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})
MODES = {1: "L", 4: "RGBA"}  # Pillow's names by channels; all else is read as RGB


class PictureSource:
    """The pictures of one folder, as uint8 `[H, W, channels]`."""

    cheap = False
    sequences = None

    def __init__(
        self, folder: Path, classes: Mapping[str, int] | None, by_csv: bool, channels: int, *, groups: str | None = None
    ) -> None:
        self._mode = MODES.get(channels, "RGB")
        self.where = str(folder)
        self.fields: Mapping[str, SourceLayout] = {SINGLE: SourceLayout.NHWC}
        found = ClassFolder(folder, SUFFIXES, "pictures", classes, by_csv=by_csv, groups=groups)
        self._files, self.labels, self.class_names = found.files, found.labels, found.class_names
        self.groups = found.groups

    def __len__(self) -> int:
        return len(self._files)

    def name(self, index: int) -> str:
        """Return the path of a picture, as errors show it."""
        return str(self._files[index])

    def read(self, indices: NDArray[np.int64]) -> Mapping[str, Rows]:
        """Return these pictures, decoded."""
        return {SINGLE: [_decode(self._files[int(i)], self._mode) for i in indices]}

    def hash_into(self, hasher: Hasher, indices: NDArray[np.int64]) -> None:
        """Include mode, relative path and content of these pictures in a digest.

        Raises DataError where a file cannot be read.
        """
        hasher.update(self._mode.encode())
        for index in indices:
            path = self._files[int(index)]
            try:
                content = hashlib.sha256(path.read_bytes()).digest()
            except OSError as error:
                raise DataError(f"cannot be read ({error}).", stage="data", where=str(path)) from error
            hasher.update(os.fsencode(path.relative_to(self.where).as_posix()) + b"\0" + content)

    def feed_content(self, index: int, hasher: Hasher) -> None:
        """Include the file as it is stored.

        A copy under another name is the same picture, and nothing is decoded.
        """
        try:
            hasher.update(self._files[index].read_bytes())
        except OSError as error:
            raise DataError(f"cannot be read ({error}).", stage="data", where=self.name(index)) from error


def _decode(path: Path, mode: str) -> NDArray[np.uint8]:
    """Return one picture, `[H, W, channels]` uint8."""
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
    except DataError:
        raise
    except Exception as error:  # a decoder may raise anything for a damaged file
        raise DataError(
            f"is not a picture that can be read ({brief(error)}); repair or remove it, or set dataset.on_error=skip.",
            stage="data",
            where=str(path),
        ) from error
    return array[..., np.newaxis] if array.ndim == 2 else array


@dataclass(frozen=True, eq=False)
class ImageFolderDataset(FileOptions):
    """See conf/dataset/image_folder.yaml for the keys; those left out have the defaults given there."""

    labels: str | None = None
    label_columns: Sequence[str] = ("wnid", "index")
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    legal_groups = FILE_OF_GROUPS

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit, or a file is unusable.
        """
        preprocess, paths = Preprocess.of(self.preprocess), self.paths()
        channels = _channels(self.data_inputs(inputs), preprocess)
        classes = classes_of(list(paths.values()), self.labels, self.label_columns, outputs_classes)
        by_csv = self.labels is not None
        sources = {
            role: PictureSource(path, classes, by_csv, channels, groups=self.groups) for role, path in paths.items()
        }
        return self.assemble(sources, preprocess, inputs, outputs_classes, seed=seed)


def _channels(ports: Sequence[TensorInfo], preprocess: Preprocess) -> int:
    """Return how many channels pictures must have; 3 where the model leaves it open."""
    if len(ports) != 1 or len(ports[0].shape) != 4:
        return 3
    layout = preprocess.for_input(ports[0].shape, SourceLayout.NHWC).layout
    return ports[0].shape[1 if layout is Layout.NCHW else 3] or 3
