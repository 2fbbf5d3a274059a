"""Read a model's answers from an output: the class of the largest score, or class numbers themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Graph
from quantpipe.metrics.losses import LossKind
from quantpipe.oprules.scores import gives_class_numbers, score_axis

LEAST_SHARE = 0.001
"""Share of the places from which a class counts for the mean intersection over union."""
BLANK_SHARE = 0.5
"""Share of the positions of a sequence from which the first or last class is CTC's blank."""


@dataclass(frozen=True)
class Answers:
    """Say where an output holds answers.

    `axis`: the axis of scores in the output, the samples' axis included; None for class numbers. `sequence`: a sample
    has several answers, one after the other, of which one may be a blank.
    """

    axis: int | None
    sequence: bool = False

    def of(self, outputs: NDArray[Any]) -> NDArray[np.int64]:
        """Return the answers `[n, positions]` of a batch `[n, ...]`."""
        values = outputs if self.axis is None else outputs.argmax(axis=self.axis)
        return np.asarray(values).reshape(len(outputs), -1).astype(np.int64)


@dataclass
class ClassCounts:
    """Count answers by class: of the float model, of both models in the same place, and of the other model."""

    own: dict[int, int] = field(default_factory=dict)
    kept: dict[int, int] = field(default_factory=dict)
    found: dict[int, int] = field(default_factory=dict)

    def add(self, own: NDArray[np.int64], found: NDArray[np.int64]) -> None:
        """Include the answers of both models, of equal shape."""
        for counts, answers in ((self.own, own), (self.kept, own[own == found]), (self.found, found)):
            for kind, number in zip(*np.unique(answers, return_counts=True), strict=True):
                counts[int(kind)] = counts.get(int(kind), 0) + int(number)

    @property
    def share(self) -> float:
        """Return the share of equal answers, 0 to 1."""
        return sum(self.kept.values()) / max(sum(self.own.values()), 1)

    @property
    def mean_iou(self) -> float | None:
        """Return the mean over the float model's classes of the intersection over union of both models' places.

        Classes of less than 0.1 % of the places do not count.
        """
        if not self.own:
            return None
        least = LEAST_SHARE * sum(self.own.values())
        shares = [
            self.kept.get(kind, 0) / (count + self.found.get(kind, 0) - self.kept.get(kind, 0))
            for kind, count in self.own.items()
            if count >= least
        ]
        return float(np.mean(shares))

    def blank(self, classes: int) -> int | None:
        """Return CTC's blank among the `classes` of a sequence of answers; None if no class looks like one."""
        total = sum(self.own.values())
        ends = (0, classes - 1)
        return next((kind for kind in ends if self.own.get(kind, 0) > BLANK_SHARE * total), None)


def answers_of(graph: Graph, output: str, kind: LossKind) -> Answers | None:
    """Return where an output holds answers; None for an output of other values.

    Scores are along the last axis where the output is compared by its divergence, else along the axis that a Softmax,
    LogSoftmax or ArgMax of the graph works along.
    """
    shape = graph.shapes.get(output, ())
    if kind is LossKind.KL:
        return Answers(len(shape) - 1, sequence=len(shape) > 2) if shape and shape[-1] > 1 else None
    if kind is LossKind.DIFFERING:
        return Answers(None, sequence=len(shape) == 2 and shape[1] > 1) if gives_class_numbers(graph, output) else None
    axis = score_axis(graph, output)
    return Answers(axis) if axis and shape[axis] > 1 else None
