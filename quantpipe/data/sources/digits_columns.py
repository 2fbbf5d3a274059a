"""The digits as sequences that differ in length: the columns of each image from the first with ink to the last.

Removed columns are padded at the end, so that every sample has eight columns, and `attention_mask` marks the real ones:
the inputs of a transformer encoder with padding masks. Images, labels and splits are the same as in `digits`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.preprocess import Preprocess
from quantpipe.data.source import Source
from quantpipe.data.sources.digits import DigitsDataset, digits_arrays
from quantpipe.data.sources.given import ArraysSource

COLUMNS = 8
INK = 1 / 8
"""A column counts where a pixel is brighter than that, of 1."""


def columns_of(images: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the columns `[N, 8, 8]` and the attention mask `[N, 8]` of images `[N, 8, 8]` (values from 0 to 1).

    The first axis after N is the sequence. An image without ink keeps all its columns.
    """
    ink: NDArray[np.bool_] = np.any(images > INK, axis=1)
    ink |= ~ink.any(axis=1, keepdims=True)
    first = ink.argmax(axis=1)
    length = COLUMNS - ink[:, ::-1].argmax(axis=1) - first
    place = np.arange(COLUMNS)
    mask = place < length[:, None]
    taken = np.minimum(first[:, None] + place, COLUMNS - 1)
    columns = np.take_along_axis(images.transpose(0, 2, 1), taken[:, :, None], axis=1)
    return np.where(mask[:, :, None], columns, np.float32(0)), mask.astype(np.int64)


@dataclass(frozen=True, eq=False)
class DigitsColumnsDataset(DigitsDataset):
    """The inputs `columns`, values from 0 to 1, and `attention_mask`; splits as in `DigitsDataset`."""

    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=dict)

    def source(self) -> Source:
        """Return all samples, in scikit-learn's order."""
        pixels, labels = digits_arrays()
        columns, mask = columns_of(pixels[..., 0].astype(np.float32) / np.float32(16))
        return ArraysSource("the columns of the digits", {"columns": columns, "attention_mask": mask}, labels)
