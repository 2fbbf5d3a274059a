"""`command=explain`: what is wrong with a finished run, tensor by tensor, and what would mend it, measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from quantpipe import __version__
from quantpipe.calibrate.measure import measure
from quantpipe.data.subset import First
from quantpipe.evaluate.error_attribution import Causes
from quantpipe.evaluate.evaluation import whole_batches
from quantpipe.pipeline.advice import Advisor
from quantpipe.pipeline.advice_order import SPLIT, ordered
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.inputs import load
from quantpipe.pipeline.proposals import Culprit, Proposals, Shipped
from quantpipe.pipeline.replay import finished_run
from quantpipe.pipeline.settings import Console, ExplainSettings, Settings
from quantpipe.plan import Problem
from quantpipe.search import Metric
from quantpipe.types import AdviceRow, CauseRow, ExplainReport, Profile, TensorStats, Topology

STAGE = "explain"


SLACK = 1.05
"""Times the loss of a run that meets its objective, where the objective bounds another number than the loss."""


def explain(settings: Settings, console: Console, shipped: Shipped, options: ExplainSettings) -> ExplainReport:
    """Return what is wrong with the run in `settings.folder`, and write it there.

    Args:
        settings: The run's own settings.
        console: Where progress is told.
        shipped: Options of the configuration that are tried for the whole run.
        options: How closely is looked.

    Raises:
        ArtifactError: The folder holds no finished run, one of other samples or another model, or a damaged one.
    """
    console.stage("model", str(settings.model))
    job = RunContext.of(settings, load(settings), console)
    with job.files.lock():
        found = finished_run(job, STAGE)
        profile = job.files.read_profile(job.calibrated) if job.files.stats.is_file() else None
        report = _explained(job, found, profile, shipped=shipped, options=options)
        job.files.write_explained(report, job.origin("explain", job.fitted_on, ()))
    return report


def _explained(
    job: RunContext, found: SearchDecision, profile: Profile | None, *, shipped: Shipped, options: ExplainSettings
) -> ExplainReport:
    began = time.perf_counter()
    settled = job.with_topology_of(found.strategy)
    spec, schema = job.settings.spec, job.settings.schema
    # Without recovery: its biases make up for errors elsewhere, so that none of its numbers is right alone.
    plan = Problem(job.graph, settled.topology, spec, schema).plan(found.strategy)
    few = First(job.inputs.search, whole_batches(job.graph, options.samples))
    job.console.stage("alone", f"every tensor, weight and bias, on {len(few)} samples")
    causes = Causes(
        job.graph, settled.topology, plan, few, compared=job.inputs.compared, per_channel=options.per_channel
    )
    rows = causes.rows(SPLIT * options.culprits, job.console.progress("alone"))
    advisor = Advisor(job, found, profile)
    now = advisor.as_it_is()
    recovered = bool(found.overrides)
    before = advisor.unrecovered() if recovered else now
    culprits = _culprits(rows, settled.topology)[: options.culprits]
    statistics = _statistics(job, culprits, settled.topology, profile)
    wrapped = [row["tensor"] for row in rows if row["overflow"]]
    proposals = Proposals(job, found.strategy, settled.topology, statistics, wrapped)
    changes = [*(c for one in culprits for c in proposals.of(one)), *proposals.of_all(shipped, recovered=recovered)]
    job.console.stage("advice", f"{len(changes)} changes, each on {len(job.inputs.search)} samples")
    show = job.console.progress("advice")
    advice: list[AdviceRow] = []
    for number, change in enumerate(changes):
        row = advisor.row(change, before)
        advice += [] if row is None else [row]
        show(number + 1, len(changes), change.words)
    return {
        "version": __version__,
        "model": job.graph.source,
        "file": None,
        "hardware": spec.name,
        "shortfall": found.report.get("shortfall"),
        "loss": now.loss,
        "loss_before_recovery": before.loss if recovered else None,
        "loss_by_scales": None,
        "accuracy": {"float": advisor.float_accuracy, "run": now.accuracy},
        "samples": len(few),
        "doubts": list(job.inputs.doubts),
        "causes": rows,
        "accumulators": causes.accumulators,
        "advice": ordered(advice, _allowed(found)),
        "evaluations": causes.evaluations + advisor.evaluations,
        "passes": causes.passes,
        "seconds": time.perf_counter() - began,
    }


def _allowed(found: SearchDecision) -> Callable[[AdviceRow], bool] | None:
    """Whether a change keeps the objective; None where the run misses it. What the objective bounds may be lost."""
    if found.report.get("shortfall"):
        return None
    least, metric = found.report.get("least_value"), found.report.get("metric")
    most = -float(least) if isinstance(least, int | float) and metric in (Metric.AUTO, Metric.KL, Metric.MSE) else 0.0
    return lambda row: row["loss_after"] <= max(most, SLACK * row["loss_before"])


def _statistics(
    job: RunContext, culprits: Sequence[Culprit], topology: Topology, profile: Profile | None
) -> dict[str, TensorStats]:
    """The statistics behind the culprits' ranges: those of the run, where it measured them itself, else new ones."""
    known = dict(profile.tensors) if profile is not None and job.settings.profile is None else {}
    groups = [topology.group_of[t] for one in culprits for t in one.members if t in topology.group_of]
    missing = [t for g in groups for t in g.sources if t not in known and not job.graph.is_constant(t)]
    if not missing:
        return known
    unique = list(dict.fromkeys(missing))
    return known | dict(measure(job.graph, unique, job.inputs.calibrate, job.settings.calibrate.memory_mb).tensors)


def _culprits(causes: Sequence[CauseRow], topology: Topology) -> list[Culprit]:
    """Roles by what they cost, worst first. A weight and its bias are one; what costs nothing is none.

    Of the tensors of a scale group the one that costs most stands for all: a range is one for the group.
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
