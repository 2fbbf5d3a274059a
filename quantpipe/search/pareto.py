"""The Pareto front of a search, and the rules that pick one of its points afterwards, without a new search."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from quantpipe.errors import nearest
from quantpipe.option_checks import illegal
from quantpipe.search.objective import Metric, Objective
from quantpipe.types import Trial

_LEGAL = "knee, within:X (lowest cost with a loss of at most X) or best (highest value)"


def front(trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """Return trials that no other one beats in value or cost without being worse in the other; the cheapest first.

    Of equals the one found first stays. A value that is no number, or infinite, or the bound of
    a trial that was given up, is never on the front.
    """
    exact = (t for t in trials if not t.score.pruned)
    usable = (t for t in exact if math.isfinite(t.score.value) and math.isfinite(t.score.cost))
    found: list[Trial] = []
    for trial in sorted(usable, key=lambda t: (t.score.cost, -t.score.value, t.number)):
        if not found or trial.score.value > found[-1].score.value:
            found.append(trial)
    return tuple(found)


@dataclass(frozen=True)
class Pick:
    """State which point of a front is taken: `knee`, `best`, or `within:X`.

    X counts points of percent for accuracy, else the metric's own unit.
    """

    rule: str
    within: float = math.inf

    @classmethod
    def parse(cls, text: str) -> Pick:
        """Return the rule that a text states.

        Raises ConfigError for anything that is no rule.
        """
        rule, colon, amount = str(text).partition(":")
        if rule in ("knee", "best") and not colon:
            return cls(rule)
        if rule == "within":
            try:
                within = float(amount)
            except ValueError:
                within = math.nan
            if within >= 0 and math.isfinite(within):
                return cls(rule, within)
        raise illegal("pick", text, _LEGAL + nearest(rule, ("knee", "within", "best")))

    def __call__(self, points: Sequence[Trial], objective: Objective) -> Trial:
        """Return one trial of a front (cheapest first).

        `within` with nothing near enough: the one of the largest value.
        """
        if self.rule == "knee":
            return _knee(points)
        if self.rule == "best":
            return points[-1]
        return next((t for t in points if self.holds(t, objective)), points[-1])

    def holds(self, trial: Trial, objective: Objective) -> bool:
        """Return whether the trial is what the rule asks for (only `within` asks for something)."""
        share = 100.0 if objective.metric is Metric.ACCURACY else 1.0
        return trial.score.value >= objective.reference_value - self.within / share - 1e-9


def _knee(points: Sequence[Trial]) -> Trial:
    """Return the trial farthest from the line between the two ends, both axes scaled to [0, 1].

    Of equals it is the cheaper one. Fewer than three points have no knee: then it is the one of largest value. Source:
    Satopää et al., "Finding a Kneedle in a Haystack", 2011.
    """
    low, high = points[0].score, points[-1].score
    if len(points) < 3:
        return points[-1]
    height, width = high.value - low.value, high.cost - low.cost
    gains = [(t.score.value - low.value) / height - (t.score.cost - low.cost) / width for t in points]
    return points[gains.index(max(gains))]
