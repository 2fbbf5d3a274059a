"""Mean average precision by labels, as COCO's own package counts it (the extra `coco`)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.metrics.average_precision import Detections
from quantpipe.types import Objects

MISSING = 'mAP by labels needs pycocotools: pip install -e ".[coco]"'

_SIDE = 1000.0
"""Of a picture, in units that the package takes for pixels. The overlap of two boxes does not depend on it."""


def is_installed() -> bool:
    """Return whether the package that counts is there."""
    return find_spec("pycocotools") is not None


def precision_by_labels(shown: Sequence[Objects], found: Sequence[Detections]) -> tuple[float, float] | None:
    """Return the mean average precision (0 to 1) over overlaps of 0.5 to 0.95, and at 0.5; None without labels.

    `shown` are the objects in each picture, `found` the model's detections, with boxes as fractions of width and
    height.
    """
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    if not any(len(one) for one in shown):
        return None
    with redirect_stdout(io.StringIO()):  # it tells its progress there
        truth = COCO()
        truth.dataset = _dataset(shown)
        truth.createIndex()
        rows = _rows(found)
        if not rows:
            return 0.0, 0.0
        counting = COCOeval(truth, truth.loadRes(rows), "bbox")
        counting.evaluate()
        counting.accumulate()
    precision = counting.eval["precision"][:, :, :, 0, -1]  # overlap, recall, class; of every size, 100 a picture
    return _mean(precision), _mean(precision[:1])


def _mean(precision: NDArray[np.float64]) -> float:
    """Return the mean over the classes that have objects."""
    return float(precision[precision > -1].mean())


def _dataset(shown: Sequence[Objects]) -> dict[str, Any]:
    annotations: list[dict[str, Any]] = []
    for image, objects in enumerate(shown):
        crowd = objects.crowd if objects.crowd is not None else np.zeros(len(objects), np.bool_)
        for box, kind, many in zip(objects.boxes, objects.classes, crowd, strict=True):
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image, "category_id": int(kind), "iscrowd": int(many)}
                | _written(box)
            )
    kinds = sorted({one["category_id"] for one in annotations})
    return {
        "images": [{"id": image} for image in range(len(shown))],
        "categories": [{"id": kind} for kind in kinds],
        "annotations": annotations,
    }


def _rows(found: Sequence[Detections]) -> list[dict[str, Any]]:
    return [
        {"image_id": image, "category_id": int(kind), "score": float(score)} | _written(box)
        for image, one in enumerate(found)
        for box, kind, score in zip(one.boxes, one.classes, one.scores, strict=True)
    ]


def _written(box: NDArray[np.float64]) -> dict[str, Any]:
    """Return a box as the package takes it: left, top, width and height."""
    left, top, right, bottom = (float(side) * _SIDE for side in box)
    return {"bbox": [left, top, right - left, bottom - top], "area": (right - left) * (bottom - top)}
