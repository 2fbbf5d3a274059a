"""search: the clip range of each scale group is one more choice of the search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from quantpipe.calibrate.estimators.legal import Estimator
from quantpipe.calibrate.estimators.max_range import MaxRange
from quantpipe.calibrate.estimators.over_base import OverBase
from quantpipe.errors import ConfigError


@dataclass(frozen=True)
class Searched(OverBase):
    """[low, high] = p/100 · (the base estimator's range), p one of `percents`, chosen per scale group by the search.

    The estimator itself gives the base's range; the search space has a choice `clip:TENSOR` per group, and the
    threshold table scales by it. So ranges are judged by the objective, on the search samples, together with the bits,
    instead of by a criterion of the tensor alone. With power-of-two scales only divisions by 2 differ: [100, 50, 25].
    MQBench's MSEObserver shrinks the observed range in the same way; `annotate.threshold_steps` is the same idea with
    powers of two, on top of any estimator.
    """

    base: Estimator = field(default_factory=MaxRange)
    percents: Sequence[int] = (100, 90, 80, 70, 60, 50, 40, 30, 20)

    def __post_init__(self) -> None:
        percents = tuple(self.percents)
        legal = all(isinstance(p, int) and 1 <= p <= 100 for p in percents)
        if not legal or percents[:1] != (100,) or sorted(set(percents), reverse=True) != list(percents):
            raise ConfigError(
                f"threshold.activations.percents is {list(percents)}; legal are falling integers from 100 to 1, "
                "100 first, such as [100,75,50]"
            )
        if isinstance(self.base, Searched):
            raise ConfigError("threshold.activations.base cannot be a searched threshold itself")
        object.__setattr__(self, "percents", percents)


def clip_percents(estimator: Estimator) -> tuple[int, ...]:
    """Return the percents that the search may clip to; none when thresholds are the estimator's alone."""
    return tuple(estimator.percents) if isinstance(estimator, Searched) else ()
