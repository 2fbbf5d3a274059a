"""Compare the search's loss with the loss on samples that it did not see.

The search chooses by one split, the report judges by another one. Both splits lose something against the float model;
that they lose the same is compared with what the number of samples lets one know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from itertools import compress
from typing import cast

import numpy as np
from numpy.typing import NDArray

from quantpipe.metrics.average_precision import mean_average_precision
from quantpipe.metrics.detections import matches
from quantpipe.metrics.outputs import kl_divergences
from quantpipe.metrics.reference import Found, Reference, is_kl, metric_of, rows_of
from quantpipe.types import (
    GeneralizationPart,
)

DISTANCES = ("auto", "kl", "mse")
"""Metrics by which the float model loses nothing against itself."""

GROUPS = 20
"""Parts of a split that are left out in turn."""

DEVIATIONS = 2.0
"""Standard errors beyond which the two are said to part: 1 in 44 by chance alone."""


@dataclass(frozen=True)
class Generalization:
    """Hold losses against the float model, in units of `metric`.

    These are the losses on the search samples and on the report samples, how much greater the latter is, and the
    standard error of that difference. `parted`: greater by more than two of them.
    """

    metric: str
    search: float
    report: float
    difference: float
    standard_error: float
    parted: bool
    search_samples: int
    report_samples: int

    def as_dict(self) -> GeneralizationPart:
        """Return the figures as plain data, for the report."""
        return cast("GeneralizationPart", asdict(self))

    @property
    def warning(self) -> str | None:
        """Return one sentence where the losses on the two splits differ, else None."""
        if not self.parted:
            return None
        by = "" if self.metric == "auto" else f" by {self.metric}"
        return (
            f"the result does not carry over from the search samples to the report samples. The loss{by} is "
            f"{self.search:.4g} on {self.search_samples} search samples and {self.report:.4g} on "
            f"{self.report_samples} other samples, a difference of {self.difference:.3g} with a standard error of "
            f"{self.standard_error:.2g}. Use more search samples (dataset.samples.search) of the same kind"
        )


def generalization(
    metric: str, seen: tuple[Reference, Found], unseen: tuple[Reference, Found]
) -> Generalization | None:
    """Compare a model's losses on two splits; None if a split is too small, or a metric is not finite.

    Standard errors come from a jackknife over up to 20 groups of samples, which holds for any metric. Each group is
    left out once, and se² = (g - 1) / g · Σ (loss without it - mean of these)² (Efron, "The Jackknife, the Bootstrap
    and Other Resampling Plans", 1982).

    The samples of a split are paired with the float model's own outputs on them, so differences of the float model
    between the splits do not count. `seen` and `unseen` are (float reference, outputs) on the search and on the report
    samples.
    """
    losses = [_losses_of(metric, *split) for split in (seen, unseen)]
    here, there = (loss_of(None) for loss_of in losses)
    counts = (len(seen[0].outputs), len(unseen[0].outputs))
    error = math.hypot(*(_standard_error(loss_of, count) for loss_of, count in zip(losses, counts, strict=True)))
    difference = there - here
    if not (math.isfinite(difference) and math.isfinite(error)):
        return None
    return Generalization(metric, here, there, difference, error, difference > DEVIATIONS * error, *counts)


def _loss(metric: str, reference: Reference, outputs: Found) -> float:
    """Return the metric of the float model less the metric of the outputs."""
    own = 0.0 if metric in DISTANCES else metric_of(metric, reference, reference.found)
    return own - metric_of(metric, reference, outputs)


LossOf = Callable[[NDArray[np.bool_] | None], float]
"""The loss on some of the samples (None: all)."""


def _losses_of(metric: str, reference: Reference, outputs: Found) -> LossOf:
    own = reference.main(outputs)
    if is_kl(metric, reference) and isinstance(own, np.ndarray) and own.ndim > 1:
        # A mean over samples, which are measured once: each measurement of thousands of classes takes seconds.
        lost = kl_divergences(reference.outputs, own)
        return lambda kept: max(float(np.mean(lost if kept is None else lost[kept])), 0.0)
    if metric != "detections" or reference.detections is None:
        return lambda kept: _loss(metric, *((reference, outputs) if kept is None else _part(reference, outputs, kept)))
    pictures = matches(reference.objects, reference.detections.found(reference.every(outputs)))

    def missed(kept: NDArray[np.bool_] | None) -> float:
        found = mean_average_precision(pictures if kept is None else list(compress(pictures, kept)))
        return math.nan if found is None else 1.0 - found

    return missed


def _standard_error(loss_of: LossOf, samples: int) -> float:
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
