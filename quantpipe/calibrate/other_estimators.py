"""The estimators that options of a range name (`annotate.choices` with `estimators`)."""

from __future__ import annotations

from collections.abc import Collection

from quantpipe.annotate.range_choices import OUTPUT_ERROR, PERCENTILE
from quantpipe.calibrate.decided import DecidedEstimator
from quantpipe.calibrate.estimators import OutputError, Percentile
from quantpipe.calibrate.estimators.legal import Estimator
from quantpipe.calibrate.offered_ranges import ESTIMATORS
from quantpipe.errors import ConfigError


def other_estimators(kinds: Collection[str], base: Estimator) -> dict[str, Estimator]:
    """Return option of a range -> the estimator that it names; nothing unless `kinds` has `estimators`.

    The estimator of `output_error` begins with `base`, and has its decisions once they are made. Raises ConfigError
    where `base` decides layer by layer itself.
    """
    if ESTIMATORS not in kinds:
        return {}
    if hasattr(base, "layer"):
        raise ConfigError(
            f"has {ESTIMATORS}, and threshold={type(base).__name__} decides layer by layer already; legal is a "
            "threshold such as mse",
            where="annotate.choices",
        )
    return {PERCENTILE: Percentile(), OUTPUT_ERROR: DecidedEstimator(base)}


def layer_estimator(base: Estimator) -> OutputError:
    """Return the estimator that decides for `output_error`."""
    return OutputError(base)
