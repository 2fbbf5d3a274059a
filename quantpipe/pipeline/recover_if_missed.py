"""Run recovery where it is needed (`recover.when`).

It is needed after a search that missed its objective by the loss. After any other search it takes less time than the
search itself (`recover.when=searched`). The functions return whether it runs, and its cost and gain.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import isnan
from typing import Any, cast

from quantpipe.metrics.reference import objective_value
from quantpipe.recover import RecoverOptions, RecoveryResult
from quantpipe.report.text import recovery_gain
from quantpipe.search import Metric, Objective, ObjectiveForm, reaches
from quantpipe.types import RecoveryGain, Score, SearchReport, StepRow


def least_value(objective: Objective) -> float | None:
    """Return the minimum value that keeps the objective.

    The result is None if it bounds no loss, so that recovery cannot reach it.
    """
    if objective.form is not ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE:
        return None
    return objective.reference_value - objective.tolerance


def missed(report: SearchReport) -> bool:
    """Return whether a search's strategy loses more than is allowed, before any recovery, by its part of a report."""
    least = report.get("least_value")
    return least is not None and not reaches(float(report["best_value"]), float(least))


def pays(report: SearchReport, options: RecoverOptions) -> bool:
    """Return whether recovery follows a search that met its objective: after one that measured several candidates."""
    return options.when == "searched" and report.get("least_value") is not None and report["evaluations"] > 1


def sought(options: RecoverOptions, objective: Mapping[str, Any]) -> RecoverOptions:
    """Return the options under which recovery does not end before the objective is met.

    `kl_target` becomes at most the tolerance where that is a KL, and 0 for any other metric.
    """
    within = float(objective["tolerance"]) if objective["metric"] in (Metric.AUTO, Metric.KL) else 0.0
    return replace(options, kl_target=min(options.kl_target, within))


def weighed(result: RecoveryResult, report: SearchReport, seconds: float) -> RecoveryGain:
    """Return cost and gain of recovery, and whether it is kept.

    It is judged by the metric of the objective, although its steps are judged by the outputs' losses. `report`: the
    search's part of it.
    """
    least = cast("float", report["least_value"])  # there was one to miss
    before: dict[str, Any] = {"value": report["best_value"], "accuracy": dict(report["metrics"]).get("top1")}
    value = objective_value(Metric(report["metric"]), result.metrics) if result.metrics else None
    gains = value is not None and (
        isnan(before["value"]) or _gains(_score(report["best_value"], report["metrics"]), value, result.metrics, least)
    )
    kept = gains and any(step["kept"] for step in result.steps)
    after: dict[str, Any] = {"value": value, "accuracy": result.metrics.get("top1")} if kept else before
    return {
        "metric": report["metric"],
        "least_value": least,
        "before": before["value"],
        "after": after["value"],
        "accuracy_before": before["accuracy"],
        "accuracy_after": after["accuracy"],
        "met": reaches(float(after["value"]), least),
        "kept": kept,
        "seconds": seconds,
        "evaluations": result.evaluations,
    }


def _gains(before: Score, value: float, metrics: Mapping[str, float], least: float) -> bool:
    """Return whether recovery gains as searches compare: whether the objective is met, then what orders losses."""
    after = _score(value, metrics)
    met, was = reaches(value, least), reaches(before.value, least)
    if met != was or None in (before.soft, after.soft):
        return (met, value) > (was, before.value)
    return after.compared > before.compared


def _score(value: float, metrics: Mapping[str, float]) -> Score:
    return Score(value, 0.0, tuple(metrics.items()))


def left_out(result: RecoveryResult) -> RecoveryResult:
    """Return the table of steps of a recovery whose result is not taken."""
    reason = "the loss fell, and the objective's own metric gained nothing: the strategy stays as the search left it"
    steps: list[StepRow] = [{**row, "kept": False, "reason": reason} if row["kept"] else row for row in result.steps]
    return replace(result, steps=tuple(steps), layers=(), metrics={})


def still_missed(shortfall: str, gain: RecoveryGain | None) -> str:
    """Return the sentence on a missed objective, with what recovery did about it."""
    if gain is None:
        return shortfall
    return f"{shortfall}. Recovery did not reach it, and the best that was found is kept: {recovery_gain(gain)}"
