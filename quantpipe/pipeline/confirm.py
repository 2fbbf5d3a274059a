"""Undo the changed ranges of a search's result where chance explains what they gain.

A search takes the best of hundreds of points, so part of every gain is chance, and is not there on other samples. The
ranges that a search changed are judged once more, on calibration samples, which it has not seen. Where they gain
nothing beyond chance there, all of them go back to the estimated ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite

from quantpipe.data.subset import First
from quantpipe.errors import HardwareError
from quantpipe.graph.execute import Session
from quantpipe.metrics.jackknife import LossOf, deviations, losses_of
from quantpipe.metrics.reference import reference_of
from quantpipe.pipeline.context import RunContext
from quantpipe.scoring.holdout import HoldoutScorer
from quantpipe.search import CostKind, Measure, Objective
from quantpipe.types import ConfirmationPart, Point, QuantPlan, Score

LEAST = 1.0
"""Standard errors by which the changed ranges together must be better than the estimated ones."""

SAMPLES = 512
"""Calibration samples that judge, at most."""


@dataclass(frozen=True, eq=False)
class RangeJudge:
    """Run points on calibration samples."""

    context: RunContext
    metric: str
    plan: Callable[[Point], QuantPlan]
    scorer: HoldoutScorer

    @classmethod
    def of(cls, context: RunContext, objective: Objective, plan: Callable[[Point], QuantPlan]) -> RangeJudge:
        """Return a judge of the points of a run; `plan` gives the numbers of a point."""
        session = Session(context.graph.model, where=context.graph.source)
        samples = First(context.inputs.calibrate, SAMPLES)
        reference = reference_of(session, samples, context.graph.batch_size, context.inputs.compared)
        metric = objective.metric.value
        known = reference if objective.open_ended else reference.softened(metric)
        return cls(context, metric, plan, HoldoutScorer(known, samples))

    @property
    def samples(self) -> int:
        """Return how many samples judge."""
        return len(self.scorer.reference.outputs)

    def measured(self, point: Point) -> LossOf:
        """Return the losses of a point. HardwareError where the device cannot express it."""
        topology = self.context.variants.topology_of(self.context.space.decode(point))
        outputs = self.scorer.outputs(self.context.graph, topology, self.plan(point))
        return losses_of(self.metric, self.scorer.reference, outputs)


@dataclass(frozen=True)
class Confirmed:
    """Hold the point that is left, its score, and the report's part on it (None: no range was changed)."""

    point: Point
    score: Score
    report: ConfirmationPart | None = None


def confirmed(
    context: RunContext,
    judge: Callable[[], RangeJudge],
    point: Point,
    score: Score,
    *,
    objective: Objective,
    measure: Measure,
) -> Confirmed:
    """Return a search's result, or the result with estimated ranges where its own ones gain nothing beyond chance.

    A result that meets the objective keeps its ranges where it would not meet it without them.

    `context`: the run, with its choices. `judge`: opens the judge; it is not asked where no range was changed.
    """
    space = context.space
    changed = [i for i, c in enumerate(space) if c.free and point[i] != space.start[i]]
    if not changed or objective.cost is CostKind.LATENCY:
        return Confirmed(point, score)
    judges = judge()
    without = tuple(space.start[i] if i in changed else option for i, option in enumerate(point))
    try:
        gained = deviations(judges.measured(point), judges.measured(without), judges.samples)
    except HardwareError:  # the device cannot express one of them
        return Confirmed(point, score)
    report: ConfirmationPart = {
        "samples": judges.samples,
        "changed": len(changed),
        "deviations": gained if isfinite(gained) else None,
        "kept": True,
    }
    if gained < LEAST:
        (found,) = measure([without])
        if objective.feasible(found) or not objective.feasible(score):
            return Confirmed(without, found, {**report, "kept": False})
    return Confirmed(point, score, report)
