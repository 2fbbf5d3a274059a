"""Read a detector's detections from its outputs, and measure how well two models agree on them.

A model gives boxes and scores in one output or in several, as corners or as centre and size. They are per place of a
grid, or for objects that it has selected itself. `DetectionLayout` describes the form; the rest of the code sees
corners, a score and a class for each object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from quantpipe.arrays import Array
from quantpipe.metrics.average_precision import Detections, Matches, matched
from quantpipe.metrics.boxes import BoxLayout, Reals, corners, layout_of, suppressed
from quantpipe.types import Outputs

LEAST_SCORE = 0.01
"""Less sure boxes are none."""

MOST_BOXES = 1000
"""Boxes of a picture among which those that overlap are looked for, the surest ones."""

PICTURE = 2.0
"""Boxes whose numbers are all below are parts of the picture, and not pixels."""


@dataclass(frozen=True)
class Slice:
    """Name the entries `first` to `last` - 1 (None: to the end) along the axis of values of an output.

    `axis`: the axis of the entries in a sample, 0 or 1; the other axis is the axis of places. `text`: as the user
    writes it.
    """

    output: str
    axis: int = 1
    first: int = 0
    last: int | None = None

    @property
    def text(self) -> str:
        """Return it as the configuration names it."""
        whole = self.first == 0 and self.last is None
        return self.output if whole else f"{self.output}@{self.first}:{'' if self.last is None else self.last}"

    def of(self, row: Array) -> Reals:
        """Return the values of one sample, `[places, entries]`.

        `row` is the sample's output, with one or two axes and perhaps some of size 1.
        """
        row = row.reshape(places_and_values(row.shape))
        values = row if self.axis == 1 else row.T
        return np.asarray(values[:, self.first : self.last], dtype=np.float64)


def places_and_values(shape: Sequence[int]) -> tuple[int, int]:
    """Return the two axes of a sample's output, without later axes of size 1; a single axis is the places."""
    if len(shape) == 2:
        return (int(shape[0]), int(shape[1]))
    kept = [int(size) for size in shape if size != 1]
    return (kept[0], kept[1]) if len(kept) == 2 else (int(np.prod(shape)), 1)


@dataclass(frozen=True)
class DetectionLayout:
    """Say where in a model's outputs its detections are, and how they are written.

    `scores`: one for each class, or a single one with `classes`. `objectness`: a chance that scores are multiplied by.
    `background`: the entry of the scores without meaning. `layout` and `logits`: None until the float model's outputs
    determine them (`resolved`). `nms_iou`: boxes that overlap by more are one object (None: the model has selected
    already). `score_above`: the score from which a box of the float model's is an object. `decides`: the objective is
    about the detections. `relative`: boxes are fractions of the picture, and not pixels. `note`: how this is known,
    where the user did not set it.
    """

    boxes: Slice
    scores: Slice
    classes: Slice | None = None
    objectness: Slice | None = None
    background: int | None = None
    layout: BoxLayout | None = None
    logits: bool | None = None
    nms_iou: float | None = None
    score_above: float = 0.25
    decides: bool = False
    relative: bool = True
    note: str | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        """Return the outputs that it reads."""
        given = (self.boxes, self.scores, self.classes, self.objectness)
        return tuple(dict.fromkeys(part.output for part in given if part is not None))

    def resolved(self, outputs: Mapping[str, Outputs]) -> DetectionLayout:
        """Return the same layout with the parts filled in that depend on the float model's outputs."""
        boxes = np.concatenate([self.boxes.of(np.asarray(row)) for row in outputs[self.boxes.output]])
        boxes = boxes[np.all(np.isfinite(boxes), axis=1)]
        layout = self.layout or layout_of(boxes)
        relative = bool(np.abs(boxes).max(initial=0.0) < PICTURE)
        if self.logits is not None:
            return replace(self, layout=layout, relative=relative)
        scores = [self.scores.of(np.asarray(row)) for row in outputs[self.scores.output]]
        logits = any(bool(row.size and (row.min() < 0 or row.max() > 1)) for row in scores)
        return replace(self, layout=layout, logits=logits, relative=relative)

    def found(self, outputs: Mapping[str, Outputs]) -> tuple[Detections, ...]:
        """Return the detections in each of N samples, with boxes in the model's own units."""
        rows = zip(*(outputs[name] for name in self.outputs), strict=True)
        return tuple(self._of_sample(dict(zip(self.outputs, row, strict=True))) for row in rows)

    def objects(self, found: Sequence[Detections]) -> tuple[Detections, ...]:
        """Return a model's detections that count as objects of their pictures."""
        return tuple(one.where(one.scores >= self.score_above) for one in found)

    def _of_sample(self, row: Mapping[str, Any]) -> Detections:
        def read(part: Slice) -> Reals:
            return part.of(np.asarray(row[part.output]))

        scores = read(self.scores)
        with np.errstate(over="ignore"):
            scores = 1 / (1 + np.exp(-scores)) if self.logits else scores
        if self.objectness is not None:
            scores = scores * read(self.objectness)
        if self.background is not None:
            scores[:, self.background] = -1.0
        if self.classes is None:
            classes = scores.argmax(axis=1) if scores.shape[1] else np.zeros(len(scores), np.int64)
            best = scores[np.arange(len(scores)), classes]
        else:
            classes, best = np.floor(np.nan_to_num(read(self.classes)[:, 0]) + 0.5), scores[:, 0]
        boxes = read(self.boxes)
        kept = np.flatnonzero((best >= LEAST_SCORE) & np.all(np.isfinite(boxes), axis=1))
        kept = kept[np.argsort(-best[kept], kind="stable")[:MOST_BOXES]]
        found = Detections(corners(boxes[kept], self.layout or BoxLayout.XYXY), best[kept], classes[kept].astype(int))
        if self.nms_iou is None:
            return found
        return found.where(suppressed(found.boxes, found.scores, found.classes, self.nms_iou))


def matches(objects: Sequence[Detections], found: Sequence[Detections]) -> tuple[Matches, ...]:
    """Return which of a model's detections match objects, picture by picture."""
    return tuple(matched(own, theirs) for own, theirs in zip(objects, found, strict=True))
