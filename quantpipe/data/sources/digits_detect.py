"""Scenes of digits with their boxes: the embedded data for a detector, made of scikit-learn's digits.

A scene is a grey picture of 64x64 pixels with one to four digits, each 14 to 30 pixels large, on an uneven ground. The
box of a digit is the smallest one around its ink. Calibrate holds digits of the part that the embedded detector was
trained on, search and evaluate hold others; the same count and seed always give the same scenes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.divide import ROLES, SamplePart
from quantpipe.data.preprocess import Preprocess, SourceLayout
from quantpipe.data.sources.digits import digits_arrays, digits_parts
from quantpipe.data.sources.memory import MemorySource
from quantpipe.data.split_options import refuse_other_than_sections, refuse_unknown_parts
from quantpipe.data.splits import Handling, Splits, build
from quantpipe.types import Objects, TensorInfo

SIDE = 64
"""Of a scene, in pixels."""

SIZES = (14, 30)
"""Of a digit as it is pasted, in pixels."""

MOST = 4
"""Digits in a scene."""

INK = 0.25
"""A pixel belongs to a digit where it is brighter, of 1."""

SCENES: Mapping[str, tuple[int, int]] = {"calibrate": (128, 11), "search": (128, 12), "evaluate": (256, 13)}
"""How many scenes a split has, and the seed that they are drawn by. Fixed: every run is judged by the same scenes."""


def scene(
    digits: NDArray[np.uint8], labels: NDArray[np.int64], rng: np.random.Generator
) -> tuple[NDArray[np.uint8], Objects]:
    """Return one scene `[64, 64]` and its objects, whose boxes are fractions of its width and height.

    `digits` are `[n, 8, 8]`, values 0 to 16, with labels `[n]`; `rng` draws digits, sizes, places and the ground.
    """
    ground = rng.uniform(0.0, 0.3) + rng.uniform(-0.1, 0.1) * np.linspace(-1, 1, SIDE)[:, None]
    canvas = np.clip(ground + rng.normal(0.0, 0.03, (SIDE, SIDE)), 0.0, 1.0)
    boxes: list[NDArray[np.float64]] = []
    classes: list[int] = []
    for _ in range(int(rng.integers(1, MOST + 1))):
        chosen, size = int(rng.integers(len(digits))), int(rng.integers(SIZES[0], SIZES[1] + 1))
        patch = _enlarged(digits[chosen] / 16.0, size)
        rows, columns = (np.flatnonzero((patch > INK).any(axis=axis)) for axis in (1, 0))
        y, x = (int(rng.integers(0, SIDE - size + 1)) for _ in range(2))
        box = np.array([x + columns[0], y + rows[0], x + columns[-1] + 1, y + rows[-1] + 1], np.float64)
        if any(_touch(box, other) for other in boxes):
            continue
        bright = rng.uniform(0.6, 1.0)
        part = canvas[y : y + size, x : x + size]
        part[:] = part * (1 - patch) + bright * patch
        boxes.append(box)
        classes.append(int(labels[chosen]))
    picture = (255 * np.clip(canvas, 0, 1) + 0.5).astype(np.uint8)
    return picture, Objects(np.array(boxes) / SIDE, np.array(classes, np.int64))


def scenes(
    digits: NDArray[np.uint8], labels: NDArray[np.int64], count: int, seed: int
) -> tuple[NDArray[np.uint8], tuple[Objects, ...]]:
    """Return `count` scenes `[count, 64, 64, 1]`, and the objects in each.

    `digits` are `[n, 8, 8]`, values 0 to 16, with labels `[n]`.
    """
    rng = np.random.default_rng(seed)
    found = [scene(digits, labels, rng) for _ in range(count)]
    return np.stack([picture for picture, _ in found])[..., None], tuple(objects for _, objects in found)


def _enlarged(image: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """Return a square image, between whose pixels is interpolated."""
    at = np.clip((np.arange(size) + 0.5) * len(image) / size - 0.5, 0, len(image) - 1)
    low = np.minimum(at.astype(np.int64), len(image) - 2)
    share = at - low
    weights = np.zeros((size, len(image)))
    weights[np.arange(size), low] = 1 - share
    weights[np.arange(size), low + 1] = share
    return np.asarray(weights @ image @ weights.T)


def _touch(one: NDArray[np.float64], other: NDArray[np.float64]) -> bool:
    return bool(np.all(np.minimum(one[2:], other[2:]) > np.maximum(one[:2], other[:2])))


@dataclass(frozen=True, eq=False)
class DigitsDetectDataset:
    """See conf/dataset/digits_detect.yaml for the keys. The run's seed changes no split."""

    samples: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Preprocess | Mapping[str, Any] = field(default_factory=lambda: {"scale": "1/255"})
    force_few: bool = False
    doubts: str = "stop"

    def __post_init__(self) -> None:
        refuse_other_than_sections(self)
        refuse_unknown_parts(self, {"samples": ROLES})

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the three splits for a model with these inputs.

        Raises DataError where they do not fit.
        """
        digits, labels = digits_arrays()
        train, held_out = digits_parts(len(digits))
        half = len(held_out) // 2
        drawn = {"calibrate": train, "search": held_out[:half], "evaluate": held_out[half:]}
        parts = {}
        for role, part in drawn.items():
            count, draw = SCENES[role]
            limit = self.samples.get(role)
            count = min(count, limit) if isinstance(limit, int) and limit > 0 else count
            pictures, objects = scenes(digits[part, ..., 0], labels[part], count, draw)
            where = f"the scenes of digits ({role})"
            source = MemorySource(where, pictures, None, SourceLayout.NHWC, objects=objects)
            parts[role] = SamplePart(source, np.arange(count))
        handling = Handling(force_few=self.force_few, doubts=self.doubts)
        return build(parts, self.samples, Preprocess.of(self.preprocess), inputs, classes=None, handling=handling)
