"""Types of the parts `precision`, `search` and `recovery` of report.json.

The comments are the meanings of the keys in docs/artifacts.md.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from quantpipe.types.report_rows import (
    ConfirmationPart,
    ContributionRow,
    FinalistRow,
    FindingRow,
    LossRow,
    PrecisionTrialRow,
    RecoveredLayerRow,
    RoleRow,
    StartPart,
    StepRow,
    ThresholdRuleRow,
)

ObjectiveForm = Literal["least_cost_within_tolerance", "best_value_within_cost", "weighted", "pareto"]


class PrecisionRecord(TypedDict, total=False):
    """The nodes that stay in float, decided before the search, and the measurements for that; or `why_not`."""

    # `precision.mode`
    mode: str
    # `loss_before`, `loss_after`: in nats; null if the device cannot express it
    loss_before: float
    loss_after: float
    # `cost_before`, `cost_after`, `evaluations`, `seconds`: costs and effort
    cost_before: float
    cost_after: float
    evaluations: int
    seconds: float
    # nodes that stay in float
    float: list[str]
    # first tensors of the scale groups with an unclipped range
    ranges: list[str]
    # scale groups, by their first tensor, and weights with more bits than the device's default
    raised: list[str]
    # [{`role`, `nodes`, `share` of the multiplications, `why`}]
    roles: list[RoleRow]
    # [{`kind`, `node`, `tensor`, `note`}]
    findings: list[FindingRow]
    # [{`what`, `loss`, `cost`, `nodes`}]
    trials: list[PrecisionTrialRow]
    # notes
    notes: list[str]
    # the only key, if nothing was decided: the reason
    why_not: str


class LeftOutPart(TypedDict, total=False):
    """Options that the device would gain nothing from; empty where none are."""

    options: int
    choices: int


class DevicePart(TypedDict):
    """The benefit of the search by the hardware's own cost."""

    cost: str
    start: float
    result: float
    asked: str
    left_out: LeftOutPart
    sentence: str | None


class SearchReport(TypedDict):
    """How a strategy was found: the part `search` of a report, and of the results in strategy.json."""

    # `algorithm`, `evaluations`, `seconds`, `evaluations_per_second`: effort
    algorithm: str
    evaluations: int
    seconds: float
    evaluations_per_second: float | None
    # how many measurements were given up
    pruned: int
    # form that `auto` chose; `auto` if nothing was measured, or all in worker processes
    evaluator: str
    # processes that measured
    workers: int
    # time of a float pass
    float_pass_seconds: float
    # `best_value`, `best_cost`, `metrics`: of the best candidate
    best_value: float
    best_cost: float
    metrics: dict[str, float]
    # `metric`, `cost`, `form`: of the objective
    metric: str
    cost: str
    form: ObjectiveForm
    # [each output's loss](configuration.md#which-loss-an-output-has): `output`, `kind`, `weight`, and `parts` that
    # count each by itself
    losses: list[LossRow]
    # `feasible`, `shortfall`: whether the objective was met; by how much it was missed, in words (null if met). With
    # finalists or recovery, both are about the judges, too
    feasible: bool
    shortfall: str | None
    # value that meets the objective; null if the form of the objective has no tolerance
    least_value: float | None
    # `done`, `budget`, `target`, `interrupted`
    stopped: Literal["done", "budget", "target", "interrupted"]
    # `space_size`, `space_log10`: number of points of the space (null beyond 1.8e308), and its decimal logarithm
    space_size: float | None
    space_log10: float
    # notes
    notes: list[str]
    # `cost`: the hardware's cost. `start`, `result`: cost of these points. `asked`: `objective.cost` as given.
    # `left_out`: `options` of `choices`. `sentence`: from which loss or cost to which the search went, or that no
    # option lowers the cost; null if nothing was searched
    device: NotRequired[DevicePart]
    # per changed choice, sorted: `choice`, `before` and `after` (its options), `gain` (loss that it removes, as
    # searches compare) and
    # `saved` (cost). Each is measured by undoing this choice alone; at most 48 choices
    contributions: NotRequired[list[ContributionRow]]
    # whether the changed ranges gain more than chance explains: `samples` (calibration samples that judge), `changed`
    # (ranges), `deviations` (standard errors by which the estimated ranges lose more), `kept`
    confirmation: NotRequired[ConfirmationPart]
    # number of choices at another option than at the start
    changed_choices: NotRequired[int]
    # with `search.start`: `start` (digest of the file), `points`
    start: NotRequired[StartPart]
    # as the report's part `precision`
    precision: NotRequired[PrecisionRecord]
    # choices that the user left with one option
    pinned: dict[str, int | str]
    # `nearest` or `recovered`
    weights: str
    # with `threshold.rules`, per rule: `rule` as written; `tensors` that it decides, by the first of each scale;
    # `overruled`: matching tensors that an earlier rule decides, because they share a scale
    threshold_rules: NotRequired[list[ThresholdRuleRow]]
    # with `search.refine=true`: `trial`, `cost`, `value` on the search samples, the value `recovered` on the samples
    # that judge recovery, `picked`
    finalists: NotRequired[list[FinalistRow]]
    # `front`, `picked`, `pick`: for a Pareto run: [[trial, cost, value], …], the chosen point, the rule
    front: NotRequired[list[list[float]]]
    picked: NotRequired[int]
    pick: NotRequired[str]
    # of a replayed candidate
    trial: NotRequired[int]
    # `trace`, `trace_cost`: [[trial, value], …] and [[trial, cost], …] of each new best
    trace: list[list[float]]
    trace_cost: list[list[float]]


class FrontPart(TypedDict, total=False):
    """The additions of a search for a Pareto front; empty for any other."""

    front: list[list[float]]
    picked: int
    pick: str
    shortfall: str | None


class ReplayedSearch(TypedDict, total=False):
    """The record of a replayed candidate of a log; empty for a strategy without a record of how it was found."""

    algorithm: str
    trial: int
    best_value: float
    best_cost: float
    metrics: dict[str, float]
    weights: str
    threshold_rules: NotRequired[list[ThresholdRuleRow]]


class RecoveryGain(TypedDict):
    """The cost and gain of recovery for a missed objective."""

    metric: str
    least_value: float
    before: float
    after: float
    accuracy_before: float | None
    accuracy_after: float | None
    met: bool
    kept: bool
    seconds: float
    evaluations: int


class RecoveryRecord(TypedDict):
    """The record of recovery: recover/steps.json, and `recover` in the results of strategy.json; empty without."""

    steps: NotRequired[list[StepRow]]
    layers: NotRequired[list[RecoveredLayerRow]]
    weights: NotRequired[str | None]
    metrics: NotRequired[dict[str, float]]
    gain: NotRequired[RecoveryGain]
