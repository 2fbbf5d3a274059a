"""Strategies from files: of an earlier search in this folder, or to be replayed."""

from __future__ import annotations

from pathlib import Path

from quantpipe.artifacts import read_json
from quantpipe.errors import ArtifactError
from quantpipe.plan import NO_OVERRIDES
from quantpipe.runfolder import replayed_overrides
from quantpipe.runner.job import Found, Job
from quantpipe.strategyfile import read_strategy


def stored_strategy(job: Job) -> Found:
    """What an earlier search left in this folder; ArtifactError if nothing."""
    if not job.files.strategy.is_file():
        raise ArtifactError(
            "there is no strategy of an earlier search in this folder; add search to stages or give command=replay "
            "strategy=FILE",
            stage="realize",
            where=str(job.files.strategy),
        )
    return _read(job, job.files.strategy)


def replayed_strategy(job: Job) -> Found:
    """The strategy of `command=replay strategy=FILE`. ArtifactError where this folder holds another one."""
    path = job.settings.strategy
    if path is None:
        raise ArtifactError("there is no strategy to be replayed; give strategy=FILE", stage="replay")
    job.console.stage("replay", str(path))
    found, here = _read(job, path), job.files.strategy
    if here.is_file() and read_json(here).get("strategy") != read_json(path).get("strategy"):
        raise ArtifactError(
            "this folder holds another strategy than the one to be replayed; choose another folder (hydra.run.dir)",
            stage="replay",
            where=str(here),
        )
    return found


def _read(job: Job, path: Path) -> Found:
    settings = job.settings
    payload = read_json(path)
    strategy = read_strategy(payload, str(path), job.graph.model_hash, settings.spec, settings.schema, job.topology)
    results = payload.get("results", {})
    recovery = results.get("recover", {})
    found = Found(strategy, results.get("search", {}), results.get("rectified", []))
    if settings.command != "replay" or not recovery:
        return found
    overrides = replayed_overrides(path, recovery, job.topology) if recovery.get("weights") else NO_OVERRIDES
    return Found(found.strategy, found.report, found.rectified, overrides, recovery)
