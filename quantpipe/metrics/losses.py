"""Measure the loss of each output of a model in one unit, so that outputs of different kinds can be compared.

Class scores lose their Kullback-Leibler divergence from the float model's, in nats. Other floats lose squared error, as
a share of the float output's variance; integers (class indices) lose the share of elements that differ. One unit of
loss is one nat. A relative squared error counts twice, so that KL 0.02 and an error of 1 % of the variance (20 dB) are
equally strict.

An output that joins quantities of different kinds (boxes and scores) has the loss of its worst part, each by its own
variance. The squared error of the whole output would be the error of its largest part.

A model's loss is the maximum of its outputs' losses, each times its weight. So a loss within the tolerance means that
every counting output is within it, and one output with the weight 1 that holds class scores has the KL divergence
itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.metrics.outputs import all_finite, fitted, kl_divergence, kl_divergences, relative_mse
from quantpipe.oprules.parts import Part
from quantpipe.types import Outputs


class LossKind(StrEnum):
    """Name the loss by which an output is compared."""

    KL = "kl"
    MSE = "mse"
    DIFFERING = "differing"


UNITS: Mapping[LossKind, float] = {LossKind.KL: 1.0, LossKind.MSE: 2.0, LossKind.DIFFERING: 1.0}
"""Units of loss in one of the kind's own."""


@dataclass(frozen=True)
class OutputLoss:
    """Hold how one output counts: by which loss, with which weight, and in which parts (empty: as a whole)."""

    output: str
    kind: LossKind
    weight: float = 1.0
    parts: tuple[Part, ...] = ()

    @property
    def factor(self) -> float:
        """Return the weight of a loss in the kind's own unit."""
        return self.weight * UNITS[self.kind]

    def of(self, reference: Outputs, outputs: Outputs) -> float:
        """Return the weighted loss; infinite where it is no number."""
        pairs = [(part.of(reference), part.of(outputs)) for part in self.parts]
        cut = [(own, found) for own, found in pairs if own is not None and found is not None]
        if len(cut) < len(pairs) or not cut:
            cut = [(reference, outputs)]
        worst = max(_OF_KIND[self.kind](own, found) for own, found in cut)
        found = self.factor * worst
        return math.inf if math.isnan(found) else found

    def each(self, reference: Outputs, outputs: Outputs, samples: int) -> NDArray[np.float64]:
        """Return the weighted loss of each of `samples`, `[samples]`; their mean is at most the loss of all.

        Squared errors are shares of the variance of the whole output, or of the whole part.
        """
        outputs = fitted(reference, outputs)
        pairs = [(part.of(reference), part.of(outputs)) for part in self.parts]
        cut = [(own, found) for own, found in pairs if own is not None and found is not None]
        if len(cut) < len(pairs) or not cut:
            cut = [(reference, outputs)]
        rows = np.max([_EACH_OF_KIND[self.kind](own, found) for own, found in cut], axis=0)
        each = max(len(rows) // max(samples, 1), 1)
        found = self.factor * rows[: samples * each].reshape(samples, each).mean(axis=1)
        return np.asarray(np.where(np.isnan(found), np.inf, found))


def only_kl(losses: Sequence[OutputLoss]) -> str | None:
    """Return the output that decides alone, by its KL divergence as it is; None where there is more to it."""
    alone = len(losses) == 1 and losses[0].kind is LossKind.KL and losses[0].weight == 1.0
    return losses[0].output if alone else None


def joint_loss(
    losses: Sequence[OutputLoss], reference: Mapping[str, Outputs], outputs: Mapping[str, Outputs]
) -> tuple[float, dict[str, float]]:
    """Return the maximum loss of several outputs, and the loss of each output by name."""
    each = {loss.output: loss.of(reference[loss.output], outputs[loss.output]) for loss in losses}
    return max(each.values(), default=0.0), each


def squared_error(reference: Outputs, outputs: Outputs) -> float:
    """Return `relative_mse` over the elements that are finite in the float model (a mask may be minus infinity).

    A sample of another shape than the float model's counts as lost (`fitted`).
    """
    outputs = fitted(reference, outputs)
    if all_finite(reference):
        return relative_mse(reference, outputs)
    known = np.concatenate([row[np.isfinite(row)].astype(np.float64) for row, _ in _pairs(reference, outputs)])
    variance = float(np.var(known)) or 1.0
    total = 0.0
    for row, found in _pairs(reference, outputs):
        finite = np.isfinite(row)
        with np.errstate(invalid="ignore", over="ignore"):
            total += float(np.sum((row[finite].astype(np.float64) - found[finite].astype(np.float64)) ** 2))
    return total / max(known.size, 1) / variance


def differing(reference: Outputs, outputs: Outputs) -> float:
    """Return the share of unequal elements, 0 to 1; a sample of another shape counts in full."""
    if len(reference) != len(outputs):
        return 1.0  # nobody knows which rows are a sample's
    count = unequal = 0
    for row, found in _pairs(reference, outputs):
        count += row.size
        unequal += row.size if row.shape != found.shape else int(np.count_nonzero(row != found))
    return unequal / max(count, 1)


def divergence(reference: Outputs, outputs: Outputs) -> float:
    """Return the KL divergence of class scores in nats; a sample of another shape counts as uniform (`fitted`)."""
    return kl_divergence(reference, outputs)


_OF_KIND: Mapping[LossKind, Callable[[Outputs, Outputs], float]] = {
    LossKind.KL: divergence,
    LossKind.MSE: squared_error,
    LossKind.DIFFERING: differing,
}


def _pairs(reference: Outputs, outputs: Outputs) -> Iterator[tuple[Array, Array]]:
    """Yield the samples of both, one by one."""
    yield from ((np.asarray(row), np.asarray(found)) for row, found in zip(reference, outputs, strict=True))


def _squared_errors(reference: Outputs, outputs: Outputs) -> NDArray[np.float64]:
    """Return the mean squared error of each row as a share of the variance of all finite elements."""
    known = np.concatenate([row[np.isfinite(row)].ravel().astype(np.float64) for row in map(np.asarray, reference)])
    variance = float(np.var(known)) if known.size else 0.0
    found = []
    for row, other in _pairs(reference, outputs):
        finite = np.isfinite(row)
        with np.errstate(invalid="ignore", over="ignore"):
            squares = (row[finite].astype(np.float64) - other[finite].astype(np.float64)) ** 2
        found.append(float(np.mean(squares)) if squares.size else 0.0)
    return np.asarray(found) / (variance or 1.0)


def _shares_differing(reference: Outputs, outputs: Outputs) -> NDArray[np.float64]:
    return np.asarray([float(np.mean(row != found)) if row.size else 0.0 for row, found in _pairs(reference, outputs)])


_EACH_OF_KIND: Mapping[LossKind, Callable[[Outputs, Outputs], NDArray[np.float64]]] = {
    LossKind.KL: kl_divergences,
    LossKind.MSE: _squared_errors,
    LossKind.DIFFERING: _shares_differing,
}
