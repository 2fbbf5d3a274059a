"""Which candidates of a search are worth recovering: those that may be the best once their losses have shrunk."""

from __future__ import annotations

import math
from collections.abc import Iterable

from quantpipe.search.objective import Objective, ObjectiveForm
from quantpipe.search.pareto import front
from quantpipe.types import Trial

REACH = 16.0
"""Within a tolerance, candidates with a loss of up to so many tolerances are recovered: at 4 bits recovery left a tenth
of the KL divergence of rounding to the nearest."""


def finalists(trials: Iterable[Trial], objective: Objective, count: int) -> tuple[Trial, ...]:
    """Return at most `count` exact trials, the best one first.

    Within a tolerance, the others are cheaper ones of the Pareto front that lose too much so far, evenly spread from
    the best to the cheapest within reach; of a Pareto front they are spread over all of it; else those next in order.
    """
    exact = [t for t in trials if not t.score.pruned and math.isfinite(t.score.value)]
    if not exact:
        return ()
    ranked = sorted(exact, key=lambda t: objective.key(t.score), reverse=True)
    if objective.form is ObjectiveForm.PARETO:
        return _spread(front(exact), count)
    if objective.form is not ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE:
        return tuple(ranked[:count])
    best = ranked[0]
    least = objective.reference_value - REACH * objective.tolerance
    cheaper = [t for t in front(exact) if t.score.cost < best.score.cost and t.score.value >= least]
    return (best, *_spread(cheaper[::-1], count - 1))


def _spread(trials: Iterable[Trial], count: int) -> tuple[Trial, ...]:
    """At most `count`, evenly over their order, both ends included."""
    every = tuple(trials)
    if count < 1 or len(every) <= count:
        return every[: max(count, 0)]
    if count == 1:
        return every[:1]
    return tuple(every[round(i * (len(every) - 1) / (count - 1))] for i in range(count))
