"""Types of the report's part on a detector."""

from __future__ import annotations

from typing import TypedDict


class DetectionsPart(TypedDict):
    """The layout of a detector's boxes, and the float model's detections on the evaluation samples.

    `note`: what is to be known of that; `labelled`: objects by the labels, null without.
    """

    boxes: str
    scores: str
    layout: str
    nms_iou: float | None
    score_above: float
    objects: int
    labelled: int | None
    note: str | None
