"""The search's part of the report: what was searched, how far, and what the user should know of how it went."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.calibrate.estimators import Searched
from quantpipe.metrics.losses import OutputLoss
from quantpipe.pipeline import stages
from quantpipe.pipeline.build_report import shortfall
from quantpipe.pipeline.context import RunContext
from quantpipe.pipeline.recover_if_missed import least_value
from quantpipe.scoring.candidate import EvaluatorKind
from quantpipe.scoring.workers import Workers
from quantpipe.search import Objective, SearchResult
from quantpipe.types import LossRow, Score, SearchReport


def search_report(
    context: RunContext,
    result: SearchResult,
    score: Score,
    objective: Objective,
    *,
    known: Mapping[str, Any],
    workers: Workers,
) -> SearchReport:
    """Return the search's part of the report.

    `score` belongs to the point taken. `known` is the report of an earlier run of this search, with its own timing of
    the float pass.
    """
    pass_seconds = known.get("float_pass_seconds") or stages.float_pass(context.graph, context.inputs.search)
    found: SearchReport = {
        "algorithm": context.settings.choices.get("search", type(context.settings.search.algorithm).__name__),
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "evaluations_per_second": result.evaluations / result.seconds if result.seconds > 0 else None,
        "pruned": result.pruned,
        "weights": context.settings.search.weights,
        "evaluator": _kind(workers, known, context.settings.search.candidate_form),
        "workers": workers.count,
        "float_pass_seconds": pass_seconds,
        "best_value": score.value,
        "best_cost": score.cost,
        "feasible": objective.feasible(score),
        "shortfall": shortfall(
            objective, score, doubtful=bool(context.inputs.doubts), losses=context.inputs.compared.losses
        ),
        "least_value": least_value(objective),
        "stopped": result.stopped.value,
        "space_size": context.space.about,
        "space_log10": context.space.log10,
        "metrics": dict(score.metrics),
        "metric": objective.metric.value,
        "losses": [_loss_row(loss) for loss in context.inputs.compared.losses],
        "cost": objective.cost.value,
        "pinned": dict(context.pinned),
        "form": objective.form.value,
        "notes": _notes(context, result),
        "trace": [[t.number, t.score.value] for t in result.trace],
        "trace_cost": [[t.number, t.score.cost] for t in result.trace],
    }
    if context.rules:
        found["threshold_rules"] = context.rules
    return found


def _notes(context: RunContext, result: SearchResult) -> list[str]:
    """Return notes for the user on the course of the search.

    That is that it had thresholds to search and did not, and that it saw what judges recovery.
    """
    notes = [] if context.start is None or context.start.misfit is None else [context.start.misfit]
    if context.percents and result.evaluations == 1:
        every = "every range" if isinstance(context.settings.estimator, Searched) else f"{len(context.percents)} ranges"
        notes.append(
            f"threshold=search leaves {every} to the search, but this search evaluated a single point, with the "
            "ranges of the base estimator. Use search=annealing, greedy_edge or greedy, or a threshold option that "
            "estimates"
        )
    if context.settings.holdout and context.inputs.aside is None:
        notes.append(
            f"the search samples ({len(context.inputs.search)}) cannot be divided (recover.holdout), so the samples "
            "that judge the steps of recovery were used by the search"
        )
    return notes


def _kind(workers: Workers, known: Mapping[str, Any], asked: str) -> str:
    """Return the metric that `auto` selected; if nothing was measured now, the one of an earlier run of this search."""
    return workers.kind if workers.kind != EvaluatorKind.AUTO else str(known.get("evaluator", asked))


def _loss_row(loss: OutputLoss) -> LossRow:
    row: LossRow = {"output": loss.output, "kind": str(loss.kind), "weight": loss.weight}
    if loss.parts:
        row["parts"] = [part.tensor for part in loss.parts]
    return row
