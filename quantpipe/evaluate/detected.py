"""Evaluate the detections of models, against the float model and against labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from quantpipe.evaluate.coco import MISSING, is_installed, precision_by_labels
from quantpipe.graph.view import Graph
from quantpipe.metrics.average_precision import Detections, mean_average_precision
from quantpipe.metrics.boxes import overlaps
from quantpipe.metrics.detections import matches
from quantpipe.metrics.reference import Found, Reference
from quantpipe.types import DetectionsPart, ModelMetrics, Objects

CHANNELS = (1, 3, 4)
"""Of a picture; an axis of another size behind the samples' is one of its sides."""


LOST_BELOW = 0.5
"""IoU below which no detection is an object's."""
OFTEN = 0.1
"""Share of lost objects that is warned of."""


class MovedBoxes(TypedDict):
    """The part of `DetectionsPart` that compares boxes."""

    lost: float | None
    pixels: float | None
    pixels_95: float | None


@dataclass(frozen=True, eq=False)
class Judge:
    """Count what models find in some samples.

    `reference`: the float model's outputs there. `shown`: what the labels say, if they do. `sides`: width and height of
    a picture in the units of the model's boxes; `picture` in pixels.
    """

    reference: Reference
    shown: Sequence[Objects] | None
    sides: tuple[float, float]
    picture: tuple[float, float] = (1.0, 1.0)

    @classmethod
    def of(cls, graph: Graph, reference: Reference, shown: Sequence[Objects] | None) -> Judge:
        """Return the judge of a model, from the float model's outputs and, with labels, each sample's objects."""
        relative = reference.detections is None or reference.detections.relative
        return cls(reference, shown, (1.0, 1.0) if relative else _sides(graph), _sides(graph))

    def with_figures(self, metrics: ModelMetrics, outputs: Found) -> ModelMetrics:
        """Return the metrics of a model with its detection figures; unchanged if it is no detector."""
        layout = self.reference.detections
        if layout is None:
            return metrics
        found = layout.found(self.reference.every(outputs))
        # A copy, since a typed dictionary cannot be joined with one of other keys.
        full = metrics.copy()
        full["detections"] = mean_average_precision(matches(self.reference.objects, found))
        if self.shown is not None:
            known = self.shown[: len(found)]
            counted = precision_by_labels(known, [self._scaled(one) for one in found]) if is_installed() else None
            full["map"], full["map50"] = counted or (None, None)
        return full

    def part(self, outputs: Found) -> DetectionsPart | None:
        """Return the report's part on the detector, with the realized model's outputs; None for any other model."""
        layout = self.reference.detections
        if layout is None:
            return None
        missing = MISSING if self.shown is not None and not is_installed() else None
        notes = [note for note in (layout.note, missing) if note]
        return {
            "boxes": layout.boxes.text,
            "scores": layout.scores.text,
            "layout": str(layout.layout),
            "nms_iou": layout.nms_iou,
            "score_above": layout.score_above,
            "objects": sum(len(one) for one in self.reference.objects),
            **self._moved(layout.found(self.reference.every(outputs))),
            "labelled": None if self.shown is None else sum(len(one) for one in self.shown),
            "note": "; ".join(notes) or None,
        }

    def _moved(self, found: Sequence[Detections]) -> MovedBoxes:
        """Return which of the float model's objects are lost, and by how much the sides of the others move."""
        sides = self.picture if self.reference.detections is None or self.reference.detections.relative else (1.0, 1.0)
        scale = np.array([*sides, *sides])
        distances: list[float] = []
        lost = total = 0
        for objects, others in zip(self.reference.objects, found, strict=False):
            near = overlaps(objects.boxes, others.boxes)
            near[objects.classes[:, None] != others.classes[None, :]] = 0.0
            best = near.argmax(axis=1) if near.shape[1] else np.zeros(len(objects), np.int64)
            for at, mate in enumerate(best.tolist()):
                total += 1
                if not near.shape[1] or near[at, mate] < LOST_BELOW:
                    lost += 1
                else:
                    distances.append(float(np.max(np.abs((objects.boxes[at] - others.boxes[mate]) * scale))))
        return {
            "lost": lost / total if total else None,
            "pixels": float(np.mean(distances)) if distances else None,
            "pixels_95": float(np.quantile(distances, 0.95)) if distances else None,
        }

    def _scaled(self, found: Detections) -> Detections:
        sides: NDArray[np.float64] = np.array([*self.sides, *self.sides])
        return replace(found, boxes=found.boxes / sides)


def _sides(graph: Graph) -> tuple[float, float]:
    """Return width and height of the pictures that the model takes, in pixels."""
    for name in graph.input_names:
        shape = graph.shapes.get(name, ())
        if len(shape) == 4:
            height, width = shape[2:4] if shape[1] in CHANNELS else shape[1:3]
            return float(width or 1), float(height or 1)
    return 1.0, 1.0


def box_warnings(part: DetectionsPart | None) -> list[str]:
    """Return a sentence where more than a tenth of the float model's objects are lost; nothing for other models."""
    if part is None or part["lost"] is None or part["lost"] <= OFTEN:
        return []
    moved = (
        "" if part["pixels"] is None else f"; the sides of the others move by {part['pixels']:.2g} pixels on average"
    )
    return [
        f"{100 * part['lost']:.0f} % of the {part['objects']} objects that the float model finds have no detection of "
        f"their class at an IoU of {LOST_BELOW:g} in the realized model{moved}. What could help: "
        "objective=detections, or more bits or float for the boxes (command=explain measures the places)"
    ]
