"""The diagnosis of a report with insufficient accuracy: the largest losses and their remedies, at a glance.

It is what `command=explain` says, on few samples and of what has most noise of its own, so that a run pays little for
it. How much is looked at follows from the size of the model alone, never from the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from quantpipe.data.subset import First
from quantpipe.errors import QuantpipeError
from quantpipe.evaluate.inside_models import whole_batches
from quantpipe.evaluate.nearness import below, is_accurate
from quantpipe.evaluate.spending import Spending
from quantpipe.explain.advice import Change
from quantpipe.explain.inspection import Closeness, inspect
from quantpipe.oprules.work import multiply_accumulates
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.effort import EXPLAIN, EffortBudget
from quantpipe.pipeline.explain_settings import ShippedOptions
from quantpipe.pipeline.settings import EvaluateSettings
from quantpipe.search import Metric
from quantpipe.types import DiagnosisPart, Profile, RunReport

WORK = 10**9
"""Multiply-accumulates of a pass over the samples that are looked at, of a model for which eight samples are less."""

LEAST_SAMPLES, MOST_SAMPLES = 8, 64

CAUSES = 12
"""Tensors, and weights and biases, of which each is measured alone."""

CULPRITS = 3
"""Places for which changes are measured, and as many again are told."""

RECOVERY = 10**10
"""Multiply-accumulates of a pass over the calibration samples up to which recovery is measured: it takes dozens."""


def diagnose(
    context: RunContext,
    decision: SearchDecision,
    profile: Profile | None,
    report: RunReport,
    *,
    budget: EffortBudget,
    shipped: Callable[[], ShippedOptions],
) -> DiagnosisPart | None:
    """Return the diagnosis of a result; None where it loses no more than allowed, or diagnosis is off.

    `context` is the run on the network as it was given. A replay has no profile, and nothing is changed for it.
    `shipped` are options of the configuration that are tried for the whole run. `budget` limits the time.
    """
    why = list(reasons(report, decision, context.settings.evaluate))
    if not why or context.settings.evaluate.explain == "none":
        return None
    if not budget.options.explain_passes:
        budget.leave_out("the diagnosis of the result (effort.explain_passes=0)")
        return None
    try:
        options = shipped() if profile is not None else ShippedOptions()
        return _diagnosed(context, decision, profile, why, shipped=options, budget=budget)
    except QuantpipeError as error:  # the result is there; a run does not fail for what is said about it
        context.console.warn(f"evaluate.explain: what is wrong with the result could not be found out: {error}")
        return None


def _diagnosed(
    context: RunContext,
    decision: SearchDecision,
    profile: Profile | None,
    why: list[str],
    *,
    shipped: ShippedOptions,
    budget: EffortBudget,
) -> DiagnosisPart:
    began, search, spending = time.perf_counter(), context.inputs.search, Spending(budget.seconds(EXPLAIN))
    work = max(sum(multiply_accumulates(node, context.graph) for node in context.graph.nodes), 1)
    count = min(max(WORK // work, LEAST_SAMPLES), MOST_SAMPLES)
    few = First(search, whole_batches(context.graph, count))
    light = work * count <= WORK

    def affordable(change: Change) -> bool:
        if profile is None or change.train.active:
            return False
        if change.recover is not None:
            return work * len(context.inputs.calibrate) <= RECOVERY
        return light or bool(change.members)  # a change of the whole run rounds every weight again

    closeness = Closeness(few, few, CULPRITS, (), CAUSES, affordable, spending)
    seen = inspect(context, decision, profile, shipped=shipped, closeness=closeness)
    if seen.unseen:
        budget.leave_out(f"diagnosis: {len(seen.unseen)} tensors, weights and biases were not measured alone")
    if seen.cut:
        budget.leave_out(f"diagnosis: {len(seen.cut)} changes were not measured")
    share = len(few) / max(len(search), 1)
    return {
        "why": why,
        "samples": len(few),
        "loss": seen.now.loss,
        "loss_before_recovery": seen.before.loss if seen.recovered else None,
        "culprits": seen.causes[: 2 * CULPRITS],
        "advice": [row for row in seen.advice if row["advised"]][: 2 * CULPRITS],
        "unmeasured": [
            {"change": change.words, "overrides": list(change.overrides)}
            for change in (*(one for one in seen.left if one.recover is not None or one.train.active), *seen.cut)
        ],
        "passes": share * (seen.alone_passes + seen.evaluations),
        "seconds": time.perf_counter() - began,
    }


def reasons(report: RunReport, decision: SearchDecision, options: EvaluateSettings) -> Iterator[str]:
    """Yield why a result is not good enough, in sentences: what it misses, and what it loses on new samples."""
    missed = decision.report.get("shortfall")
    if missed:
        yield missed
    metrics = report["metrics"]
    real, own = metrics["float"]["top1"], metrics["realized"]["top1"]
    main = report["run"].get("output") or (report["outputs"][0]["output"] if report["outputs"] else "")
    for lost in below(report["outputs"], options.warn_sqnr_db, main if is_accurate(real, own) else None):
        yield f"{lost.output} has {lost.sqnr_db:.1f} dB of SQNR, less than evaluate.warn_sqnr_db"
    least, carried, metric = decision.report.get("least_value"), report["generalization"], decision.report.get("metric")
    if missed or least is None or carried is None or metric not in (Metric.AUTO, Metric.KL, Metric.MSE):
        return
    if carried["report"] > -least:
        yield f"on the samples of the report it loses {carried['report']:.4g}, and {-least:g} is allowed"
