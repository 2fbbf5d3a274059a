"""The embedded default data: scikit-learn's bundled digits, 1797 grey images of 8x8 pixels, values 0..16.

The division into a training and a held-out part is fixed here for good, because the embedded model was trained on the
first. `embedded_models/train_digits.py` and the dataset below both call `digits_parts`, so they cannot disagree. Only
ranges are taken from images that the model has seen in training; on those its outputs are too sure to steer a search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.divide import DEFAULT_SHARE, ROLES, TRAIN, SamplePart, set_aside
from quantpipe.data.preprocess import Preprocess, SourceLayout
from quantpipe.data.source import Source
from quantpipe.data.sources.memory import MemorySource
from quantpipe.data.split_options import refuse_other_than_sections, refuse_unknown_parts
from quantpipe.data.splits import Handling, Splits, build
from quantpipe.types import TensorInfo

TRAIN_SHARE = 0.55
SEARCH_SEED = 1  # of the draw from the held-out part; fixed, so that every run is judged by the same images


def digits_arrays() -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return all images `[1797, 8, 8, 1]` uint8 (0..16) and their labels `[1797]` int64, in scikit-learn's order."""
    rows = _rows()
    return rows[:, :-1].astype(np.uint8).reshape(-1, 8, 8, 1), rows[:, -1].astype(np.int64)


def _rows() -> NDArray[np.float64]:
    """Return all images and labels, `[1797, 65]`: as the file within scikit-learn holds them.

    The package itself is not imported for that, which would take a second of every run of the default data. Only where
    its file is not found there, the package is imported.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if path.is_file():
            return np.loadtxt(path, delimiter=",")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])


def digits_parts(count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sorted indices of the training and of the held-out part of `count` images.

    Never depends on the run's seed.
    """
    order = np.random.default_rng(0).permutation(count)
    border = round(TRAIN_SHARE * count)
    return np.sort(order[:border]), np.sort(order[border:])


@dataclass(frozen=True, eq=False)
class DigitsDataset:
    """Calibrate is the training part; search is a fixed share of the held-out part, evaluate the rest of that.

    The run's seed changes none of them: results of different seeds are judged by the same images.
    """

    search: Mapping[str, Any] = field(default_factory=dict)
    samples: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=lambda: {"scale": "1/16"})
    force_few: bool = False
    doubts: str = "stop"

    def __post_init__(self) -> None:
        refuse_other_than_sections(self)
        refuse_unknown_parts(self, {"search": ("share",), "samples": (*ROLES, TRAIN)})

    def source(self) -> Source:
        """Return all samples, in scikit-learn's order."""
        images, labels = digits_arrays()
        return MemorySource("the digits data set", images, labels, SourceLayout.NHWC)

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit.
        """
        source = self.source()
        train, held_out = digits_parts(len(source))
        share = self.search.get("share", DEFAULT_SHARE)
        evaluate, search = set_aside(SamplePart(source, held_out), share, np.random.default_rng(SEARCH_SEED))
        parts = {"calibrate": SamplePart(source, train), "search": search, "evaluate": evaluate}
        handling = Handling(force_few=self.force_few, doubts=self.doubts)
        return build(
            parts, self.samples, Preprocess.of(self.preprocess), inputs, classes=outputs_classes, handling=handling
        )
