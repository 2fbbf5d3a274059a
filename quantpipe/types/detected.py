"""Types of the report's part on a detector."""

from __future__ import annotations

from typing import TypedDict


class DetectionsPart(TypedDict):
    """The layout of a detector's boxes, and the float model's detections on the evaluation samples.

    `lost`: the share of the float model's objects without a detection of their class at an IoU of 0.5. `pixels`: by how
    much the sides of the others move, the mean of the maximum of the four; `pixels_95`: its 95 % quantile.
    `note`: what is to be known of that; `labelled`: objects by the labels, null without.
    """

    boxes: str
    scores: str
    layout: str
    nms_iou: float | None
    score_above: float
    objects: int
    lost: float | None
    pixels: float | None
    pixels_95: float | None
    labelled: int | None
    note: str | None
