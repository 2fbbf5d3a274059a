"""Whether statistics hold what an estimator reads: files of other tools may not, nor extremes alone."""

from __future__ import annotations

from quantpipe.calibrate.estimators import Estimator
from quantpipe.errors import ConfigError
from quantpipe.types import Profile

FROM_EXTREMES = ("max_range", "power2_range", "search")
"""The threshold options that work from any profile."""


def require(estimator: Estimator, profile: Profile) -> None:
    """Refuse a tensor that lacks the histogram, or the extremes of single batches, that the estimator reads.

    Raises:
        ConfigError: for the first such tensor.
    """
    lacks = {
        "a histogram": [t for t, s in profile.tensors.items() if estimator.needs_histogram and not len(s.histogram)],
        "the extremes of single batches": [
            t for t, s in profile.tensors.items() if estimator.needs_batches and not len(s.batch_extremes)
        ],
    }
    for what, tensors in lacks.items():
        if tensors:
            name, source = type(estimator).__name__, profile.loaded.get("file", "the profile")
            raise ConfigError(
                f"{name} reads {what}, which {source} does not hold for {len(tensors)} of {len(profile.tensors)} "
                f"tensors, first {tensors[0]}; legal with it are threshold={', '.join(FROM_EXTREMES)} (max_range takes "
                "the file's ranges as they are)",
                where="threshold",
            )
