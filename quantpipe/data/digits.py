"""The embedded default data: scikit-learn's bundled digits, 1797 grey images of 8x8 pixels, values 0..16.

The division into a training and a test part is fixed here for good, because the embedded model was trained on the
first: `assets/train_digits.py` and the dataset below both ask `digits_parts`, so they can never disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.memory import MemorySource
from quantpipe.data.preprocess import Preprocess, SourceLayout
from quantpipe.data.splits import DEFAULT_SHARE, Part, Splits, build, set_aside
from quantpipe.types import TensorInfo

TRAIN_SHARE = 0.55


def digits_arrays() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """All images `[1797, 8, 8, 1]` uint8 (0..16) and their labels `[1797]` int64, in scikit-learn's order."""
    from sklearn.datasets import load_digits  # slow to import, and needed for this data set alone

    bunch = load_digits()
    return bunch.images.astype(np.uint8)[..., np.newaxis], bunch.target.astype(np.int64)


def digits_parts(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sorted indices of the training and of the test part of `count` images. Never depends on the run's seed."""
    order = np.random.default_rng(0).permutation(count)
    border = round(TRAIN_SHARE * count)
    return np.sort(order[:border]), np.sort(order[border:])


@dataclass(frozen=True, eq=False)
class DigitsDataset:
    """Calibrate and search come, disjoint, out of the training part; evaluate is the test part."""

    search: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=lambda: {"scale": "1/16"})

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """The three splits for a model with these inputs. DataError where they do not fit."""
        images, labels = digits_arrays()
        source = MemorySource("the digits data set", images, labels, SourceLayout.NHWC)
        train, test = digits_parts(len(images))
        share = self.search.get("share", DEFAULT_SHARE)
        calibrate, search = set_aside(Part(source, train), share, np.random.default_rng(seed))
        parts = {"calibrate": calibrate, "search": search, "evaluate": Part(source, test)}
        return build(parts, self.samples, Preprocess.of(self.preprocess), inputs, outputs_classes)
