"""Run the calibrate stage.

Statistics come from a file that was asked for, or from this folder, or from the cache; the model is run only for what
is in none of these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from quantpipe.artifacts import Origin, digest_json
from quantpipe.artifacts.checkpoint import StateCheckpoint
from quantpipe.calibrate.cache import StatsCache, cache_folder, merged
from quantpipe.calibrate.measure import Detail, measure
from quantpipe.calibrate.passes import lacking, per_channel_tensors
from quantpipe.pipeline.context import RunContext
from quantpipe.types import Profile, TensorStats


def calibrate(job: RunContext, stored: Profile | None, loaded: Profile | None = None) -> Profile:
    """Return the profile of all measured tensors.

    `stored` is the profile in the run folder, `loaded` the profile from a file.
    """
    if loaded is not None:
        return _from_file(job, loaded)
    if stored is not None and stored.loaded:
        job.console.stage("calibrate", f"statistics of {stored.loaded['file']}, from an earlier run in this folder")
        job.files.keep_profile(stored, job.calibrated)
        return stored
    if not job.variants.measured:
        return _unneeded(job, stored)
    count = f"{len(job.inputs.calibrate)} samples"
    missing = _missing(job, stored.tensors if stored is not None else {})
    if stored is not None and not missing:
        job.console.stage("calibrate", f"{count}, from an earlier run in this folder")
        job.files.keep_profile(stored, job.calibrated)
        return stored
    folder = cache_folder(job.settings.calibrate.cache)
    cache = None if folder is None else StatsCache.of(folder, job.graph, job.inputs.calibrate, job.console.warn)
    cached = cache.read() if cache is not None else None
    parts = [p for p in (stored, cached) if p is not None]
    known = merged(stored.tensors if stored else {}, cached.tensors if cached else {})
    missing = _missing(job, known)
    if not missing and cache is not None:
        job.console.stage("calibrate", f"{count}, from the cache ({cache.path})")
    else:
        job.console.stage("calibrate", ", ".join([count, *_why(job, known, missing)]))
        parts.append(_measured(job, missing))
        known = merged(known, parts[-1].tensors)
        if cache is not None:
            cache.write(parts[-1])
    seconds = sum(p.seconds for p in parts)
    profile = replace(parts[-1], tensors={t: known[t] for t in job.variants.measured}, seconds=seconds)
    job.files.write_profile(profile, job.calibrated)
    return profile


def _unneeded(job: RunContext, stored: Profile | None) -> Profile:
    """Return a profile of no tensors: every range is given."""
    job.console.stage("calibrate", "no run: every range is given")
    if stored is None:
        stored = Profile(job.graph.model_hash, len(job.inputs.calibrate), {})
        job.files.write_profile(stored, job.calibrated)
    return stored


def _from_file(job: RunContext, loaded: Profile) -> Profile:
    job.console.stage("calibrate", f"no run: statistics of {loaded.loaded['file']} ({loaded.loaded['format']})")
    for warning in loaded.loaded["warnings"]:
        job.console.warn(f"{job.settings.profile}: {warning}")
    job.files.write_profile(loaded, job.calibrated)
    return loaded


def _missing(job: RunContext, known: Mapping[str, TensorStats]) -> list[str]:
    settings, measured = job.settings.calibrate, job.variants.measured
    return lacking(job.graph, known, measured, settings.statistics == "extremes", by_channel=_by_channel(job))


def _by_channel(job: RunContext) -> frozenset[str]:
    return per_channel_tensors(job.variants.measured, job.settings.calibrate.per_channel)


def _why(job: RunContext, known: Mapping[str, TensorStats], missing: Sequence[str]) -> list[str]:
    """Return unexpected facts about this measurement, for the user."""
    notes = []
    kept = len(job.variants.measured) - len(missing)
    if kept:
        notes.append(f"{kept} of {kept + len(missing)} tensors known from earlier runs")
    if any(t in known and not known[t].full for t in missing):
        notes.append("measured again: an earlier run kept only extremes")
    if _partial(job, missing).read() is not None:
        notes.append("going on where an interrupted run was")
    return notes


def _measured(job: RunContext, tensors: Sequence[str]) -> Profile:
    settings = job.settings.calibrate
    return measure(
        job.graph,
        tensors,
        job.inputs.calibrate,
        settings.memory_mb,
        progress=job.console.progress("calibrate"),
        # What only other choices store may be infinite: a candidate with such a choice is no candidate then.
        detail=Detail(
            settings.statistics == "extremes", _by_channel(job), finite=frozenset(job.variants.base.measured)
        ),
        checkpoint=_partial(job, tensors),
    )


def _partial(job: RunContext, tensors: Sequence[str]) -> StateCheckpoint:
    """Return the kept state, which fits only a measurement that is cut into the very same passes."""
    settings = job.settings.calibrate
    inputs = {**job.calibrated.inputs, "tensors": digest_json(list(tensors))}
    config = {key: getattr(settings, key) for key in ("memory_mb", "statistics", "per_channel")}
    return StateCheckpoint(job.files.partial, Origin("calibrate/partial", inputs, config), job.files.damaged)
