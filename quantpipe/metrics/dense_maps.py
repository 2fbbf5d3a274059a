"""Recognize maps of scores and of keypoints among outputs `[N, C, H, W]`, and compare them as what they are.

A heat map has one sharp peak per channel: its place in pixels counts. Scores of a segmentation have the same largest
channel at most neighbouring pixels: the class of each pixel counts. Other maps are compared as numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.metrics.answers import ClassCounts

LEAST_SIDE = 8
"""Rows and columns below which an output is no map of a picture."""
SHARP = 0.05
"""Share of a channel's pixels above the middle of its range, up to which it has a sharp peak."""
SMOOTH = 0.8
"""Share of neighbouring pixels with the same largest channel, from which channels are classes."""
LEAST_CLASSES = 4
"""Channels: three are a picture, and two may be a field of directions."""
CLEAR_PEAK = 0.3
"""Share of the highest peak of the output that a peak must reach: an absent keypoint has none."""


@dataclass
class DenseMaps:
    """Add up what the maps of both models are like; `entry` decides what they are."""

    sharp: list[float] = field(default_factory=list)
    height: list[float] = field(default_factory=list)
    moved: list[float] = field(default_factory=list)
    same_neighbours: list[float] = field(default_factory=list)
    counts: ClassCounts = field(default_factory=ClassCounts)
    channels: int = 0

    def add(self, expected: Array, found: Array) -> None:
        """Include a batch `[n, C, H, W]` or `[n, H, W, C]` of both models; other arrays are left out."""
        axis = channels_of(expected.shape)
        if axis is None or not (np.isfinite(expected).all() and np.isfinite(found).all()):
            return
        own, other = (np.moveaxis(part, axis, 1) for part in (expected, found))
        self.channels = own.shape[1]
        self._add_peaks(own.astype(np.float64), other)
        if self.channels >= LEAST_CLASSES:
            classes, others = own.argmax(axis=1), other.argmax(axis=1)
            beside = classes[:, :, 1:] == classes[:, :, :-1], classes[:, 1:] == classes[:, :-1]
            self.same_neighbours.append(float(np.mean([part.mean() for part in beside])))
            self.counts.add(classes.astype(np.int64), others.astype(np.int64))

    def _add_peaks(self, own: Array, other: Array) -> None:
        n, channels, height, width = own.shape
        flat = own.reshape(n, channels, -1)
        low, high = flat.min(axis=2), flat.max(axis=2)
        self.sharp += (flat > ((low + high) / 2)[..., None]).mean(axis=2).ravel().tolist()
        self.height += (high - np.median(flat, axis=2)).ravel().tolist()
        places = [
            np.unravel_index(part.reshape(n, channels, -1).argmax(axis=2), (height, width)) for part in (own, other)
        ]
        (rows, columns), (others, beside) = places
        self.moved += np.hypot(rows - others, columns - beside).ravel().tolist()

    def pixels(self) -> NDArray[np.float64] | None:
        """Return by how many pixels each clear peak moves; None where the output holds no heat maps."""
        if not self.sharp:
            return None
        height = np.asarray(self.height)
        clear = height >= CLEAR_PEAK * height.max(initial=0.0)
        sharp = np.asarray(self.sharp)[clear]
        is_heat = bool(len(sharp)) and height.max() > 0 and float(np.median(sharp)) <= SHARP
        return np.asarray(self.moved)[clear] if is_heat else None

    def classes(self) -> ClassCounts | None:
        """Return the classes of all pixels; None where the output holds no scores of classes."""
        if not self.same_neighbours or len(self.counts.own) < 2 or self.pixels() is not None:
            return None
        return self.counts if float(np.mean(self.same_neighbours)) >= SMOOTH else None


def channels_of(shape: tuple[int, ...]) -> int | None:
    """Return the axis of channels of a map of a picture, 1 or 3; None for other shapes."""
    if len(shape) != 4:
        return None
    return next((axis for axis, sides in ((1, shape[2:4]), (3, shape[1:3])) if min(sides) >= LEAST_SIDE), None)
