"""Standard errors of losses, and of differences between the losses of two models on the same samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import compress

import numpy as np
from numpy.typing import NDArray

from quantpipe.metrics.average_precision import mean_average_precision
from quantpipe.metrics.detections import matches
from quantpipe.metrics.outputs import kl_divergences
from quantpipe.metrics.reference import Found, Reference, is_kl, metric_of, rows_of
from quantpipe.metrics.sample_sums import PartLoss, part_loss

DISTANCES = ("auto", "kl", "mse")
"""Metrics by which the float model loses nothing against itself."""

GROUPS = 20
"""Parts of a split that are left out in turn."""


def _loss(metric: str, reference: Reference, outputs: Found) -> float:
    """Return the metric of the float model less the metric of the outputs."""
    own = 0.0 if metric in DISTANCES else metric_of(metric, reference, reference.found)
    return own - metric_of(metric, reference, outputs)


LossOf = Callable[[NDArray[np.bool_] | None], float]
"""The loss on some of the samples (None: all)."""


def deviations(first: LossOf, second: LossOf, samples: int) -> float:
    """Return by how many standard errors the second model loses more than the first one, on the same samples.

    The result is 0 if both lose the same in every part, and NaN where a loss is no number.
    """

    def more(kept: NDArray[np.bool_] | None) -> float:
        return second(kept) - first(kept)

    difference, error = more(None), standard_error(more, samples)
    if error == 0:
        return math.copysign(math.inf, difference) if difference else 0.0
    return difference / error


def losses_of(metric: str, reference: Reference, outputs: Found) -> LossOf:
    """Return the loss of outputs against the float model's, in units of the metric, on any part of the samples."""
    own = reference.main(outputs)
    if is_kl(metric, reference) and isinstance(own, np.ndarray) and own.ndim > 1:
        # A mean over samples, which are measured once: each measurement of thousands of classes takes seconds.
        soft = reference.softness
        lost = kl_divergences(reference.outputs, own) if soft is None else soft.divergences(reference.outputs, own)
        return lambda kept: max(float(np.mean(lost if kept is None else lost[kept])), 0.0)
    if metric != "detections" or reference.detections is None:
        of_part = _of_part(metric, reference, outputs)

        def lost_by(kept: NDArray[np.bool_] | None) -> float:
            quick = None if kept is None or of_part is None else of_part(kept)
            if quick is not None:
                return quick
            return _loss(metric, *((reference, outputs) if kept is None else _part(reference, outputs, kept)))

        return lost_by
    pictures = matches(reference.objects, reference.detections.found(reference.every(outputs)))

    def missed(kept: NDArray[np.bool_] | None) -> float:
        found = mean_average_precision(pictures if kept is None else list(compress(pictures, kept)))
        return math.nan if found is None else 1.0 - found

    return missed


def _of_part(metric: str, reference: Reference, outputs: Found) -> PartLoss | None:
    """Return the joint loss on a part of the samples from sums of each; None for another metric."""
    if metric != "auto" or not reference.losses:
        return None
    every = reference.every(reference.found), reference.every(outputs)
    return part_loss(reference.losses, *every, len(reference.outputs))


def standard_error(loss_of: LossOf, samples: int) -> float:
    """Return the standard error of a loss on `samples` samples; NaN for a single sample, or where a loss is infinite.

    The jackknife leaves out each of up to 20 groups of samples once, for any metric. Its formula is
    se² = (g - 1) / g · Σ (loss - mean of these)². Source: Efron, "The Jackknife, the Bootstrap and Other Resampling
    Plans", 1982.
    """
    count = min(GROUPS, samples)
    if count < 2:
        return math.nan
    group = np.arange(samples) % count
    without = np.array([loss_of(group != g) for g in range(count)])
    if not np.all(np.isfinite(without)):
        return math.nan
    return math.sqrt((count - 1) / count * float(np.sum((without - without.mean()) ** 2)))


def _part(reference: Reference, outputs: Found, kept: NDArray[np.bool_]) -> tuple[Reference, Found]:
    if isinstance(outputs, Mapping):
        return reference.rows(kept), {name: rows_of(found, kept) for name, found in outputs.items()}
    return reference.rows(kept), rows_of(outputs, kept)
