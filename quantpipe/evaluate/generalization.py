"""Compare the search's loss with the loss on samples that it did not see.

The search chooses by one split, the report judges by another one. Both splits lose something against the float model;
that they lose the same is compared with what the number of samples lets one know.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import cast

from quantpipe.metrics.jackknife import losses_of, standard_error
from quantpipe.metrics.reference import Found, Reference
from quantpipe.types import GeneralizationPart

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

    Standard errors come from a jackknife over groups of samples (`quantpipe.metrics.jackknife`).

    The samples of a split are paired with the float model's own outputs on them, so differences of the float model
    between the splits do not count. `seen` and `unseen` are (float reference, outputs) on the search and on the report
    samples.
    """
    losses = [losses_of(metric, *split) for split in (seen, unseen)]
    here, there = (loss_of(None) for loss_of in losses)
    counts = (len(seen[0].outputs), len(unseen[0].outputs))
    error = math.hypot(*(standard_error(loss_of, count) for loss_of, count in zip(losses, counts, strict=True)))
    difference = there - here
    if not (math.isfinite(difference) and math.isfinite(error)):
        return None
    return Generalization(metric, here, there, difference, error, difference > DEVIATIONS * error, *counts)
