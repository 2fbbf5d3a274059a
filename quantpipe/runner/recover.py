"""The recovery stage: better weights and biases for the strategy as it is, kept where they help."""

from __future__ import annotations

from dataclasses import replace

from quantpipe import stages
from quantpipe.plan import NO_OVERRIDES
from quantpipe.recover import KeptLayers
from quantpipe.runner.job import Found, Job


def recover(job: Job, found: Found) -> Found:
    """What was found, with the overrides of the recovery steps that helped."""
    settings, options = job.settings, job.settings.recover
    if not options.steps:
        return found
    origin = job.recovered(job.files.digest_of(found.strategy, NO_OVERRIDES))
    stored = job.files.read_recovered(origin, job.topology)
    if stored is not None:
        job.console.stage("recover", "from an earlier run in this folder")
        return replace(found, overrides=stored[0], recovery=stored[1])
    job.console.stage("recover", ", ".join(options.steps))
    kept = KeptLayers(job.files.recovered.with_name("partial"), replace(origin, kind="recover/partial"))
    climbed = stages.recover(
        job.graph,
        job.topology,
        settings.spec,
        settings.schema,
        found.strategy,
        job.inputs.calibrate,
        job.inputs.search,
        options,
        settings.calibrate.memory_mb,
        settings.seed,
        job.console.progress("recover"),
        job.inputs.output,
        kept,
    )
    recovery = job.files.write_recovered(climbed, origin)
    kept.clear()
    return replace(found, overrides=climbed.overrides, recovery=recovery)
