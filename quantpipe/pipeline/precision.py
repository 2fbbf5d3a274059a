"""Decide before the search which nodes stay in float, and which ranges are full (`precision=auto`).

The decisions are options of the search space that the search finds already taken. They are part of its strategy, so
replay, costs, recovery and reports need no code of their own for them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from quantpipe.annotate.choices import bits_key
from quantpipe.annotate.conditions import STRUCTURAL
from quantpipe.annotate.tail import computes
from quantpipe.artifacts import Origin, is_current, read_json
from quantpipe.calibrate.estimators import MSE
from quantpipe.calibrate.ruled import place_of
from quantpipe.errors import DataError, HardwareError, Interrupted
from quantpipe.pipeline.calibrate import calibrate
from quantpipe.pipeline.context import ANNOTATE, RunContext
from quantpipe.pipeline.origin_parts import KINDS
from quantpipe.pipeline.precision_record import floats_of, nodes_of, record_of, why
from quantpipe.pipeline.search import Candidates, SearchContext, trial_log
from quantpipe.pipeline.timeline import enter_stage
from quantpipe.realize.backends import BACKENDS
from quantpipe.report import text
from quantpipe.scoring.precision import (
    FindingKind,
    PrecisionMove,
    RangeFinding,
    Selection,
    findings_of,
    moves_of,
    raised_moves,
    range_moves,
    readers_of,
)
from quantpipe.scoring.precision.selection import Measured
from quantpipe.search import Batching, Budget, Evaluator, Metric
from quantpipe.search.evaluator import BudgetExhausted
from quantpipe.search.objective import LOSSES
from quantpipe.types import PrecisionRecord, Profile, Score
from quantpipe.types.choice_key import ChoiceKind, choice_key

STAGE = "precision"
PRECISION = (KINDS, "choices", "threshold", "objective", "detections", "precision", "seed")
"""The configuration that the decisions follow from, beside the topology's."""
DECIDED = (FindingKind.MASK, FindingKind.CONSTANT, FindingKind.APART)
"""What ranges say of nodes that float mends; outliers are mended by other units of channels."""


@dataclass(frozen=True, eq=False)
class Decided:
    """The run with what was decided, its statistics, and the workers if they are open already."""

    context: RunContext
    search_context: SearchContext
    profile: Profile
    record: PrecisionRecord
    opened: Candidates | None = None

    def with_distinct_ranges(self) -> Decided:
        """Return the same without ranges that come to the same scale as another one."""
        context = self.context.with_distinct_ranges(self.profile)
        opened = None if self.opened is None else self.opened.within(context)
        return Decided(context, self.search_context.over(context), self.profile, self.record, opened)

    def candidates(self) -> Candidates:
        """Return the measure of the run's candidates, opened at need."""
        return self.opened or Candidates.of(self.context, self.search_context, self.profile)


def why_not(context: RunContext) -> str | None:
    """Return why nothing is decided before this search; None where it can be."""
    settings = context.settings
    if settings.precision.mode == "none":
        return "precision=none"
    if settings.profile is not None:
        return "statistics come from a file, which only has the default topology"
    if settings.search.weights != "nearest":
        return f"search.weights={settings.search.weights} recovers candidates' weights for one topology"
    if any(kind in STRUCTURAL for kind in settings.annotate.choices):
        return "annotate.choices leaves float nodes and the treatment of operands to the search"
    if settings.objective["metric"] == Metric.CALLABLE:
        return "the objective is a user's function, whose values have no unit of loss"
    return None


def origin_of(context: RunContext) -> Origin:
    """Return where the record of decisions comes from."""
    return context.origin("precision", context.fitted_on, (*ANNOTATE, *PRECISION))


def stored(context: RunContext) -> PrecisionRecord | None:
    """Return the decisions that an earlier run left in the folder. ArtifactError where they are another run's."""
    if why_not(context) is not None:
        return None
    origin = origin_of(context)
    context.files.refuse_other(context.files.precision, origin)
    if not is_current(context.files.precision, origin, context.files.damaged):
        return None
    return cast("PrecisionRecord", read_json(context.files.precision, origin))


def applied(context: RunContext, record: PrecisionRecord | None) -> RunContext:
    """Return the run whose space has the decisions as choices with one option."""
    if record is None:
        return context
    floats, wholes, raised = record.get("float", ()), record.get("ranges", ()), record.get("raised", ())
    return context.offering(floats, wholes, raised, decided=True) if floats or wholes or raised else context


def decide(context: RunContext, search_context: SearchContext, profile: Profile) -> Decided:
    """Measure the run as it is, decide which nodes stay in float and which ranges are full, and record that.

    Raises Interrupted after Ctrl-C; measurements are kept, and the next run continues from there.
    """
    reason = why_not(context)
    if reason is not None:
        return Decided(context, search_context, profile, {"mode": context.settings.precision.mode, "why_not": reason})
    started = time.perf_counter()
    enter_stage(context.console, STAGE)
    offered = context.offering((), _groups(context), _raisable(context), decided=False)
    opened = Candidates.of(offered, search_context.over(offered), profile)
    try:
        (first,) = opened.workers([offered.space.start])
        start = (loss_of(first, search_context.objective.metric), first.cost)
        hosted = _hosted(context)
        said = _said(context, profile, floats_of(context, hosted))
        sooner = context.variants.tail or nodes_of(said, FindingKind.MASK)
        least = _aim(context) if sooner else context.settings.precision.loss_above
        floats = floats_of(context, _alike(context, (nodes_of(said, *DECIDED) | _masked(context, said)) & hosted))
        if floats and (start[0] > least or _certain(said)):
            opened.close()
            context.console.stage(
                STAGE, why(start[0], _certain(said), _refused(opened) if start[0] == math.inf else None)
            )
            offered = context.offering(floats, _groups(context), _raisable(context), decided=False)
            profile = calibrate(offered, profile)
            enter_stage(context.console, STAGE)
            said = _said(offered, profile, floats)  # of operands that share a scale, too, which are measured only now
            opened = Candidates.of(offered, search_context.over(offered), profile)
        selection, evaluations = _selected(opened, search_context.over(offered), said, start)
    except BaseException:
        opened.close()
        raise
    measured: PrecisionRecord = {"evaluations": evaluations + 1, "seconds": time.perf_counter() - started}
    record = record_of(offered, selection, said, measured)
    context.files.write_precision(record, origin_of(context))
    if selection.moved:
        context.console.stage(STAGE, text.precision(record))
    chosen = applied(context, record)
    return Decided(chosen, search_context.over(chosen), profile, record, opened.within(chosen))


def loss_of(score: Score, metric: Metric) -> float:
    """Return a score's loss in nats, infinite where it is no number.

    It is the loss of all outputs if the objective has one, else KL or twice the squared error of one output. For a
    detector, the lost share of the float model's detections counts as it is.
    """
    if metric is Metric.DETECTIONS:
        return math.inf if math.isnan(score.value) else 1.0 - score.value
    metrics = dict(score.metrics)
    kind = "loss" if "loss" in metrics else "mse" if metric is Metric.MSE else "kl"
    found = metrics.get(kind, -score.value if metric in LOSSES else math.nan)
    return math.inf if math.isnan(found) else found * (2.0 if kind == "mse" else 1.0)


def _selected(
    opened: Candidates, search_context: SearchContext, said: Sequence[RangeFinding], start: Measured
) -> tuple[Selection, int]:
    """Return the measured decisions, and how many evaluations they took in addition to the start."""
    context, settings = opened.context, opened.context.settings.precision
    log = trial_log(
        *(context, search_context.objective, context.files.precision_trials, "precision"),
        reference=search_context.reference,
    )
    log.mend()
    show = context.console.progress("precision")
    keys = [choice.key for choice in context.space]
    spare = settings.max_evaluations - 1
    evaluate = Evaluator(
        opened.workers,
        search_context.objective,
        budget=Budget(max_evaluations=max(spare, 1)),
        batching=Batching(size=None),
        log=log,
    )

    def measure(moved: frozenset[str]) -> Measured:
        if not moved:
            return start
        if not spare:
            raise BudgetExhausted
        chosen = moved | {choice_key(ChoiceKind.FLOAT, name) for name in moved}
        score = evaluate([tuple(int(key in chosen) for key in keys)])[0]
        loss = loss_of(score, search_context.objective.metric)
        show(evaluate.evaluations, spare, f"loss {loss:.4g}")
        return loss, score.cost

    moves = _moves(context)
    offered = any(choice.kind == ChoiceKind.FLOAT for choice in context.space)
    selection = Selection(
        measure,
        certain=nodes_of(said, FindingKind.CONSTANT),
        masks=nodes_of(said, FindingKind.MASK),
        masked=frozenset(n for n in _masked(context, said) if choice_key(ChoiceKind.FLOAT, n) in keys),
        doubted=nodes_of(said, FindingKind.APART),
        ranges=range_moves(context.graph, [context.variants.reference.group_of[key] for key in _groups(context)]),
        raised=raised_moves(context.graph, context.variants.reference, _raisable(context)),
        light=[move for move in moves if not move.heavy],
        heavy=[move for move in moves if move.heavy],
        above=settings.loss_above,
        aim=_aim(context),
        tail=context.variants.tail if offered else frozenset(),
    )
    try:
        selection.run()
    except BudgetExhausted:
        pass
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted after {evaluate.evaluations} evaluations of what is decided before the search; they are in "
            f"{context.files.precision_trials}. Resume with: {context.settings.resume_command}",
            stage="precision",
        ) from None
    return selection, evaluate.evaluations


def _said(context: RunContext, profile: Profile, nodes: Sequence[str]) -> tuple[RangeFinding, ...]:
    return findings_of(context.graph, context.topology, profile, frozenset(nodes))


def _hosted(context: RunContext) -> frozenset[str]:
    """Return integer-only nodes of the device that the host could run; an empty set for files without a host."""
    written = all(form in BACKENDS for form in (context.settings.backend, *context.settings.forms))
    return frozenset(context.variants.may_host) if written else frozenset()


def _alike(context: RunContext, found: frozenset[str]) -> frozenset[str]:
    """Return the nodes of the same roles: what a mask does to one block it does to the others, seen or not."""
    roles = moves_of(context.graph, _hosted(context)) if found else ()
    return found.union(*(move.nodes for move in roles if not found.isdisjoint(move.nodes)))


def _masked(context: RunContext, said: Sequence[RangeFinding]) -> frozenset[str]:
    """Return nodes with a mask in their input range, such as a Softmax after the addition of a mask."""
    return readers_of(context.graph, nodes_of(said, FindingKind.MASK))


def _refused(opened: Candidates) -> str | None:
    """Return why the device cannot express the start, if it cannot."""
    try:
        opened.plan(opened.context.space.start)
    except (DataError, HardwareError) as error:
        return str(error).split("; ", 1)[0]  # what would mend it is measured here
    return None


def _certain(said: Sequence[RangeFinding]) -> list[RangeFinding]:
    return [finding for finding in said if finding.kind is FindingKind.CONSTANT]


def _aim(context: RunContext) -> float:
    """Return the loss to reach."""
    return float(context.settings.objective["tolerance"])


def _groups(context: RunContext) -> tuple[str, ...]:
    """Return the keys of scale groups whose range the default estimator gives, without a rule: it may change."""
    if not isinstance(context.settings.estimator, MSE):
        return ()
    free = [group for group in context.variants.reference.groups if group.fixed is None]
    return tuple(group.key for group in free if place_of(context.estimator, group.tensors) is None)


def _raisable(context: RunContext) -> frozenset[str]:
    """Return the scale groups and weights that may have more bits, because the user has not limited them."""
    limits = context.settings.limits
    return frozenset(s.key for s in context.variants.reference.raisable if not limits.names(bits_key(s.key)))


def _moves(context: RunContext) -> tuple[PrecisionMove, ...]:
    """Return the nodes that measurements may leave in float: computing ones, since moves and bounds follow them."""
    graph, offered = context.graph, {choice.key for choice in context.space}
    floats = [node for node in graph.nodes if choice_key(ChoiceKind.FLOAT, node.name) in offered]
    return moves_of(graph, frozenset(node.name for node in floats if computes(node)))
