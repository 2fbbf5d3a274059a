"""The staged runner: the only place that moves values between stages and files, and files and MLflow.

A stage whose artifact is in the run folder with the same origin is skipped; an artifact of another model or
configuration is refused by name before anything is written. Everything is written atomically. An interrupted search
leaves its best strategy so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quantpipe import stages
from quantpipe.artifacts import Origin, digest_json, is_current, read_json
from quantpipe.calibrate.table import ThresholdTable
from quantpipe.errors import AgreementError, ArtifactError, Interrupted
from quantpipe.evaluate.candidate import CandidateMeasure, objective_value
from quantpipe.evaluate.reference import Reference, reference_of
from quantpipe.filing import file_report, file_trials
from quantpipe.graph.execute import Session
from quantpipe.inputs import Inputs, load
from quantpipe.plan import NO_OVERRIDES, Overrides, Planner
from quantpipe.rendering import Rendered
from quantpipe.reporting import build_report, shortfall
from quantpipe.runfolder import RunFolder, replayed_overrides
from quantpipe.search import JsonlLog, Objective, SearchResult, Stopped, search_origin
from quantpipe.settings import Console, Settings
from quantpipe.strategyfile import read_strategy
from quantpipe.types import Profile, QuantPlan, Score, Strategy

ANNOTATE = ("hardware", "schema", "annotate")
"""The configuration that the topology follows from."""


@dataclass(frozen=True, eq=False)
class Aim:
    """What the search stage starts from: known before anything is calibrated or written."""

    reference: Reference
    objective: Objective
    log: JsonlLog
    origin: Origin


@dataclass(frozen=True, eq=False)
class Found:
    """What the search stage hands on: the strategy, and where it came from (None for a replay)."""

    strategy: Strategy
    report: Mapping[str, Any]
    rectified: list[dict[str, Any]]
    overrides: Overrides = NO_OVERRIDES
    recovery: Mapping[str, Any] = field(default_factory=dict)


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """Execute the stages and return the report (of the last stage that ran; complete after evaluate).

    Raises AgreementError when simulation and realization differ and `verify=fail`, Interrupted after Ctrl-C.
    """
    console.stage("model", str(settings.model))
    inputs = load(settings)
    for note in inputs.graph.notes:
        console.warn(note)
    return Run(settings, inputs, console).execute()


class Run:
    """One run over its folder."""

    def __init__(self, settings: Settings, inputs: Inputs, console: Console) -> None:
        self._settings, self._inputs, self._console = settings, inputs, console
        self._graph = inputs.graph
        self._files = RunFolder(settings.folder)
        self._topology, self._space = stages.annotate(inputs.graph, settings.spec, settings.schema, settings.annotate)
        self._base = {"model": inputs.graph.model_hash}
        calibrate_data = {"calibrate_data": inputs.calibrate.digest}
        self._annotated = self._origin("annotate", {}, ANNOTATE)
        self._calibrated = self._origin("calibrate", calibrate_data, ANNOTATE)

    def execute(self) -> dict[str, Any]:
        settings = self._settings
        with self._files.lock():
            self._refuse_another_run()
            wanted = set(settings.stages)
            replayed = self._replayed() if settings.command == "replay" else None
            aim = self._aim() if "search" in wanted and replayed is None else None
            self._files.write_config(settings.config, self._origin("config", {}, ()))
            self._annotate()
            if replayed is not None:
                return self._finish(replayed, None)
            stored = self._files.read_profile(self._calibrated)
            profile = self._calibrate(stored) if wanted & {"calibrate", "search"} else stored
            found = self._search(profile, aim) if aim is not None and profile is not None else None
            if not {"realize", "evaluate"} & set(wanted):
                if found is not None and aim is not None:
                    self._judged(found, aim.objective)
                return {}
            recovered = self._recover(found or self._stored_strategy())
            return self._finish(self._judged(recovered, aim.objective) if aim is not None else recovered, profile)

    # --- stages -----------------------------------------------------------------------------------------------------

    def _refuse_another_run(self) -> None:
        """Whatever the folder holds must be of this model, data and configuration."""
        made = {
            self._files.topology: self._annotated,
            self._files.stats: self._calibrated,
            self._files.recovered: self._recovered(""),
            self._files.model: self._realized(""),
            self._files.report: self._evaluated(""),
        }
        for path, origin in made.items():
            self._files.refuse_other(path, origin)

    def _annotate(self) -> None:
        self._console.stage(
            "annotate",
            f"{sum(self._topology.node_conds.values())} of {len(self._graph.nodes)} nodes in integers, "
            f"{len(self._space)} choices",
        )
        self._files.write_annotation(self._topology, self._space, self._annotated)

    def _calibrate(self, stored: Profile | None) -> Profile:
        if stored is not None:
            self._console.stage("calibrate", f"{stored.samples} samples, from an earlier run in this folder")
            return stored
        self._console.stage("calibrate", f"{len(self._inputs.calibrate)} samples")
        profile = stages.calibrate(
            self._graph,
            self._topology,
            self._inputs.calibrate,
            self._settings.memory_mb,
            self._console.progress("calibrate"),
        )
        self._files.write_profile(profile, self._calibrated)
        return profile

    def _aim(self) -> Aim:
        """What the search goes for. ArtifactError when the folder's log of trials belongs to another search."""
        settings, samples = self._settings, self._inputs.search
        session = Session(self._graph.model, where=self._graph.source)
        reference = reference_of(session, samples, self._graph.batch_size)
        objective = stages.make_objective(
            settings.objective, self._graph, self._topology, settings.spec, self._space, reference
        )
        data = {"calibrate_data": self._inputs.calibrate.digest, "search_data": samples.digest}
        # The budget is not part of the log's origin: a larger one goes on where the smaller one ended.
        identity = search_origin(
            self._space,
            objective,
            settings.seed,
            **self._base,
            **data,
            **{key: digest_json(settings.config.get(key)) for key in ANNOTATE},
            threshold=f"{settings.estimator!r}, weights by {settings.weight_method}",
            algorithm=repr(settings.search.algorithm),
        )
        log = JsonlLog(self._files.trials, identity, self._space)
        log.read()
        origin = self._origin("search", data, (*ANNOTATE, "threshold", "search", "objective", "seed"))
        return Aim(reference, objective, log, origin)

    def _search(self, profile: Profile, aim: Aim) -> Found:
        settings = self._settings
        table = ThresholdTable(
            self._graph, self._topology, settings.schema, profile, settings.estimator, settings.weight_method
        )
        candidates = CandidateMeasure(
            self._graph,
            self._topology,
            settings.spec,
            self._space,
            table,
            Planner(self._graph, self._topology, settings.spec, settings.schema),
            self._inputs.search,
            aim.reference,
            str(settings.objective["metric"]),
            str(settings.objective["cost"]),
        )
        self._console.stage("search", f"{settings.choices.get('search', '')}, space of {self._space.size:.3g} points")
        show = self._console.progress("search")
        limit = settings.search.max_evaluations or 0
        result = stages.search(
            self._space,
            candidates,
            aim.objective,
            settings.search.algorithm,
            stages.Budget(settings.search.max_evaluations, settings.search.max_seconds),
            settings.seed,
            aim.log,
            lambda trial, best: show(trial.number + 1, limit, f"best {best.score.value:.5g} at {best.score.cost:.5g}"),
        )
        strategy = table.strategy(self._space.decode(result.best))
        current = is_current(self._files.strategy, aim.origin)
        known = read_json(self._files.strategy)["results"]["search"] if current else {}
        found = Found(strategy, self._search_report(result, aim.objective, known), table.rectified(strategy))
        if result.evaluations_new or not current:
            self._write_strategy(found, {}, aim.origin)
        file_trials(settings.tracker, aim.log.read())
        if result.stopped is Stopped.INTERRUPTED:
            raise Interrupted(
                f"interrupted after {result.evaluations} evaluations; the best strategy so far is in "
                f"{self._files.strategy}. Resume with: {settings.resume_command}",
                stage="search",
            )
        return found

    def _judged(self, found: Found, objective: Objective) -> Found:
        """Whether the target is met, after recovery; says so when it is not."""
        report = dict(found.report)
        if found.recovery.get("metrics"):
            value = objective_value(objective.metric, found.recovery["metrics"])
            score = Score(value, float(report["best_cost"]))
            report |= {"feasible": objective.feasible(score), "shortfall": shortfall(objective, score)}
        if report["shortfall"]:
            self._console.warn(report["shortfall"])
        return replace(found, report=report)

    def _recover(self, found: Found) -> Found:
        """Better weights and biases for the strategy as it is, kept where they help."""
        settings, options = self._settings, self._settings.recover
        if not options.steps:
            return found
        origin = self._recovered(self._files.digest_of(found.strategy, NO_OVERRIDES))
        stored = self._files.read_recovered(origin, self._topology)
        if stored is not None:
            self._console.stage("recover", "from an earlier run in this folder")
            return replace(found, overrides=stored[0], recovery=stored[1])
        self._console.stage("recover", ", ".join(options.steps))
        climbed = stages.recover(
            self._graph,
            self._topology,
            settings.spec,
            settings.schema,
            found.strategy,
            self._inputs.calibrate,
            self._inputs.search,
            options,
            settings.memory_mb,
            settings.seed,
            self._console.progress("recover"),
        )
        recovery = self._files.write_recovered(climbed, origin)
        return replace(found, overrides=climbed.overrides, recovery=recovery)

    def _stored_strategy(self) -> Found:
        if not self._files.strategy.is_file():
            raise ArtifactError(
                "there is no strategy of an earlier search in this folder; add search to stages or give "
                "command=replay strategy=FILE",
                stage="realize",
                where=str(self._files.strategy),
            )
        return self._read_strategy(self._files.strategy)

    def _replayed(self) -> Found:
        assert self._settings.strategy is not None  # noqa: S101  (checked by Settings; narrows the type)
        self._console.stage("replay", str(self._settings.strategy))
        found, here = self._read_strategy(self._settings.strategy), self._files.strategy
        if here.is_file() and read_json(here).get("strategy") != read_json(self._settings.strategy).get("strategy"):
            raise ArtifactError(
                "this folder holds another strategy than the one to be replayed; choose another folder (hydra.run.dir)",
                stage="replay",
                where=str(here),
            )
        return found

    def _read_strategy(self, path: Any) -> Found:
        settings = self._settings
        payload = read_json(path)
        strategy = read_strategy(
            payload, str(path), self._graph.model_hash, settings.spec, settings.schema, self._topology
        )
        results = payload.get("results", {})
        found = Found(strategy, results.get("search", {}), results.get("rectified", []))
        recovery = results.get("recover", {})
        if settings.command != "replay" or not recovery:
            return found
        stored = replayed_overrides(path, recovery, self._topology) if recovery.get("weights") else NO_OVERRIDES
        return replace(found, overrides=stored, recovery=recovery)

    def _finish(self, found: Found, profile: Profile | None) -> dict[str, Any]:
        """Realize, and evaluate when asked for."""
        settings = self._settings
        plan = stages.plan_of(
            self._graph, self._topology, settings.spec, settings.schema, found.strategy, found.overrides
        )
        self._console.stage("realize", settings.backend)
        realized = stages.realize(self._graph, self._topology, plan, settings.backend)
        strategy = self._files.digest_of(found.strategy, found.overrides)
        if not is_current(self._files.model, self._realized(strategy)):
            self._files.write_realized(plan, realized, self._realized(strategy))
        if "evaluate" not in settings.stages:
            return {}
        origin = self._evaluated(strategy)
        if is_current(self._files.report, origin) and settings.command == "run":
            self._console.stage("evaluate", "from an earlier run in this folder")
            report = read_json(self._files.report, origin)
        else:
            report = self._evaluate(found, profile, plan, realized)
            self._files.write_report(report, origin)
        self._write_strategy(found, self._strategy_results(report), None)
        return self._conclude(report)

    def _evaluate(self, found: Found, profile: Profile | None, plan: QuantPlan, realized: Rendered) -> dict[str, Any]:
        settings, samples = self._settings, self._inputs.evaluate
        self._console.stage("evaluate", f"{len(samples)} samples")
        options = settings.evaluate
        evaluation = stages.evaluate(
            self._graph,
            self._topology,
            plan,
            realized,
            samples,
            options.agreement_samples,
            options.layer_samples,
            options.latency_runs,
            options.latency_seconds,
        )
        return build_report(
            settings=settings,
            graph=self._graph,
            topology=self._topology,
            space=self._space,
            plan=plan,
            strategy=found.strategy,
            profile=profile,
            search=found.report,
            rectified=found.rectified,
            recovery=found.recovery,
            model=stages.describe_model(self._graph, self._topology, settings.spec, plan, found.strategy, realized),
            costs=stages.all_costs(self._graph, self._topology, settings.spec, found.strategy),
            evaluation=evaluation,
        )

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _conclude(self, report: dict[str, Any]) -> dict[str, Any]:
        example = next(iter(self._inputs.evaluate.batches(1))).inputs
        file_report(self._settings.tracker, report, self._settings.folder, self._files.model, example)
        differing = report["agreement"]["differing"]
        if differing and self._settings.verify == "fail":
            raise AgreementError(
                f"the realized model does not hold the searched integers: {differing} of "
                f"{report['agreement']['elements']} elements differ, first in the tensor "
                f"{report['agreement']['first_tensor']}; the report and the models are in {self._settings.folder}. "
                "verify=warn turns this into a warning",
                stage="evaluate",
            )
        return report

    def _origin(self, kind: str, inputs: Mapping[str, str], keys: tuple[str, ...]) -> Origin:
        config = {k: self._settings.config.get(k) for k in keys}
        return Origin(kind, {**self._base, **inputs}, config)

    def _recovered(self, strategy: str) -> Origin:
        samples = {"calibrate_data": self._inputs.calibrate.digest, "search_data": self._inputs.search.digest}
        return self._origin("recover", {"strategy": strategy} | samples, (*ANNOTATE, "recover", "seed"))

    def _realized(self, strategy: str) -> Origin:
        return self._origin("realize", {"strategy": strategy}, (*ANNOTATE, "realize"))

    def _evaluated(self, strategy: str) -> Origin:
        data = {"strategy": strategy, "evaluate_data": self._inputs.evaluate.digest}
        return self._origin("evaluate", data, (*ANNOTATE, "realize", "evaluate"))

    def _write_strategy(self, found: Found, measured: Mapping[str, Any], origin: Origin | None) -> None:
        results = {"search": found.report, "rectified": found.rectified, "recover": found.recovery, **measured}
        self._files.write_strategy(self._settings, self._graph, self._topology, found.strategy, results, origin)

    def _search_report(self, result: SearchResult, objective: Objective, known: Mapping[str, Any]) -> dict[str, Any]:
        """`known` is the report of an earlier run of this very search: its float pass was timed beside its trials."""
        pass_seconds = known.get("float_pass_seconds") or stages.float_pass(self._graph, self._inputs.search)
        return {
            "algorithm": self._settings.choices.get("search", type(self._settings.search.algorithm).__name__),
            "evaluations": result.evaluations,
            "seconds": result.seconds,
            "float_pass_seconds": pass_seconds,
            "best_value": result.score.value,
            "best_cost": result.score.cost,
            "feasible": result.feasible,
            "shortfall": shortfall(objective, result.score),
            "stopped": result.stopped.value,
            "space_size": float(self._space.size),
            "metrics": dict(result.score.metrics),
            "form": objective.form.value,
            "trace": [[t.number, t.score.value] for t in result.trace],
            "trace_cost": [[t.number, t.score.cost] for t in result.trace],
        }

    def _strategy_results(self, report: Mapping[str, Any]) -> dict[str, Any]:
        metrics = report["metrics"]
        return {
            "sim_acc": metrics["simulated"]["top1"],
            "quant_acc": metrics["realized"]["top1"],
            "float_acc": metrics["float"]["top1"],
            "cost": report["cost"],
        }
