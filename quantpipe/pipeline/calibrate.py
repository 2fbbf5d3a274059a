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


def calibrate(context: RunContext, stored: Profile | None, loaded: Profile | None = None) -> Profile:
    """Return the profile of all measured tensors.

    `stored` is the profile in the run folder, `loaded` the profile from a file.
    """
    if loaded is not None:
        return _from_file(context, loaded)
    if stored is not None and stored.loaded:
        context.console.stage("calibrate", f"statistics of {stored.loaded['file']}, from an earlier run in this folder")
        context.files.keep_profile(stored, context.calibrated)
        return stored
    if not context.variants.measured:
        return _unneeded(context, stored)
    count = f"{len(context.inputs.calibrate)} samples"
    missing = _missing(context, stored.tensors if stored is not None else {})
    if stored is not None and not missing:
        context.console.stage("calibrate", f"{count}, from an earlier run in this folder")
        context.files.keep_profile(stored, context.calibrated)
        return stored
    folder = cache_folder(context.settings.calibrate.cache)
    cache = (
        None if folder is None else StatsCache.of(folder, context.graph, context.inputs.calibrate, context.console.warn)
    )
    cached = cache.read() if cache is not None else None
    parts = [p for p in (stored, cached) if p is not None]
    known = merged(stored.tensors if stored else {}, cached.tensors if cached else {})
    missing = _missing(context, known)
    if not missing and cache is not None:
        context.console.stage("calibrate", f"{count}, from the cache ({cache.path})")
    else:
        context.console.stage("calibrate", ", ".join([count, *_why(context, known, missing)]))
        parts.append(_measured(context, missing))
        known = merged(known, parts[-1].tensors)
        if cache is not None:
            cache.write(parts[-1])
    seconds = sum(p.seconds for p in parts)
    profile = replace(parts[-1], tensors={t: known[t] for t in context.variants.measured}, seconds=seconds)
    context.files.write_profile(profile, context.calibrated)
    return profile


def _unneeded(context: RunContext, stored: Profile | None) -> Profile:
    """Return a profile of no tensors: every range is given."""
    context.console.stage("calibrate", "no run: every range is given")
    if stored is None:
        stored = Profile(context.graph.model_hash, len(context.inputs.calibrate), {})
        context.files.write_profile(stored, context.calibrated)
    return stored


def _from_file(context: RunContext, loaded: Profile) -> Profile:
    context.console.stage("calibrate", f"no run: statistics of {loaded.loaded['file']} ({loaded.loaded['format']})")
    for warning in loaded.loaded["warnings"]:
        context.console.warn(f"{context.settings.profile}: {warning}")
    context.files.write_profile(loaded, context.calibrated)
    return loaded


def _missing(context: RunContext, known: Mapping[str, TensorStats]) -> list[str]:
    settings, measured = context.settings.calibrate, context.variants.measured
    return lacking(context.graph, known, measured, settings.statistics == "extremes", by_channel=_by_channel(context))


def _by_channel(context: RunContext) -> frozenset[str]:
    return per_channel_tensors(context.variants.measured, context.settings.calibrate.per_channel)


def _why(context: RunContext, known: Mapping[str, TensorStats], missing: Sequence[str]) -> list[str]:
    """Return unexpected facts about this measurement, for the user."""
    notes = []
    kept = len(context.variants.measured) - len(missing)
    if kept:
        notes.append(f"{kept} of {kept + len(missing)} tensors known from earlier runs")
    if any(t in known and not known[t].full for t in missing):
        notes.append("measured again: an earlier run kept only extremes")
    if _partial(context, missing).read() is not None:
        notes.append("going on where an interrupted run was")
    return notes


def _measured(context: RunContext, tensors: Sequence[str]) -> Profile:
    settings = context.settings.calibrate
    return measure(
        context.graph,
        tensors,
        context.inputs.calibrate,
        settings.memory_mb,
        progress=context.console.progress("calibrate"),
        # What only other choices store may be infinite: a candidate with such a choice is no candidate then.
        detail=Detail(
            settings.statistics == "extremes", _by_channel(context), finite=frozenset(context.variants.base.measured)
        ),
        checkpoint=_partial(context, tensors),
    )


def _partial(context: RunContext, tensors: Sequence[str]) -> StateCheckpoint:
    """Return the kept state, which fits only a measurement that is cut into the very same passes."""
    settings = context.settings.calibrate
    inputs = {**context.calibrated.inputs, "tensors": digest_json(list(tensors))}
    config = {key: getattr(settings, key) for key in ("memory_mb", "statistics", "per_channel")}
    return StateCheckpoint(context.files.partial, Origin("calibrate/partial", inputs, config), context.files.damaged)
