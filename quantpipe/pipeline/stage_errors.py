"""The errors of stored tensors as the stages before the last one left them, for the figure along the depth."""

from __future__ import annotations

from quantpipe.data.subset import First
from quantpipe.evaluate.layers import layer_report, samples_for
from quantpipe.evaluate.progress import EvaluationProgress
from quantpipe.graph.external_weights import is_outside
from quantpipe.graph.view import Graph
from quantpipe.pipeline import stages
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.plan import Problem
from quantpipe.simulate.simulator import simulate
from quantpipe.types import LayerRow
from quantpipe.types.figures import StageErrors

BEFORE_RECOVERY = "the search, weights to the nearest"


def earlier_errors(
    context: RunContext, decision: SearchDecision, given: Graph, course: EvaluationProgress
) -> list[StageErrors]:
    """Return the errors before recovery, if it changed anything; else nothing.

    A model with external weights is left out: it would be planned, and held, twice.
    """
    if not decision.overrides or is_outside(given.model):
        return []
    topology, settings = context.variants.at(decision.strategy.structure), context.settings
    plan = Problem(given, topology, settings.spec, settings.schema).plan(decision.strategy)
    few = First(
        context.inputs.evaluate, stages.whole_batches(given, samples_for(given, plan, settings.evaluate.layer_samples))
    )
    course.phases += 1
    rows = course.result(
        "errors per tensor before recovery",
        lambda some: layer_report(given, plan, simulate(given, topology, plan), some),
        few,
        list[LayerRow],
    )
    return [{"stage": BEFORE_RECOVERY, "sqnr_db": {row["tensor"]: row["sqnr_db"] for row in rows}}]
