"""Strategies from files: of an earlier search in this folder, or to be replayed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from quantpipe.artifacts import damage, digest_json, read_json, read_npz, read_origin
from quantpipe.artifacts.encode import digest_arrays
from quantpipe.errors import ArtifactError
from quantpipe.pipeline.candidate_weights import rounded
from quantpipe.pipeline.carry_strategy import carried, is_foreign
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.origin_parts import part
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.strategy_file import MOST, read_strategy, results_of, strategy_payload
from quantpipe.pipeline.trial import replayed_trial
from quantpipe.plan import NO_OVERRIDES, Overrides
from quantpipe.recover import overrides_from_arrays
from quantpipe.types import ResultsPart, SearchReport, Topology


def stored_strategy(context: RunContext) -> SearchDecision:
    """Return the result of an earlier search in this folder; ArtifactError if it has no such result."""
    if not context.files.strategy.is_file():
        raise ArtifactError(
            "there is no strategy of an earlier search in this folder; add search to stages or give command=replay "
            "strategy=FILE",
            stage="realize",
            where=str(context.files.strategy),
        )
    _refuse_seen(context)
    return _read(context, context.files.strategy)


def finished_strategy(context: RunContext) -> SearchDecision:
    """Return the strategy of the finished run in this folder, after recovery.

    Its ranges are as calibration found them, however large: a mask may reach as far as float32 does. Raises
    ArtifactError where it is damaged, or not of this model and device.
    """
    return _read(context, context.files.strategy, finished=True)


def finished_run(context: RunContext, stage: str) -> SearchDecision:
    """Return the strategy of the finished run in this folder, after a check that model and samples match.

    `stage` is the command, as errors name it. Raises ArtifactError where the run is not finished, or is of another
    model, other samples or another configuration.
    """
    files = context.files
    for path in (files.report, files.strategy, files.model):
        if not path.is_file():
            raise ArtifactError(
                "is not there: the run in this folder is not finished; run its command again to the end, then again",
                stage=stage,
                where=str(path),
            )
    for path, origin in ((files.topology, context.annotated), (files.stats, context.calibrated)):
        files.refuse_other(path, origin)
    then = read_json(files.data)
    for role, now in context.inputs.data_record().items():
        known = then.get(role)
        if isinstance(known, dict) and known.get("digest") != now["digest"]:
            raise ArtifactError(
                f"the {role} samples differ from the samples of the original run (now {now['samples']} with the digest "
                f"{str(now['digest'])[:20]}…, then {known.get('samples')} with {str(known.get('digest'))[:20]}…). Use "
                "the same samples",
                stage=stage,
                where=str(files.data),
            )
    return finished_strategy(context)


def _refuse_seen(context: RunContext) -> None:
    """Raise ArtifactError where the search has seen the samples that are to judge recovery."""
    origin = read_origin(context.files.strategy)
    searched = None if origin is None else origin.inputs.get("search_data")
    if context.inputs.aside is not None and searched not in (None, context.inputs.search.digest):
        raise ArtifactError(
            "the search for this strategy used other samples, possibly samples that should judge recovery. Give "
            "recover.holdout=0, or search again in another folder (hydra.run.dir) with recover=default",
            stage="recover",
            where=str(context.files.strategy),
        )


def replayed_strategy(context: RunContext) -> SearchDecision:
    """Return the strategy of `command=replay strategy=FILE`, or of one candidate of `strategy=…/trials.jsonl`.

    Raises ArtifactError where this folder holds another one.
    """
    path = context.settings.strategy
    if path is None:
        raise ArtifactError("there is no strategy to be replayed; give strategy=FILE", stage="replay")
    number = context.settings.replay.trial
    context.console.stage("replay", str(path) if number is None else f"trial {number} of {path}")
    found = _read(context, path) if number is None else replayed_trial(context, path, number)
    here = context.files.strategy
    if (broken := damage(here)) is not None:
        context.files.damaged(broken)
    elif here.is_file() and digest_json(read_json(here).get("strategy")) != digest_json(_decided(context, found)):
        raise ArtifactError(
            "this folder holds another strategy than the one to be replayed; choose another folder (hydra.run.dir)",
            stage="replay",
            where=str(here),
        )
    return found


def _decided(context: RunContext, decision: SearchDecision) -> object:
    """Return the decisions in the strategy's file."""
    spec, schema = context.settings.spec, context.settings.schema
    topology = context.variants.at(decision.strategy.structure)
    results: ResultsPart = {"search": {}, "rectified": []}
    payload = strategy_payload(
        context.graph.model_hash, spec, schema, topology, strategy=decision.strategy, results=results
    )
    return payload["strategy"]


def _read(context: RunContext, path: Path, *, finished: bool = False) -> SearchDecision:
    """Return the decision in a file; `finished`: of a finished run in this folder, with its recovered weights."""
    settings = context.settings
    payload, notes = read_json(path), None
    if settings.command == "replay" and is_foreign(payload, settings.spec, settings.schema):
        spec, schema = settings.spec, settings.schema
        payload, notes = carried(payload, str(path), spec, schema=schema, variants=context.variants)
    decided = payload.get("strategy")
    model = str(decided.get("model_hash") if isinstance(decided, dict) else None)
    forced = settings.command == "replay" and settings.replay.force and model != context.graph.model_hash
    expected = model if forced else context.graph.model_hash
    strategy = read_strategy(
        payload,
        str(path),
        expected,
        settings.spec,
        schema=settings.schema,
        variants=context.variants,
        most=math.inf if finished else MOST,
    )
    report, rectified, recovery = results_of(payload, str(path))
    found = SearchDecision(strategy, report, rectified)
    if settings.command == "replay" and notes is None:
        found = _with_other_settings(context, path, found)
    if forced:
        left = ", and its recovered weights are left out" if recovery.get("weights") else ""
        context.console.warn(f"replay.force: {path} was made for another model ({model[:20]}…); its names fit{left}")
        return found
    if settings.command != "replay" and not finished:
        return found
    if notes is not None:
        return _from_elsewhere(context, path, found, notes, recovered=bool(recovery.get("weights")))
    if not recovery:
        return replace(found, overrides=_as_searched(context, path, found))
    overrides = (
        replayed_overrides(path, recovery, context.variants.at(strategy.structure))
        if recovery.get("weights")
        else NO_OVERRIDES
    )
    return replace(found, overrides=overrides, recovery=recovery)


def _with_other_settings(context: RunContext, path: Path, decision: SearchDecision) -> SearchDecision:
    """Return the decision, with a note where the hardware file had the same name and other fields."""
    origin = read_origin(path)
    then = None if origin is None else origin.config.get("hardware")
    if origin is None or not isinstance(then, Mapping):
        return decision
    here = replace(origin, config={"hardware": part(context.settings, "hardware")})
    differing = here.differences(replace(origin, config={"hardware": then}))
    if not differing:
        return decision
    note = (
        f"{path} was made for {context.settings.spec.name} with other settings: {'; '.join(differing[:5])}. Ranges "
        "and bits are the file's; scales and integers follow the settings here, and recovered weights keep their "
        "integers"
    )
    return _noted(context, decision, note)


def _noted(context: RunContext, decision: SearchDecision, note: str) -> SearchDecision:
    """Warn, and return the decision with the warning among its notes."""
    context.console.warn(note)
    report = cast("SearchReport", {**decision.report, "notes": [*decision.report.get("notes", []), note]})
    return replace(decision, report=report)


def _from_elsewhere(
    context: RunContext, path: Path, decision: SearchDecision, notes: list[str], *, recovered: bool
) -> SearchDecision:
    """Return the decision of another device, and in its notes what did not fit here."""
    if recovered:
        notes = [*notes, "its recovered weights are left out: they are integers of its own scales"]
    said = "; ".join(notes) if notes else "all its numbers fit"
    return _noted(context, decision, f"{path} was made for another device or schema: {said}")


def _as_searched(context: RunContext, path: Path, decision: SearchDecision) -> Overrides:
    """Return the weights of a strategy that was not recovered after the search, such as a point of a Pareto front.

    ArtifactError where the search recovered its candidates' weights and this run is not set up to do so again.
    """
    searched, here = decision.report.get("weights", "nearest"), context.settings.search.weights
    if searched != "nearest" and searched != here:
        raise ArtifactError(
            f"its search rounded weights by search.weights={searched}; replay it with that, the same recover "
            "options and the same calibration samples",
            stage="replay",
            where=str(path),
        )
    return NO_OVERRIDES if searched == "nearest" else rounded(context, decision.strategy)


def replayed_overrides(strategy: Path, recovery: Mapping[str, Any], topology: Topology) -> Overrides:
    """Return the recovered weights of a strategy file, from its run folder.

    Raises ArtifactError when they are not there, or are not the ones that the strategy names.
    """
    path = RunFolder(strategy.parent.parent).recovered
    if not path.is_file():
        raise ArtifactError(
            f"its weights were recovered, and {path} is not there; replay it from its own run folder",
            stage="replay",
            where=str(strategy),
        )
    arrays = read_npz(path)
    if digest_arrays(arrays) != recovery["weights"]:
        raise ArtifactError("holds other weights than the strategy names", stage="replay", where=str(path))
    return overrides_from_arrays(arrays, topology, str(path))
