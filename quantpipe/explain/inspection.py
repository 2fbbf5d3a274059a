"""Inspect a strategy: the largest losses and their remedies, at the requested level of detail.

`command=explain` and the section of a report ask for the same here, the one closely, the other at a glance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from quantpipe.calibrate.measure import measure
from quantpipe.data.subset import First
from quantpipe.evaluate.spending import UNLIMITED, Spending
from quantpipe.explain.advice import Advisor, Change
from quantpipe.explain.advice_order import SPLIT, ordered
from quantpipe.explain.advice_row import MeasuredLoss
from quantpipe.explain.error_attribution import Causes
from quantpipe.explain.faults import name_faults, name_reasons
from quantpipe.explain.proposals import ChangeProposals, Culprit
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.explain_settings import ShippedOptions
from quantpipe.recover import outlier_channels
from quantpipe.scoring.precision import findings_of
from quantpipe.search import Metric
from quantpipe.types import AccumulatorRow, AdviceRow, CauseRow, Profile, Samples, TensorStats, Topology

ALONE = 0.5
"""Share of the time for which tensors, weights and biases are measured alone; the rest is for changes."""

SLACK = 1.05
"""Times the loss of a run that meets its objective, where the objective bounds another number than the loss."""


@dataclass(frozen=True, eq=False)
class Closeness:
    """Hold the level of detail.

    Errors alone are measured on the samples `alone`, changes on `judged`. `culprits`: for how many of what costs most
    changes are measured. `causes`: how many tensors, and how many weights and biases, are measured alone: those with
    most noise of their own; None: all. `affordable`: whether a change is measured. When `spending` is over, the rest is
    left out.
    """

    alone: Samples
    judged: Samples
    culprits: int
    per_channel: Sequence[str] = ()
    causes: int | None = None
    affordable: Callable[[Change], bool] = lambda change: True
    spending: Spending = UNLIMITED


@dataclass(frozen=True, eq=False)
class Inspection:
    """Hold the findings.

    `before` is the loss without recovery, `left` are changes that were not measured, `cut` those for which there was no
    time. `unseen`: tensors, weights and biases for which there was none.
    """

    causes: list[CauseRow]
    accumulators: list[AccumulatorRow]
    now: MeasuredLoss
    before: MeasuredLoss
    recovered: bool
    float_accuracy: float | None
    advice: list[AdviceRow]
    left: list[Change]
    evaluations: int
    alone_passes: float
    cut: Sequence[Change] = ()
    unseen: Sequence[str] = ()


def inspect(
    context: RunContext,
    decision: SearchDecision,
    profile: Profile | None,
    *,
    shipped: ShippedOptions,
    closeness: Closeness,
) -> Inspection:
    """Return a strategy's losses by place, and changes of the configuration with their gains, the best first.

    `profile` has the statistics of the decision, if known. `shipped` are options of the configuration that are tried
    for the whole run; training only after recovery that did not reach the objective.
    """
    if not (decision.overrides and decision.report.get("shortfall")):
        shipped = replace(shipped, train=None)
    settled = context.with_topology_of(decision.strategy)
    # Without recovery: its biases make up for errors elsewhere, so that none of its numbers is right alone.
    plan = settled.problem.plan(decision.strategy)
    few = closeness.alone
    context.console.stage("alone", f"what costs most, on {len(few)} samples")
    causes = Causes(
        context.graph, settled.topology, plan, few, compared=context.inputs.compared, per_channel=closeness.per_channel
    )
    spending = closeness.spending
    rows = causes.rows(
        SPLIT * closeness.culprits, context.console.progress("alone"), most=closeness.causes,
        spending=spending.first(ALONE),
    )  # fmt: skip
    advisor = Advisor(context, decision, profile, closeness.judged)
    now = advisor.as_it_is()
    recovered = bool(decision.overrides)
    before = advisor.unrecovered() if recovered else now
    culprits = culprits_of(rows, settled.topology)[: closeness.culprits]
    statistics = _statistics(context, culprits, settled.topology, profile)
    wrapped = [row["tensor"] for row in rows if row["overflow"]]
    shown = First(context.inputs.calibrate, min(len(few), len(context.inputs.calibrate)))
    names = [t for one in culprits for t in one.members]
    outliers = outlier_channels(context.graph, settled.topology, names, shown)
    proposals = ChangeProposals(context, decision.strategy, settled.topology, statistics, wrapped, outliers)
    changes = [*(c for one in culprits for c in proposals.of(one)), *proposals.of_all(shipped, recovered=recovered)]
    measured = [change for change in changes if closeness.affordable(change)]
    context.console.stage("advice", f"{len(measured)} changes, each on {len(closeness.judged)} samples")
    show = context.console.progress("advice")
    advice: list[AdviceRow] = []
    done = 0
    for number, change in enumerate(measured):
        if spending.over():
            break
        row = advisor.row(change, now if change.train.active else before)
        done = number + 1
        advice += [] if row is None else [row]
        show(number + 1, len(measured), change.words)
    findings = (
        () if profile is None else findings_of(context.graph, settled.topology, profile, settled.topology.kernel_of)
    )
    name_faults(rows, statistics=statistics, raised=plan.raised, findings=findings)
    best = ordered(advice, _allowed(decision))
    name_reasons(best, rows)
    return Inspection(
        rows,
        causes.accumulators,
        now,
        before,
        recovered,
        advisor.float_accuracy,
        best,
        [change for change in changes if change not in measured],
        causes.evaluations + advisor.evaluations,
        causes.passes,
        measured[done:],
        causes.left_out,
    )


def _allowed(decision: SearchDecision) -> Callable[[AdviceRow], bool] | None:
    """Return whether a change keeps the objective (losses within its bound are allowed); None if the run misses it."""
    if decision.report.get("shortfall"):
        return None
    least, metric = decision.report.get("least_value"), decision.report.get("metric")
    most = -float(least) if isinstance(least, int | float) and metric in (Metric.AUTO, Metric.KL, Metric.MSE) else 0.0
    return lambda row: row["loss_after"] <= max(most, SLACK * row["loss_before"])


def _statistics(
    context: RunContext, culprits: Sequence[Culprit], topology: Topology, profile: Profile | None
) -> dict[str, TensorStats]:
    """Return the statistics of the culprits' ranges: the run's own, if it measured them itself, else new ones."""
    known = dict(profile.tensors) if profile is not None and context.settings.profile is None else {}
    groups = [topology.group_of[t] for one in culprits for t in one.members if t in topology.group_of]
    missing = [t for g in groups for t in g.sources if t not in known and not context.graph.is_constant(t)]
    if not missing:
        return known
    unique = list(dict.fromkeys(missing))
    return known | dict(
        measure(context.graph, unique, context.inputs.calibrate, context.settings.calibrate.memory_mb).tensors
    )


def culprits_of(causes: Sequence[CauseRow], topology: Topology) -> list[Culprit]:
    """Return roles by cost, worst first; a weight and its bias are one, and roles without cost are left out.

    The most costly tensor of a scale group represents all of them: a group has one range.
    """
    found: dict[tuple[str, bool], list[CauseRow]] = {}
    groups: set[str] = set()
    for row in causes:
        group = topology.group_of.get(row["tensor"]) if row["kind"] == "tensor" else None
        if (row["alone"] > 0 or row["overflow"]) and (group is None or group.key not in groups):
            found.setdefault((row["role"], row["kind"] in ("weight", "bias")), []).append(row)
            groups |= {group.key} if group is not None else set()
    culprits = [
        Culprit(role, tuple(row["tensor"] for row in rows), is_weight, sum(row["alone"] for row in rows))
        for (role, is_weight), rows in found.items()
    ]
    wrapped = {row["tensor"] for row in causes if row["overflow"]}
    return sorted(culprits, key=lambda one: (not wrapped.intersection(one.members), -one.loss))
