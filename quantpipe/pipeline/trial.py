"""A candidate of an earlier search by its number in trials.jsonl, made a strategy again."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from quantpipe.annotate.choices import bits_key
from quantpipe.annotate.range_choices import range_key
from quantpipe.artifacts import digest_json
from quantpipe.errors import ArtifactError, nearest
from quantpipe.pipeline.calibrate import calibrate
from quantpipe.pipeline.candidate_weights import rounded, rounding_origin
from quantpipe.pipeline.context import ANNOTATE, RunContext, SearchDecision
from quantpipe.pipeline.origin_parts import part
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.search import LoggedTrial, find_trial
from quantpipe.types import Profile, ReplayedSearch, SearchReport
from quantpipe.types.choice_key import OF_RANGES, ChoiceKind, read_key


def replayed_trial(context: RunContext, log: Path, number: int) -> SearchDecision:
    """Return the strategy of one line of a log.

    Ranges are estimated again, from the statistics next to the log if they exist, else from the calibration samples.

    Raises ArtifactError for a log of another model (unless `replay.force=true` and all names fit), hardware, schema,
    annotation, estimator, `search.weights` or calibration data, and for an unknown number.
    """
    trial = find_trial(log, number)
    forced = _check_origin(context, log, trial)
    _check_names(context, log, trial)
    context = _as_decided(context, trial)
    settings = context.settings
    profile = calibrate(context, None if forced else _beside(context, log))
    table = context.thresholds(profile)
    strategy = table.strategy(trial.choices)
    score = trial.trial.score
    if score.pruned:
        context.console.warn(
            f"trial {number} was given up when it could not win any more: its value in {log} is a bound"
        )
    report: ReplayedSearch = {
        "algorithm": f"trial {trial.trial.number}",
        "trial": trial.trial.number,
        "best_value": score.value,
        "best_cost": score.cost,
        "metrics": dict(score.metrics),
        "weights": settings.search.weights,
    }
    if context.rules:
        report["threshold_rules"] = context.rules
    return SearchDecision(strategy, cast("SearchReport", report), table.rectified(strategy), rounded(context, strategy))


def _as_decided(context: RunContext, trial: LoggedTrial) -> RunContext:
    """Return the run with what that run had decided before its search (`precision=auto`), which its log names."""
    further = {key: option for key, option in trial.choices.items() if key not in {c.key for c in context.whole}}
    read = [found for key in further if (found := read_key(key)) is not None]
    floats = [key.subject for key in read if key.kind is ChoiceKind.FLOAT]
    wholes = [group.key for group in context.variants.reference.groups if range_key(group.key) in further]
    sites = context.variants.reference.raisable
    raised = [site.key for site in sites if int(trial.choices.get(bits_key(site.key), 0)) > site.max_bits]
    return context.offering(floats, wholes, raised, decided=False) if floats or wholes or raised else context


def _check_origin(context: RunContext, log: Path, trial: LoggedTrial) -> bool:
    """Check the origin; return whether the user forces another model."""
    settings = context.settings
    here = {key: digest_json(part(settings, key)) for key in ANNOTATE} | {
        "threshold": settings.estimation,
        "calibrate_data": context.inputs.calibrate.digest,
        "weights": rounding_origin(settings).get("weights"),
    }
    differing = [key for key, value in here.items() if trial.origin.get(key) != value]
    other = bool(trial.origin.get("model") != context.graph.model_hash)
    if other and not settings.replay.force:
        differing.insert(0, "model")
    if other and settings.replay.force and differing == ["calibrate_data"]:
        differing = []  # another model comes with samples of its own
    if differing:
        raise ArtifactError(
            f"it belongs to another {', '.join(differing)}; replay it with the settings it was made with"
            + (", or give replay.force=true where only the model is another one" if differing[0] == "model" else ""),
            stage="replay",
            where=str(log),
        )
    if other:
        context.console.warn(f"replay.force: {log} was made for another model; its names fit")
    return other


def _check_names(context: RunContext, log: Path, trial: LoggedTrial) -> None:
    every = context.variants.space(context.percents, context.ranges, every=True, raised=True)
    legal = {choice.key: choice.options for choice in every}
    ranges = {choice.key for choice in every if choice.kind in OF_RANGES}  # a log of an earlier version has fewer
    for key, options in legal.items():
        if key not in trial.choices and key in ranges:
            continue
        if key not in trial.choices:
            raise ArtifactError(
                f"it has no entry for {key}{nearest(key, trial.choices)}", stage="replay", where=str(log)
            )
        if trial.choices[key] not in options:
            raise ArtifactError(
                f"{key} is {trial.choices[key]} there; legal are {', '.join(map(str, options))}",
                stage="replay",
                where=str(log),
            )


def _beside(context: RunContext, log: Path) -> Profile | None:
    """Return the statistics of the log's own run folder, or of this one."""
    for folder in (RunFolder(log.absolute().parent.parent, context.console.warn), context.files):
        found = folder.read_profile(context.calibrated)
        if found is not None:
            return found
    return None
