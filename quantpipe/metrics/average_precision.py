"""Average precision of detections against objects, as COCO counts it: over ten overlaps, 101 recalls, all classes.

It serves the agreement with the float model, which is measured for every candidate of a search. COCO's own package
counts the results on labels (`metrics/coco.py`), and a test compares this module with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.metrics.boxes import Reals, overlaps

OVERLAPS: Reals = np.linspace(0.5, 0.95, 10)
"""The overlaps at which a detection counts as right, over which the precision is averaged."""

RECALLS: Reals = np.linspace(0.0, 1.0, 101)

MOST = 100
"""Detections of a picture that count, the surest ones."""


@dataclass(frozen=True, eq=False)
class Detections:
    """Hold what a model finds in one picture, surest first.

    `boxes` are corners `[n, 4]`, `scores` and `classes` `[n]`.
    """

    boxes: Reals
    scores: Reals
    classes: NDArray[np.int64]

    def where(self, kept: NDArray[np.bool_] | NDArray[np.int64]) -> Detections:
        """Return some of them, by indices or by a mask `[n]`."""
        return Detections(self.boxes[kept], self.scores[kept], self.classes[kept])

    def __len__(self) -> int:
        return len(self.scores)


@dataclass(frozen=True, eq=False)
class Matches:
    """Hold which detections of one picture are right.

    `counts`: class -> its objects. `classes` and `scores` of the detections `[n]`; `right` at each overlap
    `[overlaps, n]`.
    """

    counts: dict[int, int]
    classes: NDArray[np.int64]
    scores: Reals
    right: NDArray[np.bool_]


def matched(objects: Detections, found: Detections) -> Matches:
    """Return which of the `MOST` surest detections are right.

    Each detection, surest first, takes the nearest free object of its class. `found` is sorted, surest first.
    """
    found = found.where(np.arange(min(MOST, len(found))))
    right = np.zeros((len(OVERLAPS), len(found)), dtype=np.bool_)
    kinds, counts = np.unique(objects.classes, return_counts=True)
    near = overlaps(found.boxes, objects.boxes)
    near[found.classes[:, None] != objects.classes[None, :]] = -1.0
    free = np.ones((len(OVERLAPS), len(objects)), dtype=np.bool_)
    levels = np.arange(len(OVERLAPS))
    for number in np.flatnonzero(near.max(axis=1, initial=-1.0) >= OVERLAPS[0] - _ROUND_OFF):
        row = near[number][None, :]
        fitting = np.where(free & (row >= OVERLAPS[:, None] - _ROUND_OFF), row, -1.0)
        best = fitting.argmax(axis=1)
        hit = fitting[levels, best] > 0
        right[hit, number] = True
        free[levels[hit], best[hit]] = False
    return Matches(dict(zip(map(int, kinds), map(int, counts), strict=True)), found.classes, found.scores, right)


_ROUND_OFF = 1e-10


def mean_average_precision(pictures: Sequence[Matches]) -> float | None:
    """Return the mean average precision over classes and overlaps, 0 to 1; None without objects."""
    counts: dict[int, int] = {}
    for picture in pictures:
        for kind, count in picture.counts.items():
            counts[kind] = counts.get(kind, 0) + count
    if not counts:
        return None
    classes = np.concatenate([picture.classes for picture in pictures])
    scores = np.concatenate([picture.scores for picture in pictures])
    right = np.concatenate([picture.right for picture in pictures], axis=1)
    order = np.argsort(-scores, kind="stable")
    classes, right = classes[order], right[:, order]
    return float(np.mean([_average_precision(right[:, classes == kind], count) for kind, count in counts.items()]))


def _average_precision(right: NDArray[np.bool_], count: int) -> float:
    """Return the mean over the overlaps for one class with `count` objects; `right` `[overlaps, n]`, surest first."""
    if not right.shape[1]:
        return 0.0
    hits = np.cumsum(right, axis=1)
    precision = hits / np.arange(1, hits.shape[1] + 1)
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    means = []
    for row, ahead in zip(hits / count, best, strict=True):
        at = np.searchsorted(row, RECALLS, side="left")
        means.append(np.where(at < len(ahead), ahead[np.minimum(at, len(ahead) - 1)], 0.0).mean())
    return float(np.mean(means))
