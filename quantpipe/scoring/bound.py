"""Bound the final value of a candidate of which only some samples have been run.

KL divergence and squared error add up over samples and are never negative; each remaining sample can be right. So a
partial sum is a certain bound of the final value. This does not hold for outputs that are probabilities already: if the
candidate's outputs add up to more than 1, their KL may be negative.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from quantpipe.arrays import Array
from quantpipe.metrics.losses import LossKind
from quantpipe.metrics.outputs import is_distribution, log_probabilities
from quantpipe.metrics.reference import Reference
from quantpipe.metrics.soft_kl import Softness
from quantpipe.types import SOFT_KL, Outputs, Score

_ROUND_OFF = 1e-9
"""Relative: the sums of all samples and of their parts are formed in another order."""

_LEAST = 1e-12
"""A divergence of equal distributions may come out as little as this below 0."""


class PartialScoreBound:
    """The largest value (see `objective_value`) that is still possible. Metrics it does not know are not bounded."""

    def __init__(self, metric: str, reference: Reference) -> None:
        self._metric, self._reference = metric, reference
        self._count = len(reference.outputs)
        self._done, self._right = 0, 0
        classes = not isinstance(reference.outputs, tuple) and reference.outputs.ndim == 2
        self._labels = reference.labels if metric == "accuracy" and classes else None
        self._sums: dict[str, _Sum] = {}
        soft = reference.softness
        self._soft = None if soft is None else _Sum(LossKind.KL, reference.outputs, softness=soft)
        if metric in (LossKind.KL, LossKind.MSE):
            self._sums[reference.output] = _Sum(LossKind(metric), reference.outputs)
        elif metric == "auto":
            every = reference.every(reference.found)
            self._sums = {loss.output: _Sum(loss.kind, every[loss.output], loss.factor) for loss in reference.losses}

    def add(self, outputs: Mapping[str, Array] | Array) -> None:
        """Include the next samples' outputs `[n, ...]`, by name where they are several."""
        every = outputs if isinstance(outputs, Mapping) else {self._reference.output: outputs}
        main = every[self._reference.output]
        for name, total in self._sums.items():
            total.add(every[name])
        if self._soft is not None:
            self._soft.add(main)
        if self._labels is not None:
            labels = self._labels[self._done : self._done + len(main)]
            self._right += int(np.sum(main.argmax(axis=1) == labels))
        self._done += len(main)

    def best(self, cost: float) -> Score:
        """Return the best score of this cost that the samples seen so far still allow."""
        soft = () if self._soft is None else ((SOFT_KL, self._soft.least()),)
        return Score(self._best(), cost, soft, pruned=True)

    def _best(self) -> float:
        if self._sums:
            losses = [total.least() for total in self._sums.values()]
            return -math.nan if any(map(math.isnan, losses)) else -max(losses) if any(losses) else 0.0
        if self._labels is not None:
            return (self._right + self._count - self._done) / self._count
        return float("inf")


class _Sum:
    """What one output has lost so far, of what all samples together lose."""

    def __init__(
        self, kind: LossKind, expected: Outputs, factor: float = 1.0, *, softness: Softness | None = None
    ) -> None:
        self._kind, self._expected, self._factor, self._softness = kind, expected, factor, softness
        self._count, self._done, self._total = len(expected), 0, 0.0
        self._distribution = kind is LossKind.KL and is_distribution(expected)
        if kind is LossKind.MSE:
            rows = expected if isinstance(expected, tuple) else (expected,)
            elements = np.concatenate([row.reshape(-1).astype(np.float64) for row in rows])
            self._whole = bool(np.all(np.isfinite(elements)))
            self._elements, self._variance = max(elements.size, 1), float(np.var(elements)) or 1.0

    def add(self, outputs: Array) -> None:
        rows = list(self._expected[self._done : self._done + len(outputs)])
        self._done += len(outputs)
        if any(row.shape != outputs.shape[1:] for row in rows):
            return  # it loses more than nothing
        expected = np.stack(rows)
        if self._kind is LossKind.KL:
            self._total += self._divergence(expected, outputs)
        elif self._kind is LossKind.MSE and self._whole:
            difference = outputs.astype(np.float64) - expected.astype(np.float64)
            self._total += float(np.sum(difference**2)) * self._count / self._elements / self._variance

    def least(self) -> float:
        """Return the smallest value that is still possible."""
        if self._distribution:
            return 0.0
        found = self._factor * self._total / self._count * (1 - _ROUND_OFF) - _LEAST
        return found if found > 0 or math.isnan(found) else 0.0  # NaN is the worst value

    def _divergence(self, expected: Array, outputs: Array) -> float:
        if not np.all(np.isfinite(outputs)):
            return float("inf")
        if self._softness is not None:
            return float(np.sum(self._softness.of_rows(expected, outputs)))
        p, q = (log_probabilities(x, self._distribution) for x in (expected, outputs))
        return float(np.sum(np.exp(p) * (p - q))) / max(expected[..., 0].size // len(expected), 1)
