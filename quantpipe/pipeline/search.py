"""The search stage: its aim, known before anything is written; the search itself; and whether the target is met."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from math import isnan
from pathlib import Path
from typing import Any

from quantpipe.annotate.absent import absent
from quantpipe.artifacts import digest_json, read_json
from quantpipe.calibrate.threshold_table import ThresholdTable
from quantpipe.errors import Interrupted
from quantpipe.graph.execute import Session
from quantpipe.lowering import Rendered
from quantpipe.metrics.reference import Reference, objective_value, reference_of
from quantpipe.pipeline import decisions, stages
from quantpipe.pipeline.build_report import shortfall
from quantpipe.pipeline.candidate_weights import candidate_layer, moments_of, rounding_origin
from quantpipe.pipeline.confirm import RangeJudge, confirmed
from quantpipe.pipeline.context import ANNOTATE, RunContext, SearchDecision
from quantpipe.pipeline.log_run import file_trials
from quantpipe.pipeline.origin_parts import part
from quantpipe.pipeline.pareto import front_current, picked, write_front
from quantpipe.pipeline.recover_if_missed import still_missed
from quantpipe.pipeline.search_benefit import Worth, contributed, opening, weighed
from quantpipe.pipeline.search_report import search_report
from quantpipe.pipeline.settings import Settings
from quantpipe.plan import NO_OVERRIDES, Planner
from quantpipe.scoring.candidate import CandidateRecipe, EvaluatorKind
from quantpipe.scoring.timed import TimedMeasure
from quantpipe.scoring.workers import Workers
from quantpipe.search import (
    Budget,
    CostKind,
    JsonlLog,
    Measure,
    Metric,
    Objective,
    SearchResult,
    Stopped,
    changed_choices,
    reaches,
    search_origin,
)
from quantpipe.types import (
    ConfirmationPart,
    ContributionRow,
    FrontPart,
    Point,
    PrecisionRecord,
    Profile,
    QuantPlan,
    Samples,
    Score,
    SearchReport,
)


@dataclass(frozen=True, eq=False)
class SearchContext:
    """Hold the starting point of the search stage.

    `aside` holds the float model's outputs on the samples that judge recovery, where these are not the search's.
    """

    reference: Reference
    aside: Reference | None
    objective: Objective
    judging: Objective
    """The same on the samples that judge recovery, where the float model may have another accuracy."""
    log: JsonlLog

    @classmethod
    def of(cls, job: RunContext) -> SearchContext:
        """Run the float model on the samples that decide.

        The folder's log of trials is not read yet (`read`).
        """
        session = Session(job.graph.model, where=job.graph.source)

        def on(samples: Samples) -> Reference:
            return reference_of(session, samples, job.graph.batch_size, job.inputs.compared)

        aside = None if job.inputs.aside is None else on(job.inputs.aside)
        return cls._over(job, on(job.inputs.search), aside)

    def over(self, job: RunContext) -> SearchContext:
        """Return the same with the choices of another job on the same samples."""
        return self._over(job, self.reference, self.aside)

    @classmethod
    def _over(cls, job: RunContext, reference: Reference, aside: Reference | None) -> SearchContext:
        settings = job.settings

        def by(found: Reference) -> Objective:
            return stages.make_objective(
                settings.objective, job.graph, job.variants, settings.spec, space=job.space, reference=found
            )

        objective = by(reference)
        log = trial_log(job, objective, job.files.trials, repr(settings.search.algorithm))
        return cls(reference, aside, objective, objective if aside is None else by(aside), log)


def trial_log(job: RunContext, objective: Objective, path: Path, algorithm: str) -> JsonlLog:
    """Return a log of the job's candidates; existing content of the file must have the same origin.

    The budget is not part of the origin: a larger one continues where the smaller one ended. `algorithm` is the
    algorithm with its options, as text.
    """
    settings = job.settings
    identity = search_origin(
        job.offered or job.space,  # what was left out of it follows from the statistics
        objective,
        settings.seed,
        model=job.graph.model_hash,
        **job.fitted_on,
        **{key: digest_json(part(settings, key)) for key in ANNOTATE},
        threshold=settings.estimation,
        algorithm=algorithm,
        **rounding_origin(settings),
        **detections_origin(settings),
        **({} if job.start is None else job.start.origin),
    )
    return JsonlLog(path, identity, job.space, job.console.warn)


def detections_origin(settings: Settings) -> dict[str, str]:
    """Return the settings that determine the scores of detections; nothing for any other objective."""
    if settings.objective["metric"] != Metric.DETECTIONS:
        return {}
    return {"detections": digest_json(part(settings, "detections"))}


@dataclass(frozen=True, eq=False)
class Translated:
    """Workers that are asked for points of another space."""

    workers: Workers
    translated: Callable[[Point], Point]

    def __call__(self, points: Sequence[Point], should_prune: Callable[[Score], bool] | None = None) -> Iterator[Score]:
        """Yield the scores of the points in order."""
        return self.workers(
            [self.translated(point) for point in points], *(() if should_prune is None else (should_prune,))
        )

    def close(self) -> None:
        """End every process."""
        self.workers.close()

    @property
    def count(self) -> int:
        """Return how many processes measured, at most."""
        return self.workers.count

    @property
    def kind(self) -> str:
        """Return which evaluator measured."""
        return self.workers.kind


@dataclass(frozen=True, eq=False)
class Candidates:
    """Measure the points of a job's space, with the table of their ranges."""

    job: RunContext
    recipe: CandidateRecipe
    table: ThresholdTable
    workers: Workers

    def within(self, job: RunContext) -> Candidates:
        """Return the same workers for a job whose choices are some of these, with some of their options."""
        own, there = self.job.space.choices, {choice.key: choice for choice in job.space}
        place = {choice.key: number for number, choice in enumerate(job.space)}

        def translated(point: Point) -> Point:
            chosen = ((c, there[c.key].options[point[place[c.key]]] if c.key in there else c.options[0]) for c in own)
            return tuple(choice.options.index(option) for choice, option in chosen)

        return replace(self, job=job, workers=Translated(self.workers, translated))

    @classmethod
    def of(cls, job: RunContext, aim: SearchContext, profile: Profile) -> Candidates:
        """Open the workers; whoever opened them closes them."""
        settings = job.settings
        table = job.thresholds(profile)
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
            aim.objective.metric.value,
            "bits" if timed else aim.objective.cost.value,
            settings.backend,
            EvaluatorKind(settings.search.candidate_form),
            settings.calibrate.memory_mb,
            moments_of(job),
            candidate_layer(settings),
            job.branches,
        )
        return cls(job, recipe, table, settings.executor.open(recipe))

    def plan(self, point: Point) -> QuantPlan:
        """Return all numbers of a point of the job's space. HardwareError where the device cannot express one."""
        job, strategy = self.job, self.table.strategy(self.job.space.decode(point))
        planner = job.with_topology_of(strategy).problem.planner
        variants = self.recipe.variants(planner)
        return planner.plan(strategy, NO_OVERRIDES if variants is None else variants.overrides(strategy))

    def close(self) -> None:
        """End the workers."""
        self.workers.close()


def search(aim: SearchContext, candidates: Candidates, decided: PrecisionRecord) -> SearchDecision:
    """Return the best strategy within the budget, and close the candidates.

    `decided` is the decision before the search, which the report shows. Raises Interrupted after Ctrl-C; the best
    strategy so far is written.
    """
    job, table, recipe, workers = candidates.job, candidates.table, candidates.recipe, candidates.workers
    settings, timed = job.settings, aim.objective.cost is CostKind.LATENCY
    planner = job.problem.planner
    aim.log.mend()
    job.console.stage("search", opening(job, aim.objective))
    for said in absent(settings.annotate.choices, settings.spec):
        job.console.warn(said)
    show = job.console.progress("search")
    limit = settings.search.max_evaluations or 0
    budget = Budget(settings.search.max_evaluations, settings.search.max_seconds, settings.search.target)
    with closing(candidates):
        result = stages.search(
            job.space,
            _timed(job, workers, table, planner) if timed else workers,
            aim.objective,
            stages.SearchMethod(settings.search.algorithm, budget, settings.seed),
            log=aim.log,
            on_trial=lambda trial, best: show(
                trial.number + 1, limit, f"best {best.score.value:.5g} at {best.score.cost:.5g}"
            ),
            singly=timed,
        )
        if isnan(result.score.value):
            candidates.plan(result.best)  # says what stands against it, where none that was tried can be expressed
        taken, front = _taken(candidates, result, aim)
        point, score = taken.worth.point, taken.worth.score
    strategy = table.strategy(job.space.decode(point))
    current = job.files.current(job.files.strategy, job.searched)
    known = read_json(job.files.strategy)["results"]["search"] if current else {}
    report: SearchReport = {**search_report(job, result, score, aim.objective, known=known, workers=workers), **front}
    report["device"] = taken.worth.report
    if taken.parts:
        report["contributions"] = taken.parts
        report["changed_choices"] = len(changed_choices(job.space, point))
    if taken.confirmation is not None:
        report["confirmation"] = taken.confirmation
    if job.start is not None:
        report["start"] = {"start": job.start.digest, "points": len(job.start.points)}
    if taken.worth.report["sentence"]:
        job.console.stage("search", taken.worth.report["sentence"])
    if decided:
        report = {**report, "precision": decided, "notes": [*decided.get("notes", ()), *report["notes"]]}
    variants = recipe.variants(planner)
    overrides = NO_OVERRIDES if variants is None else variants.overrides(strategy)
    found = SearchDecision(strategy, report, table.rectified(strategy), overrides)
    decisions.searched(found.report)
    for note in found.report["notes"]:
        job.console.warn(note)
    if front and not (current and _same(known, report) and front_current(job, result.front)):
        write_front(job, result.front, found, table)
    elif not (current and _same(known, report)):
        job.write_strategy(found, {}, job.searched)
    if result.stopped is Stopped.INTERRUPTED or "evaluate" not in settings.stages:
        file_trials(settings.tracker, aim.log.read())  # else behind the report, whose numbers come first
    if result.stopped is Stopped.INTERRUPTED:
        raise Interrupted(
            f"interrupted after {result.evaluations} evaluations; the best strategy so far is in "
            f"{job.files.strategy}. Resume with: {settings.resume_command}",
            stage="search",
        )
    return found


@dataclass(frozen=True)
class Taken:
    """Hold the point that a search comes to, what each of its choices contributed, and which ranges were undone."""

    worth: Worth
    parts: list[ContributionRow]
    confirmation: ConfirmationPart | None = None


def _taken(candidates: Candidates, result: SearchResult, aim: SearchContext) -> tuple[Taken, FrontPart]:
    """Return the result of a search for the run, and the report's part on its Pareto front."""
    job, objective, measure = candidates.job, aim.objective, candidates.workers
    point, score, front = picked(job, result, objective)
    worth = weighed(job, result, objective, point=point, score=score)
    if result.stopped is Stopped.INTERRUPTED:
        return Taken(worth, []), front
    if front or result.stopped is Stopped.TARGET:
        return Taken(worth, contributed(job, worth.point, worth.score, objective=objective, measure=measure)), front
    check = confirmed(
        job,
        lambda: RangeJudge.of(job, objective, candidates.plan),
        worth.point,
        worth.score,
        objective=objective,
        measure=measure,
    )
    if check.report is not None and not check.report["kept"]:
        worth = weighed(job, result, objective, point=check.point, score=check.score, undone=check.report)
    parts = contributed(job, worth.point, worth.score, objective=objective, measure=measure)
    return Taken(worth, parts, check.report), front


def _same(known: Mapping[str, Any], report: SearchReport) -> bool:
    """Return whether an earlier run of this search came as far as this one, and ended alike: its file can stay."""
    return known.get("evaluations") == report["evaluations"] and known.get("stopped") == report["stopped"]


def judged(job: RunContext, found: SearchDecision, objective: Objective) -> SearchDecision:
    """Return whether the target is met, after recovery, on the samples that judged it.

    The console reports when it is not.
    """
    report = found.report
    if found.recovery.get("metrics") and not objective.open_ended:
        value = objective_value(objective.metric, found.recovery["metrics"])
        score = Score(value, float(report["best_cost"]), tuple(found.recovery["metrics"].items()))
        samples = "the search samples" if job.inputs.aside is None else "the samples that judge recovery"
        losses = job.inputs.compared.losses
        missed = shortfall(objective, score, samples, doubtful=bool(job.inputs.doubts), losses=losses)
        report = {**report, "feasible": objective.feasible(score), "shortfall": missed}
    if report["shortfall"]:
        said = still_missed(report["shortfall"], found.recovery.get("gain"))
        job.console.warn(said)
        report = {**report, "shortfall": said}
    return replace(found, report=report)


def judged_by_report(found: SearchDecision) -> SearchDecision:
    """Return the result with the target judged after recovery, if an earlier run made the search."""
    report, metrics = found.report, found.recovery.get("metrics")
    least = report.get("least_value")
    if least is None or not metrics or not report.get("shortfall"):
        return found
    value = objective_value(Metric(report["metric"]), metrics)
    if value is not None and reaches(value, float(least)):
        return replace(found, report={**report, "feasible": True, "shortfall": None})
    missed = still_missed(str(report["shortfall"]), found.recovery.get("gain"))
    return replace(found, report={**report, "shortfall": missed})


def _timed(job: RunContext, candidates: Measure, table: ThresholdTable, planner: Planner) -> Measure:
    """Return a measure of candidates by their latency, realized as the run's own result will be."""
    settings, objective = job.settings, job.settings.objective

    def realized(point: Point) -> Rendered:
        strategy = table.strategy(job.space.decode(point))
        topology = job.variants.at(strategy.structure)
        plan = planner.on(topology).plan(strategy)
        return stages.realize(job.graph, topology, plan, settings.backend, here=settings.spec.runs_here)

    session = Session(job.graph.model, where=job.graph.source)
    feeds = next(iter(job.inputs.search.batches(job.graph.fixed_batch or 1))).inputs
    return TimedMeasure(
        candidates,
        realized,
        session,
        feeds,
        runs=int(objective["latency_runs"]),
        max_seconds=float(objective["latency_seconds"]),
    )
