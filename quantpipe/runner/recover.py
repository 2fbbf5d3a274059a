"""The recovery stage: better weights and biases for the strategy as it is, kept where they help."""

from __future__ import annotations

from dataclasses import replace

from quantpipe import stages
from quantpipe.plan import NO_OVERRIDES
from quantpipe.recover import Climbed, KeptLayers
from quantpipe.runfolder import RunFolder
from quantpipe.runner import decisions
from quantpipe.runner.job import Found, Job
from quantpipe.runner.rounded import rounded
from quantpipe.types import Profile


def recover(job: Job, found: Found, profile: Profile | None, files: RunFolder | None = None) -> Found:
    """What was found, with the overrides of the recovery steps that helped; without steps, with those that the search
    gave its candidates. `profile`: the statistics behind the strategy, if this run has them. `files`: where they are
    kept, if not in the run's own place."""
    job, settings, options = job.settled(found.strategy), job.settings, job.settings.recover
    files = files or job.files
    if not options.steps and settings.search.weights == "nearest":
        return found
    origin = job.recovered(files.digest_of(found.strategy, NO_OVERRIDES))
    stored = files.read_recovered(origin, job.topology)
    kept = KeptLayers(files.recovered.with_name("partial"), replace(origin, kind="recover/partial"), files.damaged)
    if stored is not None:
        kept.clear()  # a kill may have come between what was recovered and this
        job.console.stage("recover", "from an earlier run in this folder")
        return replace(found, overrides=stored[0], recovery=stored[1])
    start = found.overrides if found.overrides.weights else rounded(job, found.strategy)
    if not options.steps:
        return replace(found, overrides=start, recovery=files.write_recovered(Climbed(start, ()), origin))
    job.console.stage("recover", ", ".join(options.names))
    climbed = stages.recover(
        job.graph,
        job.topology,
        settings.spec,
        settings.schema,
        found.strategy,
        job.inputs.calibrate,
        job.inputs.judge,
        options,
        settings.calibrate.memory_mb,
        settings.seed,
        job.console.progress("recover"),
        job.inputs.output,
        kept,
        start,
        settings.estimator,
        settings.weight_method,
        profile,
        settings.value_of,
    )
    recovery = files.write_recovered(climbed, origin)
    kept.clear()
    decisions.recovered(recovery)
    return replace(found, overrides=climbed.overrides, recovery=recovery)
