"""The recovery stage: better weights and biases for the strategy as it is, kept where they help."""

from __future__ import annotations

import time
from dataclasses import replace

from quantpipe.artifacts.checkpoint import Kept, NoCheckpoint, PartCheckpoint
from quantpipe.calibrate.decided import base_of
from quantpipe.pipeline import decisions, stages
from quantpipe.pipeline.candidate_weights import rounded
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.recover_if_missed import left_out, missed, pays, sought, weighed
from quantpipe.pipeline.report_attachments import digest_of
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.train import training_data
from quantpipe.plan import NO_OVERRIDES
from quantpipe.recover import RecoverOptions, RecoveryResult
from quantpipe.report.text import recovery_gain
from quantpipe.types import Profile


def recovered(
    context: RunContext,
    searched: stages.SearchedStrategy,
    options: RecoverOptions,
    *,
    progress: stages.Progress = lambda done, total, note: None,
    kept: Kept = NoCheckpoint(),  # noqa: B008  (without state)
) -> RecoveryResult:
    """Return what recovery makes of a strategy with the settings of the run."""
    settings = context.settings
    return stages.recover(
        context.problem,
        searched,
        context.inputs.calibrate,
        stages.Holdout(context.inputs.judge, context.inputs.compared),
        settings=stages.RecoverySettings(
            options,
            settings.calibrate.memory_mb,
            settings.seed,
            base_of(context.estimator),
            settings.weight_method,
            settings.train,
            training_data(context),
            settings.effort.recover_passes,
        ),
        progress=progress,
        kept=kept,
    )


def recover(
    context: RunContext, decision: SearchDecision, profile: Profile | None, files: RunFolder | None = None
) -> SearchDecision:
    """Return the decision with the overrides of the recovery steps that helped.

    Without steps, the overrides are those that the search gave its candidates. `profile` has the statistics of the
    strategy, if this run has them. `files` keeps recovered weights of a finalist (None: the run's own folder).
    """
    context, settings, options = context.with_topology_of(decision.strategy), context.settings, context.settings.recover
    finalist, files = files is not None, files or context.files
    waits, why = settings.recovers_if_needed, ""
    if waits and missed(decision.report):
        options, why = sought(options, settings.objective), "the objective is missed: "
    elif waits and not pays(decision.report, options):
        waits, options = False, replace(options, steps=())
    if not options.steps and not settings.train.active and settings.search.weights == "nearest":
        return decision
    origin = context.recovered(digest_of(decision.strategy, NO_OVERRIDES))
    stored = files.read_recovered(origin, context.topology)
    kept = PartCheckpoint(files.recovered.with_name("partial"), replace(origin, kind="recover/partial"), files.damaged)
    if stored is not None:
        kept.clear()  # a kill may have come between what was recovered and this
        context.console.stage("recover", "from an earlier run in this folder")
        return replace(decision, overrides=stored[0], recovery=stored[1])
    start = decision.overrides if decision.overrides.weights else rounded(context, decision.strategy)
    if not options.steps and not settings.train.active:
        return replace(decision, overrides=start, recovery=files.write_recovered(RecoveryResult(start, ()), origin))
    names = (
        *options.names,
        *((f"train ({settings.choices.get('train', 'own options')})",) if settings.train.active else ()),
    )
    context.console.stage("recover", f"{why}{', '.join(names)}")
    started = time.perf_counter()
    searched = stages.SearchedStrategy(decision.strategy, start, profile)
    result = recovered(context, searched, options, progress=context.console.progress("recover"), kept=kept)
    gain = weighed(result, decision.report, time.perf_counter() - started) if waits else None
    if gain is not None and not gain["kept"]:
        result = replace(left_out(result), overrides=start)
    recovery = files.write_recovered(result, origin, gain)
    kept.clear()
    if gain is not None:
        context.console.stage("recovered", recovery_gain(gain))
    if not finalist:
        decisions.recovered(recovery)
    return replace(decision, overrides=result.overrides, recovery=recovery)


def adopted(context: RunContext, taken: SearchDecision) -> SearchDecision:
    """Return what was recovered in a folder of its own, written as the run's."""
    known = taken.recovery
    recovery = context.files.write_recovered(
        RecoveryResult(taken.overrides, tuple(known["steps"]), tuple(known["layers"]), known["metrics"]),
        context.recovered(digest_of(taken.strategy, NO_OVERRIDES)),
        known.get("gain"),
    )
    decisions.recovered(recovery)
    found = replace(taken, recovery=recovery)
    context.write_strategy(found, {}, context.searched)
    return found
