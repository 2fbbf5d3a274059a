"""The search stage: its aim, known before anything is written; the search itself; and whether the target is met."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from quantpipe import stages
from quantpipe.artifacts import digest_json, read_json
from quantpipe.calibrate.estimators import clip_percents
from quantpipe.calibrate.table import ThresholdTable
from quantpipe.errors import Interrupted
from quantpipe.evaluate.candidate import CandidateRecipe, EvaluatorKind, objective_value
from quantpipe.evaluate.reference import Reference, reference_of
from quantpipe.evaluate.timed import TimedMeasure
from quantpipe.executors import Workers
from quantpipe.filing import file_trials
from quantpipe.graph.execute import Session
from quantpipe.plan import NO_OVERRIDES, Planner
from quantpipe.rendering import Rendered
from quantpipe.report.text import number
from quantpipe.reporting import shortfall
from quantpipe.runner import decisions
from quantpipe.runner.job import ANNOTATE, Found, Job
from quantpipe.runner.pareto import front_current, picked, write_front
from quantpipe.runner.rounded import candidate_layer, moments_of, rounding_origin
from quantpipe.search import CostKind, JsonlLog, Measure, Objective, SearchResult, Stopped, search_origin
from quantpipe.types import Point, Profile, Samples, Score


@dataclass(frozen=True, eq=False)
class Aim:
    """What the search stage starts from."""

    reference: Reference
    objective: Objective
    judging: Objective
    """The same on the samples that judge recovery, where the float model may have another accuracy."""
    log: JsonlLog

    @classmethod
    def of(cls, job: Job) -> Aim:
        """ArtifactError when the folder's log of trials belongs to another search."""
        settings, session = job.settings, Session(job.graph.model, where=job.graph.source)

        def on(samples: Samples) -> tuple[Reference, Objective]:
            found = reference_of(session, samples, job.graph.batch_size, job.inputs.output, settings.value_of)
            given = (settings.objective, job.graph, job.variants, settings.spec, job.space, found)
            return found, stages.make_objective(*given)

        reference, objective = on(job.inputs.search)
        judging = objective if job.inputs.aside is None else on(job.inputs.aside)[1]
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
            **rounding_origin(settings),
        )
        log = JsonlLog(job.files.trials, identity, job.space, job.console.warn)
        log.read()
        return cls(reference, objective, judging, log)


def search(job: Job, aim: Aim, profile: Profile) -> Found:
    """The best strategy within the budget. Interrupted after Ctrl-C, with the best one so far written."""
    settings = job.settings
    table = ThresholdTable(
        job.graph, job.topology, settings.schema, profile, settings.estimator, settings.weight_method, job.branches
    )
    planner = Planner(job.graph, job.topology, settings.spec, settings.schema)
    timed = aim.objective.cost is CostKind.LATENCY
    recipe = CandidateRecipe(
        job.graph,
        job.topology,
        settings.spec,
        settings.schema,
        job.space,
        table,
        job.inputs.search,
        aim.reference,
        str(settings.objective["metric"]),
        "bits" if timed else str(settings.objective["cost"]),
        settings.backend,
        EvaluatorKind(settings.search.evaluator),
        settings.calibrate.memory_mb,
        moments_of(job),
        candidate_layer(settings),
        job.branches,
    )
    aim.log.mend()
    workers = settings.executor.open(recipe)
    job.console.stage("search", f"{settings.choices.get('search', '')}, space of {number(job.space.size)} points")
    show = job.console.progress("search")
    limit = settings.search.max_evaluations or 0
    with closing(workers):
        result = stages.search(
            job.space,
            _timed(job, workers, table, planner) if timed else workers,
            aim.objective,
            settings.search.algorithm,
            stages.Budget(settings.search.max_evaluations, settings.search.max_seconds, settings.search.target),
            settings.seed,
            aim.log,
            lambda trial, best: show(trial.number + 1, limit, f"best {best.score.value:.5g} at {best.score.cost:.5g}"),
            singly=timed,
        )
    point, score, front = picked(job, result, aim.objective)
    strategy = table.strategy(job.space.decode(point))
    current = job.files.current(job.files.strategy, job.searched)
    known = read_json(job.files.strategy)["results"]["search"] if current else {}
    report = {**_report(job, result, score, aim.objective, known, workers), **front}
    variants = recipe.variants(planner)
    overrides = NO_OVERRIDES if variants is None else variants.overrides(strategy)
    found = Found(strategy, report, table.rectified(strategy), overrides)
    decisions.searched(found.report)
    for note in found.report["notes"]:
        job.console.warn(note)
    if front and not (current and _same(known, report) and front_current(job, result.front)):
        write_front(job, result.front, found, table)
    elif not (current and _same(known, report)):
        job.write_strategy(found, {}, job.searched)
    file_trials(settings.tracker, aim.log.read())
    if result.stopped is Stopped.INTERRUPTED:
        raise Interrupted(
            f"interrupted after {result.evaluations} evaluations; the best strategy so far is in "
            f"{job.files.strategy}. Resume with: {settings.resume_command}",
            stage="search",
        )
    return found


def _same(known: Mapping[str, Any], report: Mapping[str, Any]) -> bool:
    """Whether an earlier run of this search came as far as this one, and ended alike: its file can stay."""
    return all(known.get(name) == report[name] for name in ("evaluations", "stopped"))


def judged(job: Job, found: Found, objective: Objective) -> Found:
    """Whether the target is met, after recovery, on the samples that judged it; says so when it is not."""
    report = dict(found.report)
    if found.recovery.get("metrics") and not objective.open_ended:
        value = objective_value(objective.metric, found.recovery["metrics"])
        score = Score(value, float(report["best_cost"]))
        samples = "the search samples" if job.inputs.aside is None else "the samples that judge recovery"
        missed = shortfall(objective, score, samples, doubtful=bool(job.inputs.doubts))
        report |= {"feasible": objective.feasible(score), "shortfall": missed}
    if report["shortfall"]:
        job.console.warn(report["shortfall"])
    return replace(found, report=report)


def _timed(job: Job, candidates: Measure, table: ThresholdTable, planner: Planner) -> Measure:
    """Candidates whose cost is their latency, realized as the run's own result will be."""
    objective = job.settings.objective

    def realized(point: Point) -> Rendered:
        strategy = table.strategy(job.space.decode(point))
        topology = job.variants.at(strategy.structure)
        plan = planner.on(topology).plan(strategy)
        return stages.realize(job.graph, topology, plan, job.settings.backend)

    session = Session(job.graph.model, where=job.graph.source)
    feeds = next(iter(job.inputs.search.batches(job.graph.fixed_batch or 1))).inputs
    return TimedMeasure(
        candidates, realized, session, feeds, int(objective["latency_runs"]), float(objective["latency_seconds"])
    )


def _report(
    job: Job, result: SearchResult, score: Score, objective: Objective, known: Mapping[str, Any], workers: Workers
) -> dict[str, Any]:
    """`score` is that of the point taken. `known` is the report of an earlier run of this very search: its float pass
    was timed beside its trials."""
    pass_seconds = known.get("float_pass_seconds") or stages.float_pass(job.graph, job.inputs.search)
    return {
        "algorithm": job.settings.choices.get("search", type(job.settings.search.algorithm).__name__),
        "evaluations": result.evaluations,
        "seconds": result.seconds,
        "evaluations_per_second": result.evaluations / result.seconds if result.seconds > 0 else None,
        "pruned": result.pruned,
        "weights": job.settings.search.weights,
        "evaluator": _kind(workers, known, job.settings.search.evaluator),
        "workers": workers.count,
        "float_pass_seconds": pass_seconds,
        "best_value": score.value,
        "best_cost": score.cost,
        "feasible": objective.feasible(score),
        "shortfall": shortfall(objective, score, doubtful=bool(job.inputs.doubts)),
        "stopped": result.stopped.value,
        "space_size": job.space.about,
        "space_log10": job.space.log10,
        "metrics": dict(score.metrics),
        "metric": objective.metric.value,
        "cost": objective.cost.value,
        "pinned": dict(job.pinned),
        "form": objective.form.value,
        "notes": _notes(job, result),
        "trace": [[t.number, t.score.value] for t in result.trace],
        "trace_cost": [[t.number, t.score.cost] for t in result.trace],
    }


def _notes(job: Job, result: SearchResult) -> list[str]:
    """What the user should know of how the search went: that it had thresholds to search and did not, and that it saw
    what judges recovery."""
    notes = []
    if clip_percents(job.settings.estimator) and result.evaluations == 1:
        notes.append(
            "threshold=search leaves every range to the search, and this search looked at a single point: all ranges "
            "are those of threshold.activations.base; take search=annealing, greedy_edge or greedy, or a threshold "
            "option that estimates"
        )
    if job.settings.holdout and job.inputs.aside is None:
        notes.append(
            f"the search samples ({len(job.inputs.search)}) cannot be divided (recover.holdout), so what judges the "
            "steps of recovery has been seen by the search"
        )
    return notes


def _kind(workers: Workers, known: Mapping[str, Any], asked: str) -> str:
    """What `auto` came to; where nothing was measured now, what an earlier run of this search says."""
    return workers.kind if workers.kind != EvaluatorKind.AUTO else str(known.get("evaluator", asked))
