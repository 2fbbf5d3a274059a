"""`command=explain`: the losses of a finished run, tensor by tensor, and measured remedies."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from quantpipe.data.subset import First
from quantpipe.evaluate.inside_models import whole_batches
from quantpipe.explain.inspection import Closeness, inspect
from quantpipe.pipeline.calibrate import calibrate
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.explain_settings import ExplainSettings, ShippedOptions
from quantpipe.pipeline.inputs import load
from quantpipe.pipeline.replay import finished_run, replayed_strategy
from quantpipe.pipeline.settings import Console, Settings
from quantpipe.types import ExplainReport, Profile
from quantpipe.version import __version__

STAGE = "explain"


def explain(settings: Settings, console: Console, shipped: ShippedOptions, options: ExplainSettings) -> ExplainReport:
    """Explain the losses of the run in `settings.folder`, write the result there, and return it.

    `shipped` are options of the configuration that are tried for the whole run. Raises ArtifactError where the folder
    holds no finished run, a damaged run, or one of other samples or another model.
    """
    console.stage("model", str(settings.model))
    context = RunContext.of(settings, load(settings), console)
    with context.files.lock():
        found = finished_run(context, STAGE)
        profile = context.files.read_profile(context.calibrated) if context.files.stats.is_file() else None
        report = explained(context, found, profile, shipped=shipped, options=options)
        context.files.write_explained(report, context.origin("explain", context.fitted_on, ()))
    return report


def explain_strategy(
    settings: Settings, console: Console, shipped: ShippedOptions, options: ExplainSettings
) -> ExplainReport:
    """Explain the losses of a strategy file, write the result into `settings.folder`, and return it.

    The file is `settings.strategy`. Model, samples and device come from the settings, as for a replay; statistics are
    measured again. Raises ArtifactError where the file holds no strategy, or one of another model.
    """
    console.stage("model", str(settings.model))
    replaying = RunContext.of(replace(settings, command="replay"), load(settings), console)
    with replaying.files.lock(), TemporaryDirectory(prefix="quantpipe-") as folder:
        found = replayed_strategy(replaying)
        run = replace(settings, command="run", strategy=None, folder=Path(folder))
        context = RunContext.of(run, replaying.inputs, console)
        profile = calibrate(context, None, None)
        report = explained(context, found, profile, shipped=shipped, options=options)
        replaying.files.write_explained(report, replaying.origin("explain", replaying.fitted_on, ()))
    return report


def explained(
    context: RunContext,
    decision: SearchDecision,
    profile: Profile | None,
    *,
    shipped: ShippedOptions,
    options: ExplainSettings,
) -> ExplainReport:
    """Return the content of explain.json for a decision.

    `shipped` are options of the configuration that are tried for the whole run.
    """
    began = time.perf_counter()
    few = First(context.inputs.search, whole_batches(context.graph, options.samples))
    closeness = Closeness(few, context.inputs.search, options.culprits, options.per_channel)
    seen = inspect(context, decision, profile, shipped=shipped, closeness=closeness)
    return {
        "version": __version__,
        "model": context.graph.source,
        "file": None,
        "hardware": context.settings.spec.name,
        "shortfall": decision.report.get("shortfall"),
        "loss": seen.now.loss,
        "loss_before_recovery": seen.before.loss if seen.recovered else None,
        "loss_by_scales": None,
        "accuracy": {"float": seen.float_accuracy, "run": seen.now.accuracy},
        "samples": len(few),
        "doubts": list(context.inputs.doubts),
        "causes": seen.causes,
        "accumulators": seen.accumulators,
        "advice": seen.advice,
        "evaluations": seen.evaluations,
        "passes": seen.alone_passes,
        "seconds": time.perf_counter() - began,
    }
