"""Keep the figures of each sample of an output, so that any group of samples can be judged without another run."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.metrics.answers import Answers, ClassCounts
from quantpipe.metrics.outputs import all_finite, is_distribution, row_divergences

Reals = NDArray[np.float64]


@dataclass(frozen=True)
class CountedAnswers:
    """State the counted answers of an output, and for class scores whether the divergence is computed."""

    answers: Answers
    divergence: bool = False


@dataclass
class SampleFigures:
    """Hold figures of an output for each sample, in order.

    `signal` and `noise` are sums of squares of the float output and of the difference. `kl` is the divergence in nats
    of class scores, and `equal` the share of equal answers. `counts` has the answers by class; `classes`: the number of
    scores, if known; `is_map`: the answers are a map and not one answer or a sequence.
    """

    signal: list[float] = field(default_factory=list)
    noise: list[float] = field(default_factory=list)
    kl: list[float] = field(default_factory=list)
    equal: list[float] = field(default_factory=list)
    counts: ClassCounts | None = None
    classes: int = 0
    sequence: bool = False
    is_map: bool = False

    def add_answers(self, watched: CountedAnswers, expected: Array, found: Array) -> None:
        """Include the answers of a batch `[n, ...]` of the float model and of another model, in the same shape."""
        if not expected.ndim or not len(expected):
            return
        answers = watched.answers
        own, other = answers.of(expected), answers.of(found)
        self.counts = self.counts or ClassCounts()
        self.counts.add(own, other)
        self.classes = 0 if answers.axis is None else expected.shape[answers.axis]
        self.sequence, self.is_map = answers.sequence, own.shape[1] > 1 and not answers.sequence
        self.equal += np.mean(own == other, axis=1).tolist()
        if watched.divergence:
            self.kl += _divergences(expected, found).tolist()

    def add_lost(self, rows: int, watched: CountedAnswers | None, *, real: bool) -> None:
        """Include rows of another shape than the float model's: no answer is equal, and nothing else is known."""
        for figures in (self.signal, self.noise) if real else ():
            figures += [math.nan] * rows
        if watched is not None:
            self.equal += [0.0] * rows
            self.kl += [math.inf] * rows if watched.divergence else []

    def by_sample(self, samples: int) -> SampleFigures:
        """Return the figures of each of `samples`, where a sample may have several rows of the output."""
        each, rest = divmod(max(len(self.signal), len(self.equal)), max(samples, 1))
        if each < 2 or rest:
            return self

        def joined(rows: list[float], of: Callable[[Any], Any]) -> list[float]:
            whole = len(rows) == samples * each
            return [float(of(part)) for part in np.asarray(rows).reshape(samples, each)] if whole else []

        return replace(
            self,
            signal=joined(self.signal, np.sum),
            noise=joined(self.noise, np.sum),
            kl=joined(self.kl, np.mean),
            equal=joined(self.equal, np.mean),
        )

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> SampleFigures:
        """Return what `dataclasses.asdict` wrote, read from JSON, where null is a figure that is not finite."""

        def numbers(name: str) -> list[float]:
            return [math.nan if value is None else float(value) for value in plain[name]]

        counts = plain["counts"]
        if counts is not None:
            counts = ClassCounts(
                **{name: {int(kind): int(n) for kind, n in part.items()} for name, part in counts.items()}
            )
        return cls(
            numbers("signal"),
            numbers("noise"),
            numbers("kl"),
            numbers("equal"),
            counts=counts,
            **{name: plain[name] for name in ("classes", "sequence", "is_map")},
        )


def per_row(values: Reals) -> Reals:
    """Return the sum of each row, `[n]`, of values `[n, ...]`; a single number is one row."""
    return np.asarray(values.reshape(len(values) if values.ndim else 1, -1).sum(axis=1))


def _divergences(expected: Array, found: Array) -> Reals:
    """Return the divergence of each row in nats, `[n]`; infinite where the outputs are not finite."""
    if not (all_finite(expected) and all_finite(found)):
        finite = np.isfinite(found).reshape(len(found), -1).all(axis=1)
        safe = np.where(np.isfinite(found), found, 0.0)
        return np.where(finite, _divergences(np.nan_to_num(expected), safe), np.inf)
    rows = row_divergences(expected, found, is_distribution(expected))
    return np.asarray(rows.reshape(len(expected), -1).mean(axis=1))
