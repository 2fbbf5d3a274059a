"""Boxes as arrays of left, top, right and bottom: how they are written, how two overlap, which of many are one object.

The overlap of two boxes is the area they share over the area they cover together (intersection over union, IoU).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]


class BoxLayout(StrEnum):
    """Name what the four numbers of a box are."""

    XYXY = "xyxy"
    CXCYWH = "cxcywh"
    XYWH = "xywh"
    YXYX = "yxyx"


def _same(boxes: Reals) -> Reals:
    return boxes


def _from_centres(boxes: Reals) -> Reals:
    half = boxes[..., 2:] / 2
    return np.concatenate([boxes[..., :2] - half, boxes[..., :2] + half], axis=-1)


def _from_corner(boxes: Reals) -> Reals:
    return np.concatenate([boxes[..., :2], boxes[..., :2] + boxes[..., 2:]], axis=-1)


def _swapped(boxes: Reals) -> Reals:
    return boxes[..., [1, 0, 3, 2]]


_CORNERS: Mapping[BoxLayout, Callable[[Reals], Reals]] = {
    BoxLayout.XYXY: _same,
    BoxLayout.CXCYWH: _from_centres,
    BoxLayout.XYWH: _from_corner,
    BoxLayout.YXYX: _swapped,
}

IN_ORDER = 0.9
"""Share of boxes whose third and fourth number are not below the first and second, from which they are corners."""


def corners(boxes: Reals, layout: BoxLayout) -> Reals:
    """Return left, top, right and bottom, `[..., 4]`, of boxes `[..., 4]`."""
    return _CORNERS[layout](boxes)


def layout_of(boxes: Reals) -> BoxLayout:
    """Return the likely layout of boxes `[n, 4]`: `xyxy` where corners are in order, else `cxcywh`.

    The boxes should come from as many places of a picture as possible.
    """
    ordered = np.all(boxes[:, 2:] >= boxes[:, :2], axis=1)
    return BoxLayout.XYXY if len(boxes) and float(np.mean(ordered)) >= IN_ORDER else BoxLayout.CXCYWH


def overlaps(one: Reals, other: Reals) -> Reals:
    """Return the IoU `[n, m]` of boxes `[n, 4]` with boxes `[m, 4]`; 0 where both have no area."""
    first = np.maximum(one[:, None, :2], other[None, :, :2])
    last = np.minimum(one[:, None, 2:], other[None, :, 2:])
    shared = np.prod(np.maximum(last - first, 0.0), axis=2)
    areas = [np.prod(np.maximum(boxes[:, 2:] - boxes[:, :2], 0.0), axis=1) for boxes in (one, other)]
    covered = areas[0][:, None] + areas[1][None, :] - shared
    return np.asarray(np.divide(shared, covered, out=np.zeros_like(shared), where=covered > 0))


def suppressed(boxes: Reals, scores: Reals, classes: NDArray[np.int64], iou: float) -> NDArray[np.int64]:
    """Return the indices of the boxes that stay, by falling score: greedy non-maximum suppression.

    Of boxes of one class that overlap by more than `iou`, the surest stays; of equal scores, the first in order. Boxes
    are `[n, 4]`, scores and classes `[n]`.
    """
    order = np.argsort(-scores, kind="stable")
    close = (overlaps(boxes[order], boxes[order]) > iou) & (classes[order][:, None] == classes[order][None, :])
    alive = np.ones(len(order), dtype=np.bool_)
    for place in np.flatnonzero(np.triu(close, 1).any(axis=1)):
        if alive[place]:
            alive[place + 1 :] &= ~close[place, place + 1 :]
    return np.asarray(order[alive])
