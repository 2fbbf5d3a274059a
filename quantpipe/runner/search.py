"""The search stage: its aim, known before anything is written; the search itself; and whether the target is met."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from quantpipe import stages
from quantpipe.artifacts import digest_json, is_current, read_json
from quantpipe.calibrate.estimators import clip_percents
from quantpipe.calibrate.table import ThresholdTable
from quantpipe.errors import Interrupted
from quantpipe.evaluate.candidate import CandidateRecipe, EvaluatorKind, objective_value
from quantpipe.evaluate.reference import Reference, reference_of
from quantpipe.filing import file_trials
from quantpipe.graph.execute import Session
from quantpipe.reporting import shortfall
from quantpipe.runner.job import ANNOTATE, Found, Job
from quantpipe.search import JsonlLog, Objective, SearchResult, Stopped, search_origin
from quantpipe.types import Profile, Score


@dataclass(frozen=True, eq=False)
class Aim:
    """What the search stage starts from."""

    reference: Reference
    objective: Objective
    log: JsonlLog

    @classmethod
    def of(cls, job: Job) -> Aim:
        """ArtifactError when the folder's log of trials belongs to another search."""
        settings, samples = job.settings, job.inputs.search
        session = Session(job.graph.model, where=job.graph.source)
        reference = reference_of(session, samples, job.graph.batch_size)
        objective = stages.make_objective(
            settings.objective, job.graph, job.topology, settings.spec, job.space, reference
        )
        # The budget is not part of the log's origin: a larger one goes on where the smaller one ended.
        identity = search_origin(
            job.space,
            objective,
            settings.seed,
            model=job.graph.model_hash,
            **job.fitted_on,
            **{key: digest_json(settings.config.get(key)) for key in ANNOTATE},
            threshold=f"{settings.estimator!r}, weights by {settings.weight_method}",
            algorithm=repr(settings.search.algorithm),
        )
        log = JsonlLog(job.files.trials, identity, job.space)
        log.read()
        return cls(reference, objective, log)


def search(job: Job, aim: Aim, profile: Profile) -> Found:
    """The best strategy within the budget. Interrupted after Ctrl-C, with the best one so far written."""
    settings = job.settings
    table = ThresholdTable(
        job.graph, job.topology, settings.schema, profile, settings.estimator, settings.weight_method
    )
    workers = settings.executor.open(
        CandidateRecipe(
            job.graph,
            job.topology,
            settings.spec,
            settings.schema,
            job.space,
            table,
            job.inputs.search,
            aim.reference,
            str(settings.objective["metric"]),
            str(settings.objective["cost"]),
            settings.backend,
            EvaluatorKind(settings.search.evaluator),
            settings.calibrate.memory_mb,
        )
    )
    job.console.stage("search", f"{settings.choices.get('search', '')}, space of {job.space.about:.3g} points")
    show = job.console.progress("search")
    limit = settings.search.max_evaluations or 0
    result = stages.search(
        job.space,
        workers,
        aim.objective,
        settings.search.algorithm,
        stages.Budget(settings.search.max_evaluations, settings.search.max_seconds),
        settings.seed,
        aim.log,
        lambda trial, best: show(trial.number + 1, limit, f"best {best.score.value:.5g} at {best.score.cost:.5g}"),
    )
    strategy = table.strategy(job.space.decode(result.best))
    current = is_current(job.files.strategy, job.searched)
    known = read_json(job.files.strategy)["results"]["search"] if current else {}
    found = Found(strategy, _report(job, result, aim.objective, known, workers.count), table.rectified(strategy))
    for note in found.report["notes"]:
        job.console.warn(note)
    if result.evaluations_new or not current:
        job.write_strategy(found, {}, job.searched)
    file_trials(settings.tracker, aim.log.read())
    if result.stopped is Stopped.INTERRUPTED:
        raise Interrupted(
            f"interrupted after {result.evaluations} evaluations; the best strategy so far is in "
            f"{job.files.strategy}. Resume with: {settings.resume_command}",
            stage="search",
        )
    return found


def judged(job: Job, found: Found, objective: Objective) -> Found:
    """Whether the target is met, after recovery; says so when it is not."""
    report = dict(found.report)
    if found.recovery.get("metrics"):
        value = objective_value(objective.metric, found.recovery["metrics"])
        score = Score(value, float(report["best_cost"]))
        report |= {"feasible": objective.feasible(score), "shortfall": shortfall(objective, score)}
    if report["shortfall"]:
        job.console.warn(report["shortfall"])
    return replace(found, report=report)


def _report(
    job: Job, result: SearchResult, objective: Objective, known: Mapping[str, Any], workers: int
) -> dict[str, Any]:
    """`known` is the report of an earlier run of this very search: its float pass was timed beside its trials."""
    pass_seconds = known.get("float_pass_seconds") or stages.float_pass(job.graph, job.inputs.search)
    return {
        "algorithm": job.settings.choices.get("search", type(job.settings.search.algorithm).__name__),
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "evaluations_per_second": result.evaluations / result.seconds if result.seconds > 0 else None,
        "pruned": result.pruned,
        "evaluator": job.settings.search.evaluator,
        "workers": workers,
        "float_pass_seconds": pass_seconds,
        "best_value": result.score.value,
        "best_cost": result.score.cost,
        "feasible": result.feasible,
        "shortfall": shortfall(objective, result.score),
        "stopped": result.stopped.value,
        "space_size": job.space.about,
        "metrics": dict(result.score.metrics),
        "form": objective.form.value,
        "notes": _notes(job, result),
        "trace": [[t.number, t.score.value] for t in result.trace],
        "trace_cost": [[t.number, t.score.cost] for t in result.trace],
    }


def _notes(job: Job, result: SearchResult) -> list[str]:
    """What the user should know of how the search went: so far, that it had thresholds to search and did not."""
    if clip_percents(job.settings.estimator) and result.evaluations == 1:
        return [
            "threshold=search leaves every range to the search, and this search looked at a single point: all ranges "
            "are those of threshold.activations.base; take search=annealing, greedy_edge or greedy, or a threshold "
            "option that estimates"
        ]
    return []
