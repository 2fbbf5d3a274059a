"""Recognize calibration samples that cannot be right, by comparing them with the evaluation samples.

A few samples of both are read; no model runs. Noise is only recognized next to evaluation samples with a structure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.data.subset import First
from quantpipe.types import Samples

MOST_SAMPLES = 64
BATCH = 16
LEAST_SAMPLES = 8
"""Of both, from which something is said."""
MOST_VALUES = 1 << 16
"""Values of a sample of which neighbours are compared."""
ALIKE, UNLIKE = 0.3, 0.1
"""Correlation of neighbours from which samples have a structure, and up to which they have none."""
WIDE, BESIDE = 3.0, 2.0
"""Ratio of widths, or distance in standard deviations, from which inputs count as prepared differently."""


@dataclass
class _Seen:
    """What some samples of an input are like."""

    count: int = 0
    constant: int = 0
    means: list[float] = field(default_factory=list)
    squares: list[float] = field(default_factory=list)
    correlations: dict[int, list[float]] = field(default_factory=dict)
    first: NDArray[Any] | None = None
    different: bool = False

    def add(self, value: NDArray[Any]) -> None:
        if not value.size:  # the cache of a sequence that begins
            return
        real = value.astype(np.float64)
        self.count += 1
        self.constant += int(real.size > 1 and float(np.ptp(real)) == 0.0)
        self.means.append(float(real.mean()))
        self.squares.append(float(np.mean(real**2)))
        for axis, found in correlations(real).items():
            self.correlations.setdefault(axis, []).append(found)
        if self.first is None:
            self.first = value
        elif self.first.shape != value.shape or not np.array_equal(self.first, value):
            self.different = True

    @property
    def correlation(self) -> float | None:
        """Return the mean correlation of neighbours along the axis where it is largest; None if unknown."""
        return max((float(np.mean(some)) for some in self.correlations.values()), key=abs, default=None)

    @property
    def mean(self) -> float:
        return float(np.mean(self.means))

    @property
    def deviation(self) -> float:
        return math.sqrt(max(float(np.mean(self.squares)) - self.mean**2, 0.0))


def correlations(value: NDArray[np.float64]) -> dict[int, float]:
    """Return the correlation of neighbours along each axis of one sample that has enough of them.

    Channels, and features without an order, may show none; the comparison with other samples decides.
    """
    found = {}
    for axis, size in enumerate(value.shape):
        if size < 4 or value.size < 16:
            continue
        moved = np.moveaxis(value, axis, -1)
        a, b = moved[..., 1:].ravel()[:MOST_VALUES], moved[..., :-1].ravel()[:MOST_VALUES]
        spread = a.std() * b.std()
        if spread > 0:
            found[axis] = float(np.mean((a - a.mean()) * (b - b.mean())) / spread)
    return found


def calibration_doubts(calibrate: Samples, evaluate: Samples, size: int | None) -> tuple[str, ...]:
    """Return sentences about calibration samples that are constant, noise, of one class, or prepared in another way.

    `size` is the only batch that the model takes, if it takes one alone.
    """
    own, labels = _seen(calibrate, size)
    others, known = _seen(evaluate, size)
    said: list[str] = []
    for name, seen in own.items():
        if name in others and min(seen.count, others[name].count) >= LEAST_SAMPLES:
            said += _of_input(name, seen, others[name])
    return (*said, *_of_classes(labels, known))


def _of_input(name: str, seen: _Seen, others: _Seen) -> Iterator[str]:
    """Yield the first thing that speaks against an input of the calibration samples."""
    if seen.constant == seen.count and others.constant < others.count:
        yield (
            f"in all of {seen.count} calibration samples, every value of the input {name} is the same, so ranges "
            "follow from constants; calibrate on real samples (dataset.calibrate)"
        )
    elif not seen.different and others.different:
        yield (
            f"all of {seen.count} calibration samples have an equal input {name}; calibrate on samples that differ "
            "(dataset.calibrate)"
        )
    elif _is_noise(seen, others):
        here, there = (one.correlation or 0.0 for one in (seen, others))
        yield (
            f"the calibration samples look like random noise: neighbouring values of the input {name} have a "
            f"correlation of {here:.2f}, and {there:.2f} in the evaluation samples. Ranges follow from values that no "
            "real sample has; calibrate on real samples (dataset.calibrate)"
        )
    elif others.deviation > 0 and (far := _prepared_otherwise(seen, others)):
        yield (
            f"the input {name} is prepared in another way in calibration than in evaluation: {far}. Check "
            "dataset.preprocess, and that both files hold the same kind of values"
        )


def _is_noise(seen: _Seen, others: _Seen) -> bool:
    here, there = seen.correlation, others.correlation
    return here is not None and there is not None and abs(here) <= UNLIKE and abs(there) >= ALIKE


def _prepared_otherwise(seen: _Seen, others: _Seen) -> str | None:
    wide = seen.deviation / others.deviation
    beside = abs(seen.mean - others.mean) / max(seen.deviation, others.deviation)
    if 1 / WIDE <= wide <= WIDE and beside <= BESIDE:
        return None
    return (
        f"mean {seen.mean:.3g} and standard deviation {seen.deviation:.3g}, compared with {others.mean:.3g} and "
        f"{others.deviation:.3g}"
    )


def _of_classes(labels: NDArray[np.int64] | None, known: NDArray[np.int64] | None) -> Iterator[str]:
    if labels is None or known is None or min(len(labels), len(known)) < LEAST_SAMPLES:
        return
    if len(np.unique(labels)) == 1 and len(np.unique(known)) > 1:
        yield (
            f"all of {len(labels)} calibration samples are of class {labels[0]}, and the evaluation samples have "
            f"{len(np.unique(known))} classes; calibrate on samples of all classes (dataset.calibrate, or "
            "dataset.shuffle=true)"
        )


def _seen(samples: Samples, size: int | None) -> tuple[Mapping[str, _Seen], NDArray[np.int64] | None]:
    """Return what the float inputs of some samples are like, and their labels."""
    found: dict[str, _Seen] = {}
    labels: list[NDArray[np.int64]] = []
    for batch in First(samples, MOST_SAMPLES).batches(size or BATCH):
        for name, values in batch.inputs.items():
            if values.dtype.kind == "f" and values.ndim > 0:
                for value in values:
                    found.setdefault(name, _Seen()).add(np.asarray(value))
        if batch.labels is not None:
            labels.append(batch.labels)
    return found, np.concatenate(labels) if labels else None
