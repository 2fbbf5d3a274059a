"""The order of the stages over a run folder: skip, resume, refuse.

A stage whose artifact is in the run folder with the same origin is skipped; an artifact of another model or
configuration is refused by name before anything is written. Everything is written atomically. An interrupted search
leaves its best strategy so far.
"""

from __future__ import annotations

from typing import Any

from quantpipe.inputs import load
from quantpipe.runner.calibrate import calibrate
from quantpipe.runner.finish import finish
from quantpipe.runner.job import Job
from quantpipe.runner.profile import loaded_profile
from quantpipe.runner.recover import recover
from quantpipe.runner.refine import refine
from quantpipe.runner.search import Aim, judged, search
from quantpipe.runner.stored import replayed_strategy, stored_strategy
from quantpipe.settings import Console, Settings


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """Execute the stages and return the report (of the last stage that ran; complete after evaluate).

    Raises AgreementError when simulation and realization differ and `verify=fail`, Interrupted after Ctrl-C.
    """
    console.stage("model", str(settings.model))
    inputs = load(settings)
    for note in (*inputs.doubts, *inputs.notes, *inputs.graph.notes):
        console.warn(note)
    job = Job.of(settings, inputs, console)
    with job.files.lock():
        return _execute(job)


def _execute(job: Job) -> dict[str, Any]:
    wanted = set(job.settings.stages)
    _refuse_another_run(job)
    replayed = replayed_strategy(job) if job.settings.command == "replay" else None
    aim = Aim.of(job) if "search" in wanted and replayed is None else None
    stored = job.files.read_profile(job.calibrated) if replayed is None else None
    needed = bool(wanted & {"calibrate", "search"}) and replayed is None
    loaded = loaded_profile(job.settings, job.graph, job.variants.measured) if needed and stored is None else None
    job.files.write_config(job.settings.config, job.origin("config", {}, ()))
    job.files.write_data(job.inputs.data_record(), job.origin("data", job.judged_on, ("dataset", "seed")))
    _annotate(job)
    if replayed is not None:
        return finish(job, replayed, None)
    profile = calibrate(job, stored, loaded) if needed else stored
    found = search(job, aim, profile) if aim is not None and profile is not None else None
    if not {"realize", "evaluate"} & wanted:
        if found is not None and aim is not None:
            judged(job, found, aim.judging)
        return {}
    if found is not None and aim is not None and profile is not None and job.settings.search.refine:
        return finish(job, judged(job, refine(job, found, aim, profile), aim.judging), profile)
    recovered = recover(job, found or stored_strategy(job), profile)
    return finish(job, judged(job, recovered, aim.judging) if aim is not None else recovered, profile)


def _refuse_another_run(job: Job) -> None:
    """Whatever the folder holds must be of this model, data and configuration."""
    made = {
        job.files.topology: job.annotated,
        job.files.stats: job.calibrated,
        job.files.recovered: job.recovered(""),
        job.files.model: job.realized(""),
        job.files.report: job.evaluated("", {}),
    }
    for path, origin in made.items():
        job.files.refuse_other(path, origin)


def _annotate(job: Job) -> None:
    integer = sum(job.topology.node_conds.values())
    job.console.stage("annotate", f"{integer} of {len(job.graph.nodes)} nodes in integers, {len(job.space)} choices")
    job.files.write_annotation(job.topology, job.space, job.annotated, job.chosen_from)
