"""Recovery of a search's result and of its start, of which the one that loses less is used.

A search chooses before recovery, which may gain the same at another place: the start can then lose less after it.
"""

from __future__ import annotations

from dataclasses import replace
from math import isclose

from quantpipe.metrics.reference import objective_value
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.recover import adopted, recover
from quantpipe.pipeline.report_attachments import digest_of
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.search import SearchContext
from quantpipe.plan import NO_OVERRIDES
from quantpipe.report.text import number
from quantpipe.search import CostKind, ObjectiveForm
from quantpipe.search.objective import LOSSES
from quantpipe.types import Profile, Score, SearchReport


def recover_or_start(
    context: RunContext, decision: SearchDecision, search_context: SearchContext, profile: Profile
) -> SearchDecision:
    """Return the recovered result, or the recovered start where that is better at the same cost."""
    start = _start(context, decision, search_context, profile)
    if start is None:
        return recover(context, decision, profile)
    mine = recover(context, decision, profile, _folder(context, "result"))
    if not mine.recovery:
        return mine
    context.console.stage("start", "recovered as well, since recovery may gain what the search gained")
    other = recover(context, start, profile, _folder(context, "start"))
    objective, cost = search_context.judging, float(decision.report["best_cost"])
    before, after = (_score(found, objective.metric, cost) for found in (mine, other))
    if not other.recovery.get("metrics") or after.value < before.value or not objective.better(after, before):
        context.console.stage("start", "is no better after recovery: the search's result is used")
        return adopted(context, mine)
    sign, name = (-1.0, "loss") if objective.metric in LOSSES else (1.0, objective.metric.value)
    note = (
        f"after recovery, the {name} of the start is {number(sign * after.value)}, that of the search's result "
        f"{number(sign * before.value)}: the result is the recovered start"
    )
    context.console.stage("start", note)
    report, device = other.report, decision.report["device"]
    found: SearchReport = {
        **report,
        "notes": [*report["notes"], note],
        "device": {**device, "result": device["start"], "sentence": note},
    }
    found.pop("confirmation", None)
    return adopted(context, replace(other, report=found))


def _folder(context: RunContext, name: str) -> RunFolder:
    return RunFolder(context.files.finalists / name, context.console.warn)


def _score(decision: SearchDecision, metric: str, cost: float) -> Score:
    """Return what a decision is worth after recovery, or without it where no step was kept."""
    report, metrics = decision.report, decision.recovery.get("metrics")
    value = objective_value(metric, metrics) if metrics else float(report["best_value"])
    return Score(value, cost, tuple((metrics or report["metrics"]).items()))


def _start(
    context: RunContext, decision: SearchDecision, search_context: SearchContext, profile: Profile
) -> SearchDecision | None:
    """Return the start of the search as a result; None where costs differ, or the search changed nothing."""
    objective, report, settings = search_context.judging, decision.report, context.settings
    within = objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE
    if not within or objective.cost is CostKind.LATENCY or settings.search.weights != "nearest":
        return None
    if settings.train.active:  # it would be trained twice
        return None
    table = context.thresholds(profile)
    strategy = table.strategy(context.space.decode(context.space.start))
    same = digest_of(strategy, NO_OVERRIDES) == digest_of(decision.strategy, NO_OVERRIDES)
    score = next((t.score for t in search_context.log.read() if t.point == context.space.start), None)
    if same or score is None or score.pruned:
        return None
    device = report["device"]
    if not isclose(report["best_cost"], score.cost) or not isclose(device["result"], device["start"]):
        return None
    found: SearchReport = {
        **report,
        "best_value": score.value,
        "best_cost": score.cost,
        "metrics": dict(score.metrics),
        "feasible": objective.feasible(score),
        "contributions": [],
        "changed_choices": 0,
    }
    return SearchDecision(strategy, found, table.rectified(strategy), NO_OVERRIDES)
