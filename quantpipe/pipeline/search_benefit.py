"""Determine the benefit of a search for the device.

Choices without a gain are left out. A result that is worse than the start and no cheaper on the device is not taken.
Where nothing pays, this is reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from quantpipe.annotate.choices import AUTO
from quantpipe.hardware.cost import COSTS
from quantpipe.hardware.gain import COUNTS_BITS, own_cost
from quantpipe.pipeline.context import RunContext
from quantpipe.report.text import number
from quantpipe.search import OWN_COST, CostKind, Measure, Objective, ObjectiveForm, SearchResult, Uniform, contributions
from quantpipe.search.objective import LOSSES
from quantpipe.types import ConfirmationPart, ContributionRow, DevicePart, Point, Score
from quantpipe.types.choice_key import ChoiceKind

_SLACK = 1e-9
"""Of a cost: sums of the same terms in another order are equal."""


@dataclass(frozen=True)
class Worth:
    """Hold the point taken, and the report's part on it (`search.device`)."""

    point: Point
    score: Score
    report: DevicePart


def weighed(
    context: RunContext,
    result: SearchResult,
    objective: Objective,
    *,
    point: Point,
    score: Score,
    undone: ConfirmationPart | None = None,
) -> Worth:
    """Return the point that the search found, or its start, where that is the better one.

    The start is where it has a greater value and neither the device nor the objective pays less for the result.
    `undone`: which ranges went back to the estimated ones after the search.
    """
    first = context.space.start
    start = next((t.score for t in result.trace if t.point == first), score)
    before, after = device_cost(context, first), device_cost(context, point)
    pays = after < before * (1 - _SLACK)
    asked = objective.cost.value in COUNTS_BITS and score.cost < start.cost * (1 - _SLACK)
    lost = start.value > score.value and undone is None and objective.cost is not CostKind.LATENCY
    if lost and not asked and not pays and (objective.feasible(start) or not objective.feasible(score)):
        point, score, after = first, start, before
    found: DevicePart = {
        "cost": own_cost(context.settings.spec),
        "start": before,
        "result": after,
        "asked": str((context.settings.config.get("objective") or {}).get("cost", objective.cost.value)),
        "left_out": context.left_out,
        "sentence": None,
    }
    found["sentence"] = _sentence(context, found, objective, start=start, score=score, moved=point != first)
    if undone is not None:
        found["sentence"] = undone_text(undone, None if point == first else found["sentence"])
    return Worth(point, score, found)


def device_cost(context: RunContext, point: Point) -> float:
    """Return the cost of a point by the hardware's own measure."""
    assignment, spec = context.space.decode(point), context.settings.spec
    topology, bits = context.variants.topology_of(assignment), context.variants.bits(assignment)
    return COSTS[own_cost(spec)](topology, context.graph, spec, bits)


def _sentence(
    context: RunContext, found: DevicePart, objective: Objective, *, start: Score, score: Score, moved: bool
) -> str | None:
    """Return from where to where the search went, or that nothing pays; None if nothing was searched for."""
    spec, cost = context.settings.spec.name, found["cost"]
    if isinstance(context.settings.search.algorithm, Uniform):
        return None
    if context.space.size == 1:
        return f"nothing to search for: {_one_point_text(context)}. The result is the start, as search=uniform gives it"
    if not moved:
        return (
            f"no candidate is better than the start by value and by the cost on {spec} ({cost} "
            f"{number(found['start'])}): the result is the start"
        )
    if found["result"] < found["start"] * (1 - _SLACK) or score.value > start.value:
        return outcome(objective, start, score)
    if objective.cost is CostKind.LATENCY:  # what it pays, by the clock
        return outcome(objective, start, score)
    return (
        f"the search lowered the requested cost from {number(start.cost)} to {number(score.cost)} "
        f"(objective.cost={objective.cost}), but the cost on {spec} is no lower: {cost} {number(found['result'])}, at "
        f"the start {number(found['start'])}"
    )


def undone_text(undone: ConfirmationPart, sentence: str | None) -> str:
    """Return the sentence on a result whose changed ranges were undone; without a sentence it is the start."""
    changed, samples = undone["changed"], undone["samples"]
    why = f"{changed} changed ranges gain nothing beyond chance on {samples} calibration samples"
    if sentence is None:
        return f"{why}, so the result is the start"
    return f"{sentence}; {why}, so they are the estimated ones again"


def _one_point_text(context: RunContext) -> str:
    """Return why a space has one point, and what would widen it."""
    kinds = context.settings.annotate.choices
    reasons = []
    if context.pinned:
        reasons.append(
            f"choices.fix, choices.restrict and choices.freeze leave {len(context.pinned)} choices one option each; "
            "remove patterns to search these choices"
        )
    elif AUTO not in kinds and ChoiceKind.RANGE not in kinds:
        reasons.append(
            f"annotate.choices=[{','.join(kinds)}] offers no second option on {context.settings.spec.name}; "
            "annotate.choices=[auto] adds ranges"
        )
    reasons += [text for text in (left_out_text(context),) if text is not None]
    return ". ".join(reasons) or "no choice has a second option"


def outcome(objective: Objective, start: Score, score: Score) -> str:
    """Return from where to where a search went: in loss at the same cost, in cost within the tolerance, or in both."""
    name = "loss" if objective.metric in LOSSES else objective.metric.value
    sign = -1.0 if objective.metric in LOSSES else 1.0
    loss = f"{name} from {sign * start.value:.4g} to {sign * score.value:.4g}"
    cost = f"cost from {number(start.cost)} to {number(score.cost)}"
    if math.isclose(score.cost, start.cost, rel_tol=_SLACK):
        return f"{loss} at the same cost"
    if score.cost < start.cost and objective.form is ObjectiveForm.LEAST_COST_WITHIN_TOLERANCE:
        kept = f"within the tolerance ({objective.tolerance:g})" if objective.feasible(score) else "still too much lost"
        return f"{cost} {kept}, {loss}"
    return f"{loss}, {cost}"


def contributed(
    context: RunContext, point: Point, score: Score, *, objective: Objective, measure: Measure
) -> list[ContributionRow]:
    """Return what each changed choice of a result contributed, the largest gain first.

    Nothing is measured for a search that changed nothing, or that times its candidates.
    """
    if objective.cost is CostKind.LATENCY or isinstance(context.settings.search.algorithm, Uniform):
        return []
    return [
        {
            "choice": found.key,
            "before": found.before,
            "after": found.after,
            "gain": None if math.isnan(found.value) else found.value,
            "saved": found.saved,
        }
        for found in contributions(context.space, point, score, measure)
    ]


def left_out_text(context: RunContext) -> str | None:
    """Return how many options of bits the space is without, and why; None where it has them all."""
    count, choices = context.left_out.get("options", 0), context.left_out.get("choices", 0)
    if not count:
        return None
    return (
        f"{count} options of {choices} choices of bits are left out. {context.settings.spec.name} would store them in "
        "the same bytes and run them no faster (objective.cost=bits or annotate.choices=[bits] searches them anyway)"
    )


def opening(context: RunContext, objective: Objective) -> str:
    """Return the message when a search begins: the algorithm, the size of the space, and the cost measure."""
    name = context.settings.choices.get("search", "")
    return f"{name}, space of {number(context.space.size)} points, {_cost(context, objective)}"


def _cost(context: RunContext, objective: Objective) -> str:
    """Return the cost measure of the search, and who chose it."""
    if (context.settings.config.get("objective") or {}).get("cost") != OWN_COST:
        return f"cost {objective.cost}"
    return f"cost {objective.cost} (objective.cost=auto: what {context.settings.spec.name} pays)"
