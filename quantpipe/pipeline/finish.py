"""The end of a run: realize the strategy, evaluate it, report, file it, and reject integers that differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import cast

from quantpipe.annotate.half import below_half, beyond_half
from quantpipe.artifacts import read_json
from quantpipe.artifacts.checkpoint import PartCheckpoint
from quantpipe.certify import certificate, proof_summary
from quantpipe.check.host import host_warning
from quantpipe.data.subset import First
from quantpipe.errors import AgreementError
from quantpipe.evaluate.baseline import BaselineModels, baseline, baseline_warning, too_large, worth_comparing
from quantpipe.evaluate.beyond_ranges import beyond_rows, beyond_warnings
from quantpipe.evaluate.enough_samples import enough
from quantpipe.evaluate.evaluation import FLOAT_MODEL, Evaluation
from quantpipe.evaluate.forms_agreement import compare_forms, forms_warnings
from quantpipe.evaluate.imported import Quantized, imported_part
from quantpipe.evaluate.progress import EvaluationProgress
from quantpipe.evaluate.slower import slower_warning, speed_of
from quantpipe.graph.execute import Session
from quantpipe.graph.io import file_hash
from quantpipe.graph.stored_ports import encoded, stored_ports
from quantpipe.graph.view import Graph
from quantpipe.hardware.cost import node_cycles
from quantpipe.intake.read_model import read_model
from quantpipe.lowering import Rendered
from quantpipe.metrics.reference import Reference
from quantpipe.pipeline import decisions, stages
from quantpipe.pipeline.build_report import Evaluated, build_report, form_notes
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.effort import BASELINES, EffortBudget, effort_part, estimated
from quantpipe.pipeline.figures import Way, figures_of
from quantpipe.pipeline.log_run import file_report, file_trials
from quantpipe.pipeline.memory_estimate import memory_estimate
from quantpipe.pipeline.report_attachments import Beside, digest_of
from quantpipe.pipeline.stage_errors import earlier_errors
from quantpipe.pipeline.timeline import PAGE, TRACKING, Timed, part_of, timeline_of
from quantpipe.pipeline.write_forms import Forms, write_forms
from quantpipe.realize.kernels import slow_warning, without_kernel
from quantpipe.report.effort_text import effort_sentence
from quantpipe.report.imported import imported_verdict, imported_warning
from quantpipe.search.log import read_trials
from quantpipe.types import BaselinePart, DiagnosisPart, Measured, Profile, QuantPlan, Range, RunReport
from quantpipe.types.certificate_file import ModelClaims
from quantpipe.version import __version__


@dataclass(frozen=True, eq=False)
class RealizedRun:
    """Hold the integer model, and the run as it goes on with it.

    The topology of the run is the strategy's, and its network is the one after recovery.
    """

    context: RunContext
    plan: QuantPlan
    forms: Forms
    strategy: str
    """Digest of the strategy's numbers, recovered weights included."""
    given: Graph
    """The clean model as it was given, without what recovery changed."""


def realize(context: RunContext, decision: SearchDecision) -> RealizedRun:
    """Write the integer model of what was found, unless the folder holds it."""
    given = context.graph
    context, settings = context.with_topology_of(decision.strategy), context.settings
    context = context.recovered_network(decision.overrides)
    plan = context.problem.plan(decision.strategy, decision.overrides)
    context.console.stage("realize", ", ".join((settings.backend, *settings.forms)))
    strategy = digest_of(decision.strategy, decision.overrides)
    forms = write_forms(context, plan, strategy)
    made_from, first = context.realized(strategy), forms.first
    if not context.files.realized_current(made_from, forms.contents):
        claims = certificate(context.graph, context.topology, plan, settings.spec, realized=first, form=forms.backend)
        ship = forms.ship(context, plan)
        context.files.write_realized(
            plan, context.topology, first, claims, origin=made_from, others=forms.contents, ship=ship
        )
    return RealizedRun(context, plan, forms, strategy, given)


def evaluate(
    made: RealizedRun,
    decision: SearchDecision,
    profile: Profile | None,
    seen: Reference | None = None,
    *,
    diagnose: Callable[[RunReport, EffortBudget], DiagnosisPart | None],
) -> RunReport:
    """Evaluate the realized model, and return the report.

    `profile` has the statistics of the decision, if known; `seen` is the float model on the search samples, if the
    search has run it. `diagnose` makes the diagnosis from the report, or None. Raises AgreementError when integers
    differ and `verify=fail`.
    """
    context = made.context
    if decision.overrides.channels or decision.overrides.rotations:
        seen = None  # the network that is evaluated is another one, whose float sums round otherwise
    realized = replace(made.forms.first, model=read_model(context.files.model))  # what is compared is the file
    model_file = file_hash(context.files.model, realized.model)
    origin = context.evaluated(made.strategy, decision.recovery, model_file, decision.report)
    # Parts of an evaluation that was interrupted; those of another origin, or another version, are not taken.
    kept = PartCheckpoint(
        context.files.evaluating,
        replace(origin, kind="evaluate/partial", inputs={**origin.inputs, "version": __version__}),
        context.files.damaged,
    )
    report = context.files.read_report(origin) if context.settings.command == "run" else None
    if report is not None:
        context.console.stage("evaluate", "from an earlier run in this folder")
    else:
        budget = _budget(context, decision, profile)
        course = EvaluationProgress(
            kept, context.console.progress, part=partial(part_of, context.console), allowed=budget.seconds,
            left_out=budget.leave_out,
        )  # fmt: skip
        budget.per_sample = partial(course.seconds_per_sample, FLOAT_MODEL)
        report, shown = _evaluate(made, decision, profile, realized=realized, course=course, seen=seen, budget=budget)
        claims = cast("ModelClaims", read_json(context.files.certificate, context.realized(made.strategy)))
        report["proof"] = proof_summary(claims, report["agreement"]["samples"])
        if (wrong := diagnose(report, budget)) is not None:
            report["diagnosis"] = wrong
        if isinstance(context.console, Timed):
            report["effort"] = effort_part(context.console, budget, decision.recovery)
            shown.figures["timeline"] = timeline_of(context.console)
        with part_of(context.console, PAGE):
            context.files.write_report(report, shown, origin)
        decisions.evaluated(report)
    kept.clear()
    context.write_strategy(decision, _measured(report), None)
    with part_of(context.console, TRACKING):
        _file(context, report)
    if isinstance(context.console, Timed):
        decisions.spent(context.console.seconds_of(PAGE, TRACKING), effort_sentence(report.get("effort")))
    return _agreed(context, report)


def _budget(context: RunContext, decision: SearchDecision, profile: Profile | None) -> EffortBudget:
    """Return what the evaluation may take; what the options leave out is noted."""
    options, estimate = context.settings.effort, estimated(profile, decision.report, len(context.inputs.search))
    memory = memory_estimate(context.graph, context.held)
    budget = EffortBudget(options, context.console, len(context.inputs.evaluate), estimate=estimate, memory=memory)
    if budget.evaluated < budget.samples:
        budget.leave_out(f"{budget.evaluated} of {budget.samples} evaluation samples were evaluated")
    if not options.other_sessions:
        budget.leave_out("the comparison of integers in sessions other than the file's own")
    return budget


def _evaluate(
    made: RealizedRun,
    decision: SearchDecision,
    profile: Profile | None,
    *,
    realized: Rendered,
    course: EvaluationProgress,
    seen: Reference | None,
    budget: EffortBudget,
) -> tuple[RunReport, Beside]:
    """Return the report, and the data that are kept next to it."""
    context, plan = made.context, made.plan
    settings, graph, topology = context.settings, context.graph, context.topology
    spec, bits, options = settings.spec, decision.strategy.bits, settings.evaluate
    samples = First(context.inputs.evaluate, stages.whole_batches(graph, budget.evaluated))
    compared = First(samples, stages.whole_batches(graph, options.agreement_samples))
    model = stages.EvaluatedModel(graph, topology, plan, realized)
    few = options.realized_samples
    note = f", the realized model on {few} of them" if few is not None and few < len(samples) else ""
    context.console.stage("evaluate", f"{len(samples)} samples{note}{', going on' if course.goes_on else ''}")
    evaluation = stages.evaluate(
        model,
        stages.EvaluationSamples(samples, context.inputs.search, context.inputs.compared, seen),
        sizes=stages.Sizes(
            options.agreement_samples,
            options.layer_samples,
            options.realized_samples,
            options.latency_runs,
            options.latency_seconds,
            settings.effort.other_sessions,
        ),
        metric=stages.metric_for(
            str(settings.objective["metric"]), context.inputs.output, context.inputs.compared.losses
        ),
        course=course,
        warn_sqnr_db=options.warn_sqnr_db,
        runs_here=spec.runs_here,
    )
    forms = compare_forms(model, made.forms.beside, compared, folder=context.files.model.parent, course=course)
    rows = [*([made.forms.row(evaluation, context.files.model.stat().st_size)] if forms else []), *forms]
    halves = (beyond_half(graph, topology, profile) if profile is not None else None, below_half(plan))
    first = [said for said in halves if said is not None]
    with course.part("number of calibration samples"):
        sample = enough(topology, bits, profile, lambda part: _ranges(context, decision, part))
    if sample is not None:
        context.console.stage("samples", sample["sentence"])
        first += [] if sample["enough"] else [sample["sentence"]]
    outside = beyond_rows(topology, plan, profile, evaluation.beyond)
    host = host_warning(graph, topology, plan, spec)
    lacking = without_kernel(topology, plan, made.forms.backend, realized.model)
    speed = speed_of(graph, topology, spec, bits, latency=evaluation.latency)
    anew = graph.as_given is not None
    slower = slower_warning(speed, topology, spec, latency=evaluation.latency, lacking=lacking, anew=anew)
    warnings = (
        *first,
        *beyond_warnings(outside),
        *evaluation.hidden,
        *evaluation.warnings,
        *forms_warnings(forms),
        *form_notes(graph, topology, spec, lossy=bool(evaluation.lossy)),
        host,
        slow_warning(lacking),
        slower,
    )
    for warning in warnings:
        if warning is not None:
            context.console.warn(warning)
    with course.part("comparison with the imported file"):
        beside = imported_part(Quantized(graph, topology, plan, spec, settings.schema, realized), compared)
    if beside is not None:
        context.console.stage("imported", imported_verdict(beside))
    if (changed := imported_warning(beside)) is not None:
        context.console.warn(changed)
    with course.part("onnxruntime's own quantization"):
        beaten = _baseline(made, evaluation, realized, budget)
    evaluated = Evaluated(
        plan,
        evaluation,
        model=stages.describe_model(graph, topology, spec, plan, strategy=decision.strategy, realized=realized),
        costs=stages.all_costs(graph, topology, spec, decision.strategy),
        host=host,
        lacking=lacking,
        speed=speed,
        slower=slower,
        deployment=made.forms.deployment(context),
        imported=beside,
        forms=rows,
        beyond=outside,
        first=first,
        enough=sample,
        baseline=beaten,
    )
    with course.part("figures"):
        way = Way(
            timeline_of(context.console),
            earlier_errors(context, decision, made.given, course),
            node_cycles(topology, graph, spec, bits),
        )
        figures = figures_of(graph, topology, plan, evaluation, profile=profile, samples=samples, way=way)
    return build_report(context, decision, evaluated, profile), Beside(evaluation.per_sample, figures)


def _ranges(context: RunContext, decision: SearchDecision, profile: Profile) -> dict[str, Range]:
    """Return the range of each measured scale group by some statistics, at the bits that were chosen."""
    table, bits, constants = context.thresholds(profile), decision.strategy.bits, context.topology.constants
    measured = [
        g
        for g in context.topology.groups
        if g.fixed is None and all(s in profile.tensors or s in constants for s in g.sources)
    ]
    return {g.key: table.group_range(g, bits[g.key]) for g in measured if g.key in bits}


def _baseline(
    made: RealizedRun, evaluation: Evaluation, realized: Rendered, budget: EffortBudget
) -> BaselinePart | None:
    """Return the accuracy of onnxruntime's own quantization; warn if it is better than the result."""
    context, graph = made.context, made.given
    spec, latency = context.settings.spec, evaluation.latency
    if context.settings.evaluate.baseline == "none" or not latency.get("ratio"):
        return None
    if not worth_comparing(graph, spec, evaluation.outputs, evaluation.accurate, ratio=latency["ratio"]):
        return None
    if (large := too_large(graph)) is not None:
        budget.leave_out(large)
        return None
    if not budget.options.baseline_passes:
        budget.leave_out("the comparison with onnxruntime's own quantization (effort.baseline_passes=0)")
        return None
    session = Session(realized.model, where="the realized model")
    compared = BaselineModels(
        graph,
        session,
        context.inputs.calibrate,
        context.inputs.evaluate,
        latency["float_ms"],
        budget.seconds(BASELINES),
        budget.leave_out,
    )
    found = baseline(compared, evaluation.accurate)
    said = baseline_warning(found, graph, context.topology, context.settings.spec)
    if said is not None:
        context.console.warn(said)
    return found


def _file(context: RunContext, report: RunReport) -> None:
    """Record the run in MLflow."""
    example = next(iter(context.inputs.evaluate.batches(1))).inputs
    if context.topology.caches:
        example = encoded(stored_ports(read_model(context.files.model)), example)
    file_report(context.settings.tracker, report, context.settings.folder, context.files.model, example=example)
    if context.settings.command == "run" and context.files.trials.is_file():
        trials = (line.trial for line in read_trials(context.files.trials))
        file_trials(context.settings.tracker, sorted(trials, key=lambda trial: trial.number))


def _agreed(context: RunContext, report: RunReport) -> RunReport:
    """Return the report, unless integers differ and `verify=fail`."""
    differing = report["agreement"]["differing"]
    wrong = next((row for row in report.get("forms", ()) if row["exact"] and row["differing"]), None)
    if wrong is not None and not differing and context.settings.verify == "fail":
        raise AgreementError(
            f"{wrong['file']} does not hold the searched integers: {wrong['differing']} of {wrong['elements']} "
            f"elements differ, first in the tensor {wrong['first_tensor']}; the report and the files are in "
            f"{context.settings.folder}. verify=warn turns this into a warning",
            stage="evaluate",
        )
    if differing and context.settings.verify == "fail":
        raise AgreementError(
            f"the realized model does not hold the searched integers: {differing} of "
            f"{report['agreement']['elements']} elements differ, first in the tensor "
            f"{report['agreement']['first_tensor']}; the report and the models are in {context.settings.folder}. "
            f"{_undefined(report['agreement'].get('undefined'))}verify=warn turns this into a warning",
            stage="evaluate",
        )
    return report


def _undefined(tensor: str | None) -> str:
    """Return why integers differ where the simulated model has NaN, with the remedy; empty without NaN."""
    if tensor is None:
        return ""
    return (
        f"The searched model has NaN in the tensor {tensor}, which no integer holds: a float node is infinite at "
        "integers that it reads, such as a logarithm or a division at 0. Keep the nodes before it in float "
        "(annotate.float_nodes), or bound its input away from 0. "
    )


def _measured(report: RunReport) -> Measured:
    """Return the evaluation results for strategy.json."""
    metrics = report["metrics"]
    return {
        "sim_acc": metrics["simulated"]["top1"],
        "quant_acc": metrics["realized"]["top1"],
        "float_acc": metrics["float"]["top1"],
        "cost": report["cost"],
    }
