"""Compare the search's loss with the loss on samples that it did not see.

The search chooses by one split, the report judges by another one. Both splits lose something against the float model;
that they lose the same is compared with what the number of samples lets one know.
"""

from __future__ import annotations

import math

from quantpipe.metrics.jackknife import losses_of, standard_error
from quantpipe.metrics.reference import Found, Reference
from quantpipe.types import GeneralizationPart

DEVIATIONS = 2.0
"""Standard errors beyond which the two are said to part: 1 in 44 by chance alone."""


def parted_warning(found: GeneralizationPart) -> str | None:
    """Return one sentence where the losses on the two splits differ, else None."""
    if not found["parted"]:
        return None
    by = "" if found["metric"] == "auto" else f" by {found['metric']}"
    return (
        f"the result does not carry over from the search samples to the report samples. The loss{by} is "
        f"{found['search']:.4g} on {found['search_samples']} search samples and {found['report']:.4g} on "
        f"{found['report_samples']} other samples, a difference of {found['difference']:.3g} with a standard error of "
        f"{found['standard_error']:.2g}. Use more search samples (dataset.samples.search) of the same kind"
    )


def generalization(
    metric: str, seen: tuple[Reference, Found], unseen: tuple[Reference, Found]
) -> GeneralizationPart | None:
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
    return {
        "metric": metric,
        "search": here,
        "report": there,
        "difference": difference,
        "standard_error": error,
        "parted": difference > DEVIATIONS * error,
        "search_samples": counts[0],
        "report_samples": counts[1],
    }
