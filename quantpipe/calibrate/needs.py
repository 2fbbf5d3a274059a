"""Check that statistics hold an estimator's inputs: files of other tools may lack them, and so do extremes alone."""

from __future__ import annotations

from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.ruled import estimator_of
from quantpipe.errors import ConfigError
from quantpipe.types import Profile

FROM_EXTREMES = ("max_range", "power2_range", "search")
"""The threshold options that work from any profile."""


def require(estimator: Estimator, profile: Profile) -> None:
    """Reject a tensor without the histogram, or the extremes of single batches, that the estimator reads.

    Raises ConfigError for the first such tensor.
    """
    lacks: dict[str, list[tuple[str, Estimator]]] = {"a histogram": [], "the extremes of single batches": []}
    for tensor, stats in profile.tensors.items():
        own = estimator_of(estimator, (tensor,))
        if own.needs_histogram and not len(stats.histogram):
            lacks["a histogram"].append((tensor, own))
        if own.needs_batches and not len(stats.batch_extremes):
            lacks["the extremes of single batches"].append((tensor, own))
    for what, tensors in lacks.items():
        if tensors:
            first, own = tensors[0]
            name, source = type(own).__name__, profile.loaded.get("file", "the profile")
            raise ConfigError(
                f"{name} reads {what}, which {source} does not hold for {len(tensors)} of {len(profile.tensors)} "
                f"tensors, first {first}; legal with it are threshold={', '.join(FROM_EXTREMES)} (max_range takes "
                "the file's ranges as they are)",
                where="threshold",
            )
