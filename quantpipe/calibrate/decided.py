"""Override the ranges of an estimator by decisions of calibrators.

A decision is about the bits that it was made for. At other bits, which a search may ask for, a range differs from the
estimated one by the same factor.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantpipe import extend
from quantpipe.calibrate.estimators.legal import Estimator
from quantpipe.calibrate.estimators.over_base import OverBase
from quantpipe.calibrate.rules import WHERE, Rule
from quantpipe.errors import ConfigError
from quantpipe.types import Range


@dataclass(eq=False)
class DecidedEstimator(OverBase):
    """Estimate ranges with decisions of calibrators; without decisions by the estimator that they began with.

    The decisions come when the statistics are there, and do not change after that.

    `base`: The estimator that the calibrators begin with. `ranges`: Key of a scale group -> the bits that its range was
    decided for, and the range. `weights`: Weight -> the bits that its thresholds were decided for, and the thresholds.
    """

    base: Estimator
    ranges: dict[str, tuple[int, Range]] = field(default_factory=dict)
    weights: dict[str, tuple[int, NDArray[np.float64]]] = field(default_factory=dict)

    def range_of(self, key: str, bits: int, estimated: Callable[[int], Range]) -> Range | None:
        """Return the decided range of a scale group; None where nothing is decided.

        `estimated` gives the estimated range for some bits.
        """
        if key not in self.ranges:
            return None
        own, decided = self.ranges[key]
        before = estimated(own).threshold
        if own == bits or before <= 0:
            return decided
        factor, now = decided.threshold / before, estimated(bits)
        return Range(now.low * factor, now.high * factor)

    def thresholds_of(
        self, tensor: str, bits: int, estimated: Callable[[int], NDArray[np.float64]]
    ) -> NDArray[np.float64] | None:
        """Return the decided thresholds of a weight, likewise; channels whose estimate is 0 keep it."""
        if tensor not in self.weights:
            return None
        own, decided = self.weights[tensor]
        if own == bits:
            return decided
        before, now = estimated(own), estimated(bits)
        if decided.shape != before.shape or now.shape != before.shape:
            return None
        return np.asarray(now * np.divide(decided, before, out=np.ones_like(decided), where=before != 0))


def base_of(estimator: Estimator) -> Estimator:
    """Return an estimator without what calibrators of layers have decided."""
    return estimator.base if isinstance(estimator, DecidedEstimator) else estimator


def refuse_as_rule(rules: tuple[Rule, ...]) -> None:
    """Raise ConfigError for a rule whose estimator decides layer by layer: a rule is about single tensors."""
    for number, rule in enumerate(rules):
        if hasattr(rule.estimator, "layer"):
            raise ConfigError(
                f"{rule.text} names an estimator that decides on whole layers; legal is threshold={rule.use} itself, "
                "or another estimator here",
                where=f"{WHERE}[{number}].use",
            )


def with_decisions(estimator: Estimator, general: Estimator) -> Estimator:
    """Return an estimator that takes decisions of calibrators, where there are any to ask."""
    asked = hasattr(general, "layer") or extend.has_calibrators()
    return DecidedEstimator(estimator) if asked else estimator
