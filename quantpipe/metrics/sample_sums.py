"""Compute a joint loss on any part of the samples from sums of each sample, which are measured once.

A jackknife asks for the loss of 20 parts. Outputs with a vocabulary have millions of elements, and reading them again
for each part takes longer than running the model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Array
from quantpipe.metrics.losses import LossKind, OutputLoss
from quantpipe.metrics.outputs import all_finite
from quantpipe.types import Outputs

CANCELS = 1e-6
"""Share of the squares about the mean of all samples, below which a part's variance is measured again."""

PartLoss = Callable[[NDArray[np.bool_]], float | None]
"""The loss on the samples kept, `[N]` bool; None where sums do not give it."""


def part_loss(
    losses: Sequence[OutputLoss], reference: Mapping[str, Outputs], outputs: Mapping[str, Outputs], samples: int
) -> PartLoss | None:
    """Return the maximum loss of the outputs on a part of `samples` samples; None where sums do not give it.

    They do for finite arrays `[N·rows, ...]` of equal shapes that are compared as a whole.
    """
    each: list[PartLoss] = []
    for one in losses:
        own, found = reference[one.output], outputs[one.output]
        if not isinstance(own, np.ndarray) or not isinstance(found, np.ndarray) or one.parts or not own.size:
            return None
        if own.shape != found.shape or len(own) % samples or not (all_finite(own) and all_finite(found)):
            return None
        each.append(
            _squared_error(one, own, found, samples) if one.kind is LossKind.MSE else _mean(one, own, found, samples)
        )

    def joint(kept: NDArray[np.bool_]) -> float | None:
        lost = [loss for loss in (part(kept) for part in each) if loss is not None]
        return max(lost) if len(lost) == len(each) else None

    return joint if each else None


def _mean(one: OutputLoss, own: Array, found: Array, samples: int) -> PartLoss:
    """Return the mean of the samples' losses."""
    each = one.each(own, found, samples)
    return lambda kept: max(float(each[kept].mean()), 0.0)


def _squared_error(one: OutputLoss, own: Array, found: Array, samples: int) -> PartLoss:
    """Return the squared error over the variance, from the sums of each sample about the mean of all."""
    rows, others = own.reshape(samples, -1), found.reshape(samples, -1)
    mean = float(np.mean(rows, dtype=np.float64))
    noise, first, second = np.empty((3, samples))
    for sample, (row, other) in enumerate(zip(rows, others, strict=True)):
        values = row.astype(np.float64)
        noise[sample] = np.mean(np.square(other.astype(np.float64) - values))
        values -= mean
        first[sample], second[sample] = np.mean(values), np.mean(np.square(values))

    def lost(kept: NDArray[np.bool_]) -> float | None:
        squares = float(second[kept].mean())
        variance = squares - float(first[kept].mean()) ** 2
        return one.factor * float(noise[kept].mean()) / variance if variance > CANCELS * squares else None

    return lost
