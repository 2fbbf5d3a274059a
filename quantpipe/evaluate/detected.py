"""Evaluate the detections of models, against the float model and against labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantpipe.evaluate.coco import MISSING, is_installed, precision_by_labels
from quantpipe.graph.view import Graph
from quantpipe.metrics.average_precision import Detections, mean_average_precision
from quantpipe.metrics.detections import matches
from quantpipe.metrics.reference import Found, Reference
from quantpipe.types import DetectionsPart, ModelMetrics, Objects

CHANNELS = (1, 3, 4)
"""Of a picture; an axis of another size behind the samples' is one of its sides."""


@dataclass(frozen=True, eq=False)
class Judge:
    """Count what models find in some samples.

    `reference`: the float model's outputs there. `shown`: what the labels say, if they do. `sides`: width and height of
    a picture in the units of the model's boxes.
    """

    reference: Reference
    shown: Sequence[Objects] | None
    sides: tuple[float, float]

    @classmethod
    def of(cls, graph: Graph, reference: Reference, shown: Sequence[Objects] | None) -> Judge:
        """Return the judge of a model, from the float model's outputs and, with labels, each sample's objects."""
        relative = reference.detections is None or reference.detections.relative
        return cls(reference, shown, (1.0, 1.0) if relative else _sides(graph))

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

    def part(self) -> DetectionsPart | None:
        """Return the report's part on the detector; None for any other model."""
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
            "labelled": None if self.shown is None else sum(len(one) for one in self.shown),
            "note": "; ".join(notes) or None,
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
