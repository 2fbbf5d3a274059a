"""Recovery of a search's result and of its start, of which the one that loses less is used.

A search chooses before recovery, which may gain the same at another place: the start can then lose less after it.
"""

from __future__ import annotations

from dataclasses import replace

from quantpipe.metrics.reference import objective_value
from quantpipe.pipeline import decisions
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.recover import recover
from quantpipe.pipeline.report_attachments import digest_of
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.search import SearchContext
from quantpipe.plan import NO_OVERRIDES
from quantpipe.recover import RecoveryResult
from quantpipe.report.text import number
from quantpipe.search import CostKind, ObjectiveForm
from quantpipe.types import Profile, Score, SearchReport

_SLACK = 1e-9
"""Of a cost: sums of the same terms in another order are equal."""


def recover_or_start(
    context: RunContext, decision: SearchDecision, search_context: SearchContext, profile: Profile
) -> SearchDecision:
    """Return the recovered result, or the recovered start where that is better at no higher cost."""
    start = _start(context, decision, search_context, profile)
    if start is None:
        return recover(context, decision, profile)
    mine = recover(context, decision, profile, _folder(context, "result"))
    if not mine.recovery:
        return mine
    context.console.stage("start", "recovered as well, since recovery may gain what the search gained")
    other = recover(context, start, profile, _folder(context, "start"))
    objective = search_context.judging
    before, after = _score(mine, objective.metric), _score(other, objective.metric)
    better = bool(other.recovery.get("metrics")) and objective.better(after, before)
    taken = other if better else mine
    if better:
        note = (
            f"the start loses less after recovery ({number(-after.value)}) than the result of the search "
            f"({number(-before.value)}), so the result is the recovered start"
        )
        context.console.stage("start", note)
        taken = replace(taken, report={**taken.report, "notes": [*taken.report["notes"], note]})
    recovery = context.files.write_recovered(
        RecoveryResult(
            taken.overrides,
            tuple(taken.recovery["steps"]),
            tuple(taken.recovery["layers"]),
            taken.recovery["metrics"],
        ),
        context.recovered(digest_of(taken.strategy, NO_OVERRIDES)),
        taken.recovery.get("gain"),
    )
    decisions.recovered(recovery)
    result = replace(taken, recovery=recovery)
    context.write_strategy(result, {}, context.searched)
    return result


def _folder(context: RunContext, name: str) -> RunFolder:
    return RunFolder(context.files.finalists / name, context.console.warn)


def _score(decision: SearchDecision, metric: str) -> Score:
    """Return what a decision is worth after recovery, or without it where no step was kept."""
    report, metrics = decision.report, decision.recovery.get("metrics")
    value = objective_value(metric, metrics) if metrics else float(report["best_value"])
    return Score(value, float(report["best_cost"]), tuple((metrics or report["metrics"]).items()))


def _start(
    context: RunContext, decision: SearchDecision, search_context: SearchContext, profile: Profile
) -> SearchDecision | None:
    """Return the start of the search as a result; None where the search saved cost, or changed nothing."""
    objective, report = search_context.judging, decision.report
    within = objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE
    if not within or objective.cost is CostKind.LATENCY or context.settings.search.weights != "nearest":
        return None
    table = context.thresholds(profile)
    strategy = table.strategy(context.space.decode(context.space.start))
    same = digest_of(strategy, NO_OVERRIDES) == digest_of(decision.strategy, NO_OVERRIDES)
    score = next((t.score for t in search_context.log.read() if t.point == context.space.start), None)
    if same or score is None or score.pruned:
        return None
    device = report["device"]
    if report["best_cost"] < score.cost * (1 - _SLACK) or device["result"] < device["start"] * (1 - _SLACK):
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
