"""Finalists: several candidates of a search are recovered, and what is best after that is taken."""

from __future__ import annotations

from dataclasses import replace

from quantpipe.metrics.reference import objective_value
from quantpipe.pipeline.candidate_weights import rounder
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.recover import adopted, recover
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.search import SearchContext
from quantpipe.search import Objective, ObjectiveForm, Pick, finalists, front
from quantpipe.types import FinalistRow, Profile, Score, SearchReport, Trial


def refine(
    context: RunContext, decision: SearchDecision, search_context: SearchContext, profile: Profile
) -> SearchDecision:
    """Return the best finalist after recovery, with its weights; `search.finalists` of the report lists them all.

    Each finalist's recovery has a folder of its own, so that an interrupted run continues with the next one.
    """
    settings, objective = context.settings, search_context.judging
    table = context.thresholds(profile)
    tried: list[tuple[Trial, Trial, SearchDecision]] = []
    start = rounder(context)
    chosen = finalists(search_context.log.read(), search_context.objective, settings.search.finalists)
    for place, trial in enumerate(chosen, start=1):
        strategy = table.strategy(context.space.decode(trial.point))
        context.console.stage(
            "finalist", f"{place} of {len(chosen)}: trial {trial.number}, cost {trial.score.cost:.6g}"
        )
        files = RunFolder(context.files.finalists / str(trial.number), context.console.warn)
        mine = SearchDecision(strategy, decision.report, table.rectified(strategy), start(strategy))
        recovered = recover(context, mine, profile, files)
        metrics = recovered.recovery.get("metrics")
        value = objective_value(objective.metric, metrics) if metrics else trial.score.value
        score = Score(value, trial.score.cost, tuple((metrics or dict(trial.score.metrics)).items()))
        tried.append((trial, replace(trial, score=score), recovered))
    if not tried:
        return recover(context, decision, profile)
    best = _best([after for _, after, _ in tried], objective, settings.pick)
    before, after, recovered = next(entry for entry in tried if entry[1] is best)
    rows = [_row(a, b, b is best) for a, b, _ in tried]
    report: SearchReport = {
        **decision.report,
        "finalists": rows,
        "best_value": after.score.value,
        "best_cost": after.score.cost,
        "metrics": dict(after.score.metrics),
        "feasible": objective.feasible(after.score),
    }
    if "picked" in report:
        report["picked"] = before.number
    return adopted(context, replace(recovered, report=report))


def _best(trials: list[Trial], objective: Objective, pick: str) -> Trial:
    if objective.form is ObjectiveForm.PARETO:
        return Pick.parse(pick)(front(trials), objective)
    best = trials[0]
    for trial in trials[1:]:
        if objective.better(trial.score, best.score):
            best = trial
    return best


def _row(before: Trial, after: Trial, picked: bool) -> FinalistRow:
    return {
        "trial": before.number,
        "cost": before.score.cost,
        "value": before.score.value,
        "recovered": after.score.value,
        "picked": picked,
    }
