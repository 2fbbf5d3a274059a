"""Measure the accuracy of every output of the realized model, over samples of which a few are held at a time.

Metrics and objectives may be about one output; the device computes all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np

from quantpipe.arrays import Array
from quantpipe.graph.execute import Session, lifted
from quantpipe.graph.view import Graph
from quantpipe.metrics.dense_maps import DenseMaps
from quantpipe.metrics.outputs import AT_ONCE, cosines
from quantpipe.metrics.sample_figures import CountedAnswers, SampleFigures, per_row
from quantpipe.oprules.parts import Part, parts_of
from quantpipe.types import OutputPartRow, OutputRow, Samples


@dataclass
class Nearness:
    """Sums over the samples of one output. Elements that are not finite in the float model are left out."""

    signal: float = 0.0
    noise: float = 0.0
    total: float = 0.0
    elements: int = 0
    equal: int = 0
    other_shape: int = 0
    real: bool = True
    angles: list[float] = field(default_factory=list)
    parts: Mapping[Part, Nearness] = field(default_factory=dict)
    watched: CountedAnswers | None = None
    figures: SampleFigures = field(default_factory=SampleFigures)
    maps: DenseMaps = field(default_factory=DenseMaps)

    def add(self, expected: Array, found: Array, samples: int) -> None:
        """Include a batch `[n, ...]` of the float model and of the realized model.

        `samples` is the size of the batch: rows of an output need not be samples, such as boxes of a detector.
        """
        if expected.shape != found.shape:
            rows = max(len(expected) if expected.ndim else 1, 1)
            self.other_shape += samples
            self.figures.add_lost(rows, self.watched, real=expected.dtype.kind == "f")
            return
        self.elements += expected.size
        self.equal += int(np.count_nonzero(expected == found))
        self.real = expected.dtype.kind == "f"
        if self.watched is not None:
            self.figures.add_answers(self.watched, expected, found)
        if not self.real:
            return
        if self.watched is None:
            self.maps.add(expected, found)
        errors = [self._errors(expected[rows], found[rows]) for rows in _some_rows(expected)]
        signals, noises = (np.concatenate(sums) for sums in zip(*errors, strict=True))
        self.figures.signal += signals.tolist()
        self.figures.noise += noises.tolist()
        self.signal += float(np.sum(signals))
        self.noise += float(np.sum(noises))
        for part, sums in self.parts.items():
            own, other = part.of(expected), part.of(found)
            if own is not None and other is not None:
                sums.add(np.asarray(own), np.asarray(other), samples)

    def _errors(self, expected: Array, found: Array) -> tuple[Array, Array]:
        """Return the signal and the noise of each of some rows; include their sum and cosines."""
        known = np.isfinite(expected)
        here = np.where(known, expected, 0).astype(np.float64)
        there = np.where(known, found, 0).astype(np.float64)
        self.total += float(np.sum(here))
        self.angles += cosines(here, there)
        with np.errstate(invalid="ignore", over="ignore"):
            return per_row(here**2), per_row(np.square(np.subtract(here, there, out=there), out=there))

    def entry(self, output: str) -> OutputRow:
        """Return a row of the report.

        Other than float outputs have the share of equal elements alone.
        """
        row: OutputRow = {"output": output, "sqnr_db": None, "mse": None, "cosine": None}
        if self.real and self.elements:
            variance = self.signal / self.elements - (self.total / self.elements) ** 2
            row["sqnr_db"] = _decibel(self.signal, self.noise)
            row["mse"] = self.noise / self.elements / (variance if variance > 0 else 1.0)
            row["cosine"] = float(np.mean(self.angles))
        elif self.elements:
            row["equal"] = self.equal / self.elements
        if self.other_shape:
            row["other_shape"] = self.other_shape
        counts = self.figures.counts if self.figures.is_map else self.maps.classes()
        if counts is not None:
            row["equal"], row["miou"] = counts.share, counts.mean_iou
        if (pixels := self.maps.pixels()) is not None:
            row["keypoints"] = len(pixels)
            row["pixels"], row["pixels_95"] = float(np.mean(pixels)), float(np.quantile(pixels, 0.95))
        if self.real and any(sums.elements for sums in self.parts.values()):
            row["parts"] = list(self._part_rows())
        return row

    def _part_rows(self) -> Iterator[OutputPartRow]:
        for part, sums in self.parts.items():
            yield {
                "tensor": part.tensor,
                "axis": part.axis,
                "first": part.first,
                "last": part.last,
                "sqnr_db": _decibel(sums.signal, sums.noise),
            }


def nearness(graph: Graph, realized: Session, samples: Samples) -> list[OutputRow]:
    """Return a row per output of the model, of both models over the same samples."""
    return [one.row for one in figures_of_outputs(graph, realized, samples, {})]


@dataclass(frozen=True)
class OutputFigures:
    """Hold the report's row of an output, and its figures for each sample; `parts`: the same of its parts by tensor."""

    row: OutputRow
    samples: SampleFigures
    parts: Mapping[str, SampleFigures] = field(default_factory=dict)

    @classmethod
    def of(cls, sums: Nearness, output: str, samples: int) -> OutputFigures:
        """Return the figures of an output's sums over a number of samples, of which each may have several rows."""
        parts = {part.tensor: one.figures.by_sample(samples) for part, one in sums.parts.items()}
        return cls(sums.entry(output), sums.figures.by_sample(samples), parts)

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> OutputFigures:
        """Return what `dataclasses.asdict` wrote, read from JSON."""
        parts = {name: SampleFigures.from_dict(part) for name, part in plain["parts"].items()}
        return cls(cast("OutputRow", plain["row"]), SampleFigures.from_dict(plain["samples"]), parts)


def figures_of_outputs(
    graph: Graph, realized: Session, samples: Samples, watched: Mapping[str, CountedAnswers]
) -> list[OutputFigures]:
    """Return the figures of every output of both models over the same samples.

    `watched` gives where an output holds answers.
    """
    figures, errors = figures_of_models(graph, {"realized": realized}, samples, watched)
    for error in errors.values():
        raise error
    return figures["realized"]


def figures_of_models(
    graph: Graph, models: Mapping[str, Session], samples: Samples, watched: Mapping[str, CountedAnswers]
) -> tuple[dict[str, list[OutputFigures]], dict[str, Exception]]:
    """Return the figures of every output of several models by name, and the errors of those that cannot run.

    The float model runs once for all of them.
    """
    names = [o.name for o in graph.outputs]
    real = Session(graph.model, where=graph.source)
    sums = {key: {name: _sums_of(parts_of(graph, name), watched.get(name)) for name in names} for key in models}
    errors: dict[str, Exception] = {}
    for batch in samples.batches(graph.batch_size):
        expected = lifted(real.run(batch.inputs, names), graph.selected)
        for key in [key for key in models if key not in errors]:
            try:
                found = lifted(models[key].run(batch.inputs, names), graph.selected)
                for name in names:
                    sums[key][name].add(np.asarray(expected[name]), np.asarray(found[name]), len(batch))
            except Exception as error:  # of any class: other tools write such models, too
                errors[key] = error
    running = {key: own for key, own in sums.items() if key not in errors}
    return {key: [OutputFigures.of(own[n], n, len(samples)) for n in names] for key, own in running.items()}, errors


def nearness_of(
    output: str,
    expected: Sequence[Array] | Array,
    found: Sequence[Array] | Array,
    parts: Sequence[Part] = (),
    *,
    samples: int | None = None,
) -> OutputRow:
    """Return the row of one output whose values over all samples are known.

    `parts` are parts of it that are quantities of their own. `samples` is their number, where rows are no samples.
    """
    return figures_of_output(output, expected, found, parts, samples=len(expected) if samples is None else samples).row


def figures_of_output(
    output: str,
    expected: Sequence[Array] | Array,
    found: Sequence[Array] | Array,
    parts: Sequence[Part] = (),
    *,
    watched: CountedAnswers | None = None,
    samples: int,
) -> OutputFigures:
    """Return the figures of one output whose values over all samples are known.

    `parts` are parts of it that are quantities of their own, `watched` where it holds answers.
    """
    sums = _sums_of(parts, watched)
    if isinstance(expected, tuple) or isinstance(found, tuple):
        for one, other in zip(expected, found, strict=True):
            sums.add(one[None], other[None], 1)
    else:
        sums.add(np.asarray(expected), np.asarray(found), samples)
    return OutputFigures.of(sums, output, samples)


@dataclass(frozen=True)
class Lost:
    """An output whose SQNR is under a limit, or the `part` (a tensor) of it that is worst."""

    output: str
    part: str | None
    sqnr_db: float


def below(rows: Sequence[OutputRow], limit: float | None, accurate: str | None = None) -> list[Lost]:
    """Return outputs of which the whole or a part has an SQNR (dB) under the limit, worst first.

    `limit=None`: the result is empty. `accurate` is an output that is right about the samples as often as the float
    model's (`is_accurate`), if one is.
    """
    if limit is None:
        return []
    counting = [row for row in rows if row["output"] != accurate]
    worst = [min(found, key=lambda lost: lost.sqnr_db) for row in counting if (found := list(_figures(row)))]
    return sorted((lost for lost in worst if lost.sqnr_db < limit), key=lambda lost: lost.sqnr_db)


POINT = 0.01
"""Accuracy that class scores may lose before their SQNR is looked at."""


def is_accurate(real: float | None, found: float | None) -> bool:
    """Return whether an accuracy is at most a point below the float model's; not where there are no labels."""
    return real is not None and found is not None and found >= real - POINT


def _figures(row: OutputRow) -> Iterator[Lost]:
    if row["sqnr_db"] is not None:
        yield Lost(row["output"], None, row["sqnr_db"])
    for part in row.get("parts", ()):
        if part["sqnr_db"] is not None:
            yield Lost(row["output"], part["tensor"], part["sqnr_db"])


def _sums_of(parts: Sequence[Part], watched: CountedAnswers | None = None) -> Nearness:
    return Nearness(parts={part: Nearness() for part in parts}, watched=watched)


def _some_rows(array: Array) -> Sequence[Any]:
    """Return parts of the rows of a batch: scores of a vocabulary are many."""
    if array.size <= AT_ONCE:
        return [...]
    step = max(1, AT_ONCE * len(array) // array.size)
    return [slice(first, first + step) for first in range(0, len(array), step)]


def _decibel(signal: float, noise: float) -> float | None:
    """Return dB as `metrics.sqnr_db`: None where the two are equal."""
    if noise == 0.0:
        return None
    if signal == 0.0 or not math.isfinite(noise):
        return -math.inf
    return 10.0 * math.log10(signal / noise)
