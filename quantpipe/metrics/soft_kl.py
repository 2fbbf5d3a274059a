"""KL divergence at a temperature, in units of the plain one: what a search compares candidates by.

If the float model is sure of most samples, nearly all of the KL divergence comes from the few others. The best of some
hundred candidates is then the best on those few. Class scores divided by a temperature T are less sure, so that every
sample counts (Hinton et al., "Distilling the Knowledge in a Neural Network", 2015, train with them).

For small differences d of the scores, KL is ½ dᵀ(diag(p) - ppᵀ)d. So a row of scores counts by w = 1 - Σ p², the trace
of that matrix, and (Σ w)² / Σ w² rows count effectively. KL at T is multiplied by T² and by the ratio of the sums of
w at 1 and at T. For errors that are alike in all classes and rows, this is the plain KL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.metrics.outputs import IN_CACHE, all_finite, fitted, is_distribution, log_probabilities, row_divergences
from quantpipe.types import Outputs

TEMPERATURE = 16.0

ENOUGH = 500
"""Effective number of rows of class scores from which plain KL is used."""


@dataclass(frozen=True)
class Softness:
    """Hold a temperature, and the factor from KL at it to units of KL at 1."""

    temperature: float
    factor: float

    def __str__(self) -> str:
        return f"kl at temperature {self.temperature:g}"

    def divergences(self, reference: Outputs, outputs: Outputs) -> NDArray[np.float64]:
        """Return the divergence of each sample in nats, `[N]`, the mean over its rows; infinite where outputs are."""
        if not all_finite(outputs):
            return np.full(len(reference), np.inf)
        pairs = zip(_samples(reference), _samples(fitted(reference, outputs)), strict=True)
        return np.concatenate([self.of_rows(own, found) for own, found in pairs])

    def of_rows(self, reference: Array, outputs: Array) -> NDArray[np.float64]:
        """Return the divergence of each sample of class scores `[n, ..., classes]`, `[n]`."""
        found = np.empty(max(reference.size // max(reference.shape[-1], 1), 1))
        for part, own, other in _blocks(reference, outputs):
            found[part] = row_divergences(own / self.temperature, other / self.temperature, distribution=False)
        return self.factor * np.asarray(found.reshape(len(reference), -1).mean(axis=1))


def softness_of(reference: Outputs, temperature: float = TEMPERATURE) -> Softness | None:
    """Return how class scores are softened; None where plain KL is used: enough rows count, or for probabilities.

    Probabilities have lost their differences where they end at 0. A single axis holds no classes.
    """
    flat = not isinstance(reference, tuple) and reference.ndim < 2
    if flat or is_distribution(reference) or not all_finite(reference):
        return None
    plain = _counts(reference, 1.0)
    total, squares = float(np.sum(plain)), float(np.sum(plain**2))
    if total == 0 or total**2 >= ENOUGH * squares:
        return None
    return Softness(temperature, temperature**2 * total / float(np.sum(_counts(reference, temperature))))


def _counts(reference: Outputs, temperature: float) -> NDArray[np.float64]:
    """Return by how much each row counts, `[rows]`: 1 - Σ p²."""
    found = []
    for scores in _samples(reference):
        for _, own, _ in _blocks(scores, scores):
            p = np.exp(log_probabilities(own / temperature, distribution=False))
            found.append(1.0 - np.sum(p**2, axis=-1))
    return np.concatenate(found)


def _blocks(reference: Array, outputs: Array) -> Iterator[tuple[slice, Array, Array]]:
    """Yield rows of class scores `[rows, classes]` of both, some at a time, and which they are."""
    classes = max(reference.shape[-1], 1)
    rows, others = reference.reshape(-1, classes), outputs.reshape(-1, classes)
    step = max(1, IN_CACHE // classes)
    for first in range(0, len(rows), step):
        part = slice(first, first + step)
        yield part, rows[part], others[part]


def _samples(outputs: Outputs) -> list[Array]:
    """Return class scores of alike samples, `[n, ..., classes]`."""
    return [part[None] for part in outputs] if isinstance(outputs, tuple) else [outputs]
