"""What stays in float, decided before the search from ranges and measurements (`precision=auto`).

The decisions are options of the search space that the search finds taken: they are part of its strategy, so that a
replay, costs, recovery and reports need nothing of their own for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import cast

from quantpipe.annotate.conditions import STRUCTURAL
from quantpipe.annotate.limits import ChoiceLimits
from quantpipe.annotate.variants import Topologies
from quantpipe.artifacts import Origin, is_current, read_json
from quantpipe.calibrate.estimators import clip_percents
from quantpipe.errors import Interrupted
from quantpipe.oprules import Family, rule_of
from quantpipe.pipeline.calibrate import calibrate
from quantpipe.pipeline.context import ANNOTATE, RunContext
from quantpipe.pipeline.search import Candidates, SearchContext, trial_log
from quantpipe.precision import Finding, FindingKind, Move, Selection, findings_of, moves_of, named
from quantpipe.report import text
from quantpipe.search import Batching, Budget, Evaluator, Metric
from quantpipe.search.evaluator import BudgetExhausted
from quantpipe.search.objective import LOSSES
from quantpipe.types import (
    ChoiceSpace,
    FindingRow,
    OptionValue,
    PrecisionRecord,
    PrecisionTrialRow,
    Profile,
    RoleRow,
    Score,
)
from quantpipe.types.structure import FLOAT, FLOAT_KEY, INTEGER

PRECISION = ("choices", "threshold", "objective", "precision", "seed")
"""The configuration that the decisions follow from, beside the topology's."""

FOLLOWING = (Family.MOVE, Family.CLAMP)
"""Ops that run where what they read is."""


@dataclass(frozen=True, eq=False)
class Decided:
    """The job with what was decided, its statistics, and the workers if they are open already."""

    job: RunContext
    aim: SearchContext
    profile: Profile
    record: PrecisionRecord
    opened: Candidates | None = None

    def candidates(self) -> Candidates:
        """Return what measures the job's candidates, opened at need."""
        return self.opened or Candidates.of(self.job, self.aim, self.profile)


def why_not(job: RunContext) -> str | None:
    """Return why nothing is decided before this search; None where it can be."""
    settings = job.settings
    if settings.precision.mode == "none":
        return "precision=none"
    if settings.profile is not None:
        return "statistics come from a file, which has those of the default topology only"
    if settings.search.weights != "nearest":
        return f"search.weights={settings.search.weights} recovers candidates' weights for one topology"
    if any(kind in STRUCTURAL for kind in settings.annotate.choices):
        return "annotate.choices leaves what stays in float, and how nodes take their operands, to the search"
    if settings.objective["metric"] == Metric.CALLABLE:
        return "the objective is a function of yours, whose values have no unit of loss"
    if not job.variants.may_float:
        return f"no node that runs in integers can run in float on {settings.spec.name}"
    return None


def origin_of(job: RunContext) -> Origin:
    """Where the record of decisions comes from."""
    return job.origin("precision", job.fitted_on, (*ANNOTATE, *PRECISION))


def stored(job: RunContext) -> PrecisionRecord | None:
    """Return the decisions that an earlier run left in the folder. ArtifactError where they are another run's."""
    if why_not(job) is not None:
        return None
    origin = origin_of(job)
    job.files.refuse_other(job.files.precision, origin)
    if not is_current(job.files.precision, origin, job.files.damaged):
        return None
    return cast("PrecisionRecord", read_json(job.files.precision, origin))


def applied(job: RunContext, record: PrecisionRecord | None) -> RunContext:
    """Return the job whose space has the decisions as choices with one option."""
    nodes = frozenset((record or {}).get("float", ()))
    return _offering(job, nodes, (FLOAT,)) if nodes else job


def decide(job: RunContext, aim: SearchContext, profile: Profile) -> Decided:
    """Measure the job as it is, and decide what stays in float where it loses too much; the decisions are written down.

    Interrupted after Ctrl-C: what was measured is kept, and the next run goes on from there.
    """
    reason = why_not(job)
    if reason is not None:
        return Decided(job, aim, profile, {"mode": job.settings.precision.mode, "why_not": reason})
    started = time.perf_counter()
    opened = Candidates.of(job, aim, profile)
    try:
        start = loss_of(next(iter(opened.workers([job.space.start]))), aim.objective.metric)
        certain = [f for f in _said(job, profile) if f.kind is FindingKind.CONSTANT]
        if start <= job.settings.precision.loss_above and not certain:
            record: PrecisionRecord = {
                "mode": "auto",
                "loss_before": start,
                "loss_after": start,
                "evaluations": 1,
                "float": [],
            }
            _write(job, {**record, "seconds": time.perf_counter() - started})
            return Decided(job, aim, profile, record, opened)
    except BaseException:
        opened.close()
        raise
    opened.close()
    job.console.stage("precision", _why(start, certain))
    wide = _offering(job, frozenset(job.variants.may_float), (INTEGER, FLOAT))
    profile = calibrate(wide, profile)
    said = _said(wide, profile)  # of operands that share a scale, too, which are measured only now
    selection, evaluations = _selected(wide, aim.over(wide), profile, said)
    seconds = time.perf_counter() - started
    record = _record(wide, selection, said, {"evaluations": evaluations, "seconds": seconds})
    _write(job, record)
    job.console.stage("precision", text.precision(record))
    chosen = applied(job, record)
    return Decided(chosen, aim.over(chosen), profile, record)


def loss_of(score: Score, metric: Metric) -> float:
    """Return a score's loss in nats, infinite where it is no number.

    It is that of all outputs where the objective has one, else KL or twice the squared error of one output.
    """
    metrics = dict(score.metrics)
    kind = "loss" if "loss" in metrics else "mse" if metric is Metric.MSE else "kl"
    found = metrics.get(kind, -score.value if metric in LOSSES else math.nan)
    return math.inf if math.isnan(found) else found * (2.0 if kind == "mse" else 1.0)


def _offering(job: RunContext, nodes: frozenset[str], options: tuple[OptionValue, ...]) -> RunContext:
    """The job with a choice of float for these nodes, each with these options."""
    settings = job.settings
    given = (job.graph, settings.spec, settings.schema, settings.annotate)
    variants = Topologies(*given, floatable=nodes)
    percents = clip_percents(settings.estimator)
    limits = ChoiceLimits(restrict={FLOAT_KEY + "*": options})
    whole = limits.narrowed(variants.space(percents))
    own = [choice for choice in whole if choice.key.startswith(FLOAT_KEY)]
    return replace(job, variants=variants, topology=variants.base, space=ChoiceSpace((*job.space, *own)), whole=whole)


def _selected(job: RunContext, aim: SearchContext, profile: Profile, said: Sequence[Finding]) -> tuple[Selection, int]:
    """The measured decisions, and how many evaluations they took."""
    settings = job.settings.precision
    log = trial_log(job, aim.objective, job.files.precision_trials, "precision")
    log.mend()
    show = job.console.progress("precision")
    keys = [choice.key for choice in job.space]
    with closing(Candidates.of(job, aim, profile)) as candidates:
        evaluate = Evaluator(
            candidates.workers,
            aim.objective,
            budget=Budget(max_evaluations=settings.max_evaluations),
            batching=Batching(size=None),
            log=log,
        )

        def measure(nodes: frozenset[str]) -> tuple[float, float]:
            floats = {FLOAT_KEY + name for name in nodes}
            score = evaluate([tuple(int(key in floats) for key in keys)])[0]
            loss = loss_of(score, aim.objective.metric)
            show(evaluate.evaluations, settings.max_evaluations, f"{len(nodes)} nodes in float lose {loss:.4g}")
            return loss, score.cost

        selection = Selection(
            measure,
            certain=_nodes(said, FindingKind.CONSTANT),
            doubted=_nodes(said, FindingKind.MASK, FindingKind.APART),
            light=[m for m in _moves(job) if not m.heavy],
            heavy=[m for m in _moves(job) if m.heavy],
            above=settings.loss_above,
            aim=float(job.settings.objective["tolerance"]),
        )
        try:
            selection.run()
        except BudgetExhausted:
            pass
        except KeyboardInterrupt:
            raise Interrupted(
                f"interrupted after {evaluate.evaluations} evaluations of what stays in float; they are in "
                f"{job.files.precision_trials}. Resume with: {job.settings.resume_command}",
                stage="precision",
            ) from None
    return selection, evaluate.evaluations


def _said(job: RunContext, profile: Profile) -> tuple[Finding, ...]:
    return findings_of(job.graph, job.topology, profile, frozenset(job.variants.may_float))


def _why(loss: float, certain: Sequence[Finding]) -> str:
    """Why there is something to decide."""
    if certain:
        return f"{len(certain)} operands depend on an input and never varied in calibration"
    return f"in integers wherever the device has them, the outputs lose {loss:.3g}"


def _moves(job: RunContext) -> tuple[Move, ...]:
    """What measurements may leave in float: nodes that compute. What only moves or bounds values follows them."""
    graph = job.graph
    computing = [
        n for n in job.variants.may_float if (rule := rule_of(graph.by_name[n])) and rule.family not in FOLLOWING
    ]
    return moves_of(graph, frozenset(computing))


def _nodes(said: Sequence[Finding], *kinds: FindingKind) -> frozenset[str]:
    return frozenset(finding.node for finding in said if finding.kind in kinds)


def _record(
    job: RunContext, selection: Selection, said: Sequence[Finding], measured: PrecisionRecord
) -> PrecisionRecord:
    """What the folder and the report say of the decisions."""
    first, last = selection.tried[0], selection.taken
    order = [name for name in job.variants.may_float if name in selection.floats]
    return {
        "mode": "auto",
        "loss_before": first.loss,
        "loss_after": last.loss,
        "cost_before": first.cost,
        "cost_after": last.cost,
        **measured,
        "float": order,
        "roles": [_role(job, move, said) for move in moves_of(job.graph, frozenset(order))],
        "findings": [cast("FindingRow", asdict(finding)) for finding in said],
        "trials": [
            cast("PrecisionTrialRow", {**asdict(tried), "nodes": len(tried.nodes)}) for tried in selection.tried
        ],
        "notes": _notes(said),
    }


def _role(job: RunContext, move: Move, said: Sequence[Finding]) -> RoleRow:
    kinds = dict.fromkeys(str(finding.kind) for finding in said if finding.node in move.nodes)
    return {"role": named(move), "nodes": len(move.nodes), "share": move.share, "why": ", ".join(kinds) or "measured"}


def _notes(said: Sequence[Finding]) -> list[str]:
    tensors = dict.fromkeys(finding.tensor for finding in said if finding.kind is FindingKind.CONSTANT)
    if not tensors:
        return []
    count = (
        "one tensor that depends on an input was"
        if len(tensors) == 1
        else (f"{len(tensors)} tensors that depend on inputs were")
    )
    return [
        f"{count} constant in all calibration samples (the first: {next(iter(tensors))}), so that no range can be "
        "known: what reads them stays in float. Calibrate on samples in which they vary, such as padded ones where it "
        "is a mask"
    ]


def _write(job: RunContext, record: PrecisionRecord) -> None:
    job.files.write_precision(record, origin_of(job))
