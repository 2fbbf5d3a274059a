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
    def of(cls, context: RunContext) -> SearchContext:
        """Run the float model on the samples that decide.

        The folder's log of trials is not read yet (`read`).
        """
        session = Session(context.graph.model, where=context.graph.source)

        def on(samples: Samples) -> Reference:
            return reference_of(session, samples, context.graph.batch_size, context.inputs.compared)

        aside = None if context.inputs.aside is None else on(context.inputs.aside)
        found = cls._over(context, on(context.inputs.search), aside)
        if found.objective.open_ended:
            return found
        return cls._over(context, found.reference.softened(context.settings.objective["metric"]), aside)

    def over(self, context: RunContext) -> SearchContext:
        """Return the same with the choices of another run on the same samples."""
        return self._over(context, self.reference, self.aside)

    @classmethod
    def _over(cls, context: RunContext, reference: Reference, aside: Reference | None) -> SearchContext:
        settings = context.settings

        def by(found: Reference) -> Objective:
            return stages.make_objective(
                settings.objective, context.graph, context.variants, settings.spec, space=context.space, reference=found
            )

        objective = by(reference)
        log = trial_log(context, objective, context.files.trials, repr(settings.search.algorithm), reference=reference)
        return cls(reference, aside, objective, objective if aside is None else by(aside), log)


def trial_log(
    context: RunContext, objective: Objective, path: Path, algorithm: str, *, reference: Reference
) -> JsonlLog:
    """Return a log of the run's candidates; existing content of the file must have the same origin.

    The budget is not part of the origin: a larger one continues where the smaller one ended. `algorithm` is the
    algorithm with its options, as text. `reference`: what candidates are compared with.
    """
    settings = context.settings
    identity = search_origin(
        context.offered or context.space,  # what was left out of it follows from the statistics
        objective,
        settings.seed,
        model=context.graph.model_hash,
        **context.fitted_on,
        **{key: digest_json(part(settings, key)) for key in ANNOTATE},
        threshold=settings.estimation,
        algorithm=algorithm,
        **rounding_origin(settings),
        **detections_origin(settings),
        **({} if reference.softness is None else {"compared": str(reference.softness)}),
        **({} if context.start is None else context.start.origin),
    )
    return JsonlLog(path, identity, context.space, context.console.warn)


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
    """Measure the points of a run's space, with the table of their ranges."""

    context: RunContext
    recipe: CandidateRecipe
    table: ThresholdTable
    workers: Workers

    def within(self, context: RunContext) -> Candidates:
        """Return the same workers for a run whose choices are some of these, with some of their options."""
        own, there = self.context.space.choices, {choice.key: choice for choice in context.space}
        place = {choice.key: number for number, choice in enumerate(context.space)}

        def translated(point: Point) -> Point:
            chosen = ((c, there[c.key].options[point[place[c.key]]] if c.key in there else c.options[0]) for c in own)
            return tuple(choice.options.index(option) for choice, option in chosen)

        return replace(self, context=context, workers=Translated(self.workers, translated))

    @classmethod
    def of(cls, context: RunContext, search_context: SearchContext, profile: Profile) -> Candidates:
        """Open the workers; whoever opened them closes them."""
        settings = context.settings
        table = context.thresholds(profile)
        timed = search_context.objective.cost is CostKind.LATENCY
        recipe = CandidateRecipe(
            context.graph,
            context.topology,
            settings.spec,
            settings.schema,
            context.space,
            table,
            context.inputs.search,
            search_context.reference,
            search_context.objective.metric.value,
            "bits" if timed else search_context.objective.cost.value,
            settings.backend,
            EvaluatorKind(settings.search.candidate_form),
            settings.calibrate.memory_mb,
            moments_of(context),
            candidate_layer(settings),
            context.branches,
        )
        return cls(context, recipe, table, settings.executor.open(recipe))

    def plan(self, point: Point) -> QuantPlan:
        """Return all numbers of a point of the run's space. HardwareError where the device cannot express one."""
        context, strategy = self.context, self.table.strategy(self.context.space.decode(point))
        planner = context.with_topology_of(strategy).problem.planner
        variants = self.recipe.variants(planner)
        return planner.plan(strategy, NO_OVERRIDES if variants is None else variants.overrides(strategy))

    def close(self) -> None:
        """End the workers."""
        self.workers.close()


def search(search_context: SearchContext, candidates: Candidates, decided: PrecisionRecord) -> SearchDecision:
    """Return the best strategy within the budget, and close the candidates.

    `decided` is the decision before the search, which the report shows. Raises Interrupted after Ctrl-C; the best
    strategy so far is written.
    """
    context, table, recipe, workers = candidates.context, candidates.table, candidates.recipe, candidates.workers
    settings, timed = context.settings, search_context.objective.cost is CostKind.LATENCY
    planner = context.problem.planner
    search_context.log.mend()
    context.console.stage("search", opening(context, search_context.objective))
    for said in absent(settings.annotate.choices, settings.spec):
        context.console.warn(said)
    show = context.console.progress("search")
    limit = settings.search.max_evaluations or 0
    budget = Budget(settings.search.max_evaluations, settings.search.max_seconds, settings.search.target)
    with closing(candidates):
        result = stages.search(
            context.space,
            _timed(context, workers, table, planner) if timed else workers,
            search_context.objective,
            stages.SearchMethod(settings.search.algorithm, budget, settings.seed),
            log=search_context.log,
            on_trial=lambda trial, best: show(
                trial.number + 1, limit, f"best {best.score.value:.5g} at {best.score.cost:.5g}"
            ),
            singly=timed,
        )
        if isnan(result.score.value):
            candidates.plan(result.best)  # says what stands against it, where none that was tried can be expressed
        taken, front = _taken(candidates, result, search_context)
        point, score = taken.worth.point, taken.worth.score
    strategy = table.strategy(context.space.decode(point))
    current = context.files.current(context.files.strategy, context.searched)
    known = read_json(context.files.strategy)["results"]["search"] if current else {}
    report: SearchReport = {
        **search_report(context, result, score, search_context.objective, known=known, workers=workers),
        **front,
    }
    report["device"] = taken.worth.report
    if taken.parts:
        report["contributions"] = taken.parts
        report["changed_choices"] = len(changed_choices(context.space, point))
    if taken.confirmation is not None:
        report["confirmation"] = taken.confirmation
    if context.start is not None:
        report["start"] = {"start": context.start.digest, "points": len(context.start.points)}
    if taken.worth.report["sentence"]:
        context.console.stage("search", taken.worth.report["sentence"])
    if decided:
        report = {**report, "precision": decided, "notes": [*decided.get("notes", ()), *report["notes"]]}
    variants = recipe.variants(planner)
    overrides = NO_OVERRIDES if variants is None else variants.overrides(strategy)
    found = SearchDecision(strategy, report, table.rectified(strategy), overrides)
    decisions.searched(found.report)
    for note in found.report["notes"]:
        context.console.warn(note)
    if front and not (current and _same(known, report) and front_current(context, result.front)):
        write_front(context, result.front, found, table)
    elif not (current and _same(known, report)):
        context.write_strategy(found, {}, context.searched)
    if result.stopped is Stopped.INTERRUPTED or "evaluate" not in settings.stages:
        file_trials(settings.tracker, search_context.log.read())  # else behind the report, whose numbers come first
    if result.stopped is Stopped.INTERRUPTED:
        raise Interrupted(
            f"interrupted after {result.evaluations} evaluations; the best strategy so far is in "
            f"{context.files.strategy}. Resume with: {settings.resume_command}",
            stage="search",
        )
    return found


@dataclass(frozen=True)
class Taken:
    """Hold the point that a search comes to, what each of its choices contributed, and which ranges were undone."""

    worth: Worth
    parts: list[ContributionRow]
    confirmation: ConfirmationPart | None = None


def _taken(candidates: Candidates, result: SearchResult, search_context: SearchContext) -> tuple[Taken, FrontPart]:
    """Return the result of a search for the run, and the report's part on its Pareto front."""
    context, objective, measure = candidates.context, search_context.objective, candidates.workers
    point, score, front = picked(context, result, objective)
    worth = weighed(context, result, objective, point=point, score=score)
    if result.stopped is Stopped.INTERRUPTED:
        return Taken(worth, []), front
    if front or result.stopped is Stopped.TARGET:
        return Taken(worth, contributed(context, worth.point, worth.score, objective=objective, measure=measure)), front
    check = confirmed(
        context,
        lambda: RangeJudge.of(context, objective, candidates.plan),
        worth.point,
        worth.score,
        objective=objective,
        measure=measure,
    )
    if check.report is not None and not check.report["kept"]:
        worth = weighed(context, result, objective, point=check.point, score=check.score, undone=check.report)
    parts = contributed(context, worth.point, worth.score, objective=objective, measure=measure)
    return Taken(worth, parts, check.report), front


def _same(known: Mapping[str, Any], report: SearchReport) -> bool:
    """Return whether an earlier run of this search came as far as this one, and ended alike: its file can stay."""
    return known.get("evaluations") == report["evaluations"] and known.get("stopped") == report["stopped"]


def judged(context: RunContext, decision: SearchDecision, objective: Objective) -> SearchDecision:
    """Return whether the target is met, after recovery, on the samples that judged it.

    The console reports when it is not.
    """
    report = decision.report
    if decision.recovery.get("metrics") and not objective.open_ended:
        value = objective_value(objective.metric, decision.recovery["metrics"])
        score = Score(value, float(report["best_cost"]), tuple(decision.recovery["metrics"].items()))
        samples = "the search samples" if context.inputs.aside is None else "the samples that judge recovery"
        losses = context.inputs.compared.losses
        missed = shortfall(objective, score, samples, doubtful=bool(context.inputs.doubts), losses=losses)
        report = {**report, "feasible": objective.feasible(score), "shortfall": missed}
    if report["shortfall"]:
        said = still_missed(report["shortfall"], decision.recovery.get("gain"))
        context.console.warn(said)
        report = {**report, "shortfall": said}
    return replace(decision, report=report)


def judged_by_report(decision: SearchDecision) -> SearchDecision:
    """Return the result with the target judged after recovery, if an earlier run made the search."""
    report, metrics = decision.report, decision.recovery.get("metrics")
    least = report.get("least_value")
    if least is None or not metrics or not report.get("shortfall"):
        return decision
    value = objective_value(Metric(report["metric"]), metrics)
    if value is not None and reaches(value, float(least)):
        return replace(decision, report={**report, "feasible": True, "shortfall": None})
    missed = still_missed(str(report["shortfall"]), decision.recovery.get("gain"))
    return replace(decision, report={**report, "shortfall": missed})


def _timed(context: RunContext, candidates: Measure, table: ThresholdTable, planner: Planner) -> Measure:
    """Return a measure of candidates by their latency, realized as the run's own result will be."""
    settings, objective = context.settings, context.settings.objective

    def realized(point: Point) -> Rendered:
        strategy = table.strategy(context.space.decode(point))
        topology = context.variants.at(strategy.structure)
        plan = planner.on(topology).plan(strategy)
        return stages.realize(context.graph, topology, plan, settings.backend, here=settings.spec.runs_here)

    session = Session(context.graph.model, where=context.graph.source)
    feeds = next(iter(context.inputs.search.batches(context.graph.fixed_batch or 1))).inputs
    return TimedMeasure(
        candidates,
        realized,
        session,
        feeds,
        runs=int(objective["latency_runs"]),
        max_seconds=float(objective["latency_seconds"]),
    )
