"""What the value of a candidate can still become when only some of its samples have been run.

KL divergence and squared error add up over samples and are never negative; of the samples that are left each can be
right. So a partial sum bounds the final value for certain, whatever comes. (Not so for outputs that are probabilities
already: where those of the candidate add up to more than 1, what is called KL there may be negative.)
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.evaluate.metrics import is_distribution, log_probabilities
from quantpipe.evaluate.reference import Reference

_ROUND_OFF = 1e-9
"""Relative: the sums of all samples and of their parts are formed in another order."""

_LEAST = 1e-12
"""A divergence of equal distributions may come out as little as this below 0."""


class Bound:
    """The greatest value (see `objective_value`) that is still possible. Metrics it does not know are not bounded."""

    def __init__(self, metric: str, reference: Reference) -> None:
        self._metric, self._reference = metric, reference
        self._count = len(reference.outputs)
        self._done, self._sum = 0, 0.0
        classes = not isinstance(reference.outputs, tuple) and reference.outputs.ndim == 2
        self._labels = reference.labels if metric == "accuracy" and classes else None
        self._distribution = is_distribution(reference.outputs)
        rows = reference.outputs if isinstance(reference.outputs, tuple) else (reference.outputs,)
        elements = np.concatenate([row.reshape(-1).astype(np.float64) for row in rows])
        self._elements, self._variance = max(elements.size, 1), float(np.var(elements)) or 1.0

    def add(self, outputs: NDArray[Any]) -> None:
        """The next samples' outputs `[n, ...]`."""
        expected = np.stack(list(self._reference.outputs[self._done : self._done + len(outputs)]))
        if self._metric == "kl":
            self._sum += self._divergence(expected, outputs)
        elif self._metric == "mse":
            difference = outputs.astype(np.float64) - expected.astype(np.float64)
            self._sum += float(np.sum(difference**2)) * self._count / self._elements / self._variance
        elif self._labels is not None:
            labels = self._labels[self._done : self._done + len(outputs)]
            self._sum += int(np.sum(outputs.argmax(axis=1) == labels))
        self._done += len(outputs)

    def best(self) -> float:
        if self._metric == "mse" or (self._metric == "kl" and not self._distribution):
            least = self._sum / self._count * (1 - _ROUND_OFF) - _LEAST
            return -least if least > 0 or math.isnan(least) else 0.0  # NaN is the worst value
        if self._metric == "kl":
            return 0.0
        if self._labels is not None:
            return (self._sum + self._count - self._done) / self._count
        return float("inf")

    def _divergence(self, expected: NDArray[Any], outputs: NDArray[Any]) -> float:
        if not np.all(np.isfinite(outputs)):
            return float("inf")
        p, q = (log_probabilities(x, self._distribution) for x in (expected, outputs))
        return float(np.sum(np.exp(p) * (p - q))) / max(expected[..., 0].size // len(expected), 1)
