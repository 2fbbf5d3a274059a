"""The end of a run: realize the strategy, evaluate it, report, file it, and refuse integers that differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe import stages
from quantpipe.artifacts import is_current, read_json
from quantpipe.certify import certificate, proof_summary
from quantpipe.check.host import host_warning
from quantpipe.errors import AgreementError
from quantpipe.filing import file_report
from quantpipe.rendering import Rendered
from quantpipe.reporting import build_report
from quantpipe.runner.job import Found, Job
from quantpipe.types import Profile, QuantPlan


def finish(job: Job, found: Found, profile: Profile | None) -> dict[str, Any]:
    """Realize, and evaluate when asked for; the report. AgreementError when integers differ and `verify=fail`."""
    job, settings = job.settled(found.strategy), job.settings
    job = job.recovered_network(found.overrides)
    plan = stages.plan_of(job.graph, job.topology, settings.spec, settings.schema, found.strategy, found.overrides)
    job.console.stage("realize", settings.backend)
    realized = stages.realize(job.graph, job.topology, plan, settings.backend)
    strategy = job.files.digest_of(found.strategy, found.overrides)
    made_from = job.realized(strategy)
    if not job.files.is_realized(made_from):
        claims = certificate(job.graph, job.topology, plan, settings.spec, realized, form=settings.backend)
        job.files.write_realized(plan, job.topology, realized, claims, made_from)
    if "evaluate" not in settings.stages:
        return {}
    origin = job.evaluated(strategy, found.recovery)
    if is_current(job.files.report, origin) and settings.command == "run":
        job.console.stage("evaluate", "from an earlier run in this folder")
        report = read_json(job.files.report, origin)
    else:
        report = _evaluate(job, found, profile, plan, realized)
        claims = read_json(job.files.certificate, made_from)
        report["proof"] = proof_summary(claims, report["agreement"]["samples"])
        job.files.write_report(report, origin)
    job.write_strategy(found, _measured(report), None)
    return _conclude(job, report)


def _evaluate(job: Job, found: Found, profile: Profile | None, plan: QuantPlan, realized: Rendered) -> dict[str, Any]:
    settings, samples = job.settings, job.inputs.evaluate
    job.console.stage("evaluate", f"{len(samples)} samples")
    options = settings.evaluate
    evaluation = stages.evaluate(
        job.graph,
        job.topology,
        plan,
        realized,
        samples,
        options.agreement_samples,
        options.layer_samples,
        options.latency_runs,
        options.latency_seconds,
        job.inputs.search,
        str(settings.objective["metric"]),
        settings.value_of,
        job.inputs.output,
    )
    for warning in evaluation.warnings:
        job.console.warn(warning)
    host = host_warning(job.graph, job.topology, plan)
    if host is not None:
        job.console.warn(host)
    return build_report(
        settings=settings,
        graph=job.graph,
        topology=job.topology,
        space=job.space,
        plan=plan,
        strategy=found.strategy,
        profile=profile,
        search=found.report,
        rectified=found.rectified,
        recovery=found.recovery,
        model=stages.describe_model(job.graph, job.topology, settings.spec, plan, found.strategy, realized),
        costs=stages.all_costs(job.graph, job.topology, settings.spec, found.strategy),
        evaluation=evaluation,
        data=job.inputs.data_record(),
        output=job.inputs.output,
        host=host,
    )


def _conclude(job: Job, report: dict[str, Any]) -> dict[str, Any]:
    example = next(iter(job.inputs.evaluate.batches(1))).inputs
    file_report(job.settings.tracker, report, job.settings.folder, job.files.model, example)
    differing = report["agreement"]["differing"]
    if differing and job.settings.verify == "fail":
        raise AgreementError(
            f"the realized model does not hold the searched integers: {differing} of "
            f"{report['agreement']['elements']} elements differ, first in the tensor "
            f"{report['agreement']['first_tensor']}; the report and the models are in {job.settings.folder}. "
            "verify=warn turns this into a warning",
            stage="evaluate",
        )
    return report


def _measured(report: Mapping[str, Any]) -> dict[str, Any]:
    """What strategy.json says of the evaluation."""
    metrics = report["metrics"]
    return {
        "sim_acc": metrics["simulated"]["top1"],
        "quant_acc": metrics["realized"]["top1"],
        "float_acc": metrics["float"]["top1"],
        "cost": report["cost"],
    }
