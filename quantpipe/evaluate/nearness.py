"""Measure the accuracy of every output of the realized model, over samples of which a few are held at a time.

Metrics and objectives may be about one output; the device computes all of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.execute import Session
from quantpipe.graph.view import Graph
from quantpipe.metrics.outputs import cosines
from quantpipe.oprules.parts import Part, parts_of
from quantpipe.types import (
    OutputPartRow,
    OutputRow,
    Samples,
)

Array = NDArray[Any]


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

    def add(self, expected: Array, found: Array, samples: int) -> None:
        """Include a batch `[n, ...]` of the float model and of the realized model.

        `samples` is the size of the batch: rows of an output need not be samples, such as boxes of a detector.
        """
        if expected.shape != found.shape:
            self.other_shape += samples
            return
        self.elements += expected.size
        self.equal += int(np.count_nonzero(expected == found))
        self.real = expected.dtype.kind == "f"
        if not self.real:
            return
        known = np.isfinite(expected)
        here = np.where(known, expected, 0).astype(np.float64)
        there = np.where(known, found, 0).astype(np.float64)
        self.signal += float(np.sum(here**2))
        self.total += float(np.sum(here))
        with np.errstate(invalid="ignore", over="ignore"):
            self.noise += float(np.sum((here - there) ** 2))
        self.angles += cosines(here, there)
        for part, sums in self.parts.items():
            own, other = part.of(expected), part.of(found)
            if own is not None and other is not None:
                sums.add(np.asarray(own), np.asarray(other), samples)

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
    names = [o.name for o in graph.outputs]
    real = Session(graph.model, where=graph.source)
    sums = {name: _sums_of(parts_of(graph, name)) for name in names}
    for batch in samples.batches(graph.batch_size):
        expected, found = real.run(batch.inputs, names), realized.run(batch.inputs, names)
        for name in names:
            sums[name].add(np.asarray(expected[name]), np.asarray(found[name]), len(batch))
    return [sums[name].entry(name) for name in names]


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
    sums = _sums_of(parts)
    if isinstance(expected, tuple) or isinstance(found, tuple):
        for one, other in zip(expected, found, strict=True):
            sums.add(one[None], other[None], 1)
    else:
        sums.add(np.asarray(expected), np.asarray(found), len(expected) if samples is None else samples)
    return sums.entry(output)


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


def _sums_of(parts: Sequence[Part]) -> Nearness:
    return Nearness(parts={part: Nearness() for part in parts})


def _decibel(signal: float, noise: float) -> float | None:
    """Return dB as `metrics.sqnr_db`: None where the two are equal."""
    if noise == 0.0:
        return None
    if signal == 0.0 or not math.isfinite(noise):
        return -math.inf
    return 10.0 * math.log10(signal / noise)
