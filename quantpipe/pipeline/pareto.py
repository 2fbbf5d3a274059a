"""Write the results of a Pareto run: the front as a table and as strategies, and the point that the rule picks."""

from __future__ import annotations

from collections.abc import Sequence

from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.search import Objective, ObjectiveForm, Pick, SearchResult
from quantpipe.types import FrontPart, Point, Score, SearchReport, Trial
from quantpipe.types.run_files import FrontRow


def picked(context: RunContext, result: SearchResult, objective: Objective) -> tuple[Point, Score, FrontPart]:
    """Return the point that becomes the strategy, its score, and the report's part on the front.

    The last is empty without a front.
    """
    if objective.form is not ObjectiveForm.PARETO or not result.front:
        return result.best, result.score, {}
    rule = Pick.parse(context.settings.pick)
    trial = rule(result.front, objective)
    missed = None
    if not rule.holds(trial, objective):
        missed = (
            f"no candidate of the front is near enough for pick={context.settings.pick}, and the one of the highest "
            f"value is used: it loses {objective.reference_value - trial.score.value:.4g} ({objective.metric}) on the "
            "search samples"
        )
    shown = [[t.number, t.score.cost, t.score.value] for t in result.front]
    return (
        trial.point,
        trial.score,
        {"front": shown, "picked": trial.number, "pick": context.settings.pick, "shortfall": missed},
    )


def write_front(context: RunContext, front: Sequence[Trial], decision: SearchDecision, table: ThresholdTable) -> None:
    """Write search/pareto.json, one strategy per point in search/front, and the chosen one."""
    rows: list[FrontRow] = []
    points, report = {}, decision.report
    for trial in front:
        assignment = context.space.decode(trial.point)
        strategy = table.strategy(assignment)
        own: SearchReport = {
            **report,
            "trial": trial.number,
            "best_value": trial.score.value,
            "best_cost": trial.score.cost,
            "metrics": dict(trial.score.metrics),
        }
        point = SearchDecision(strategy, own, table.rectified(strategy))
        points[_name(trial)] = context.strategy_payload(point, {})
        rows.append(
            {
                "number": trial.number,
                "value": trial.score.value,
                "cost": trial.score.cost,
                "metrics": dict(trial.score.metrics),
                "choices": assignment,
                "strategy": f"front/{_name(trial)}",
                "picked": trial.number == report.get("picked"),
            }
        )
    chosen = context.strategy_payload(decision, {"recover": decision.recovery})
    context.files.write_front(chosen, points, {"pick": report.get("pick"), "front": rows}, context.searched)


def front_current(context: RunContext, front: Sequence[Trial]) -> bool:
    """Return whether all files of the front are there, whole and of this search."""
    return context.files.front_current([_name(trial) for trial in front], context.searched)


def _name(trial: Trial) -> str:
    return f"trial_{trial.number}.json"
