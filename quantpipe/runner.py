"""The staged runner: the only place that moves values between stages and files, and files and MLflow.

A stage whose artifact is in the run folder with the same origin is skipped; an artifact of another model or
configuration
is refused by name. Everything is written atomically. An interrupted search leaves its best strategy so far.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from quantpipe import stages
from quantpipe.artifacts import Origin, is_current, read_json
from quantpipe.calibrate.table import ThresholdTable
from quantpipe.errors import AgreementError, ArtifactError, DataError, Interrupted
from quantpipe.evaluate.candidate import CandidateMeasure
from quantpipe.evaluate.reference import reference_of
from quantpipe.graph.execute import Session
from quantpipe.graph.normalize import load_graph
from quantpipe.graph.view import Graph
from quantpipe.plan import Planner
from quantpipe.reporting import build_report
from quantpipe.runfolder import RunFolder
from quantpipe.search import JsonlLog, SearchResult, Stopped, search_origin
from quantpipe.settings import Console, Settings
from quantpipe.strategyfile import read_strategy
from quantpipe.types import Profile, Strategy

CHECK_SAMPLES = 4


@dataclass(frozen=True, eq=False)
class Inputs:
    """What every stage starts from."""

    graph: Graph
    calibrate: Any
    search: Any
    evaluate: Any


@dataclass(frozen=True, eq=False)
class Found:
    """What the search stage hands on: the strategy, and where it came from (None for a replay)."""

    strategy: Strategy
    report: Mapping[str, Any]
    rectified: list[dict[str, Any]]


def run(settings: Settings, console: Console) -> dict[str, Any]:
    """Execute the stages and return the report (of the last stage that ran; complete after evaluate).

    Raises AgreementError when simulation and realization differ and `verify=fail`, Interrupted after Ctrl-C.
    """
    console.stage("model", str(settings.model))
    inputs = load(settings)
    for note in inputs.graph.notes:
        console.warn(note)
    return Run(settings, inputs, console).execute()


def load(settings: Settings) -> Inputs:
    """Read the model and the data, check that they fit, clean the model on real samples."""
    made: list[Any] = []

    def example(raw: Graph) -> dict[str, Any]:
        outputs = raw.outputs[0].shape
        classes = outputs[-1] if len(outputs) == 2 else None
        splits = settings.dataset.splits(raw.inputs, classes, settings.seed)
        made.append(splits)
        size = raw.inputs[0].shape[0] if raw.inputs and raw.inputs[0].shape else None
        first = next(iter(splits.calibrate.batches(size or CHECK_SAMPLES)), None)
        if first is None:
            raise DataError("there are no calibration samples", stage="data")
        return first.inputs

    graph = load_graph(settings.model, example)
    splits = made[0]
    return Inputs(graph, splits.calibrate, splits.search, splits.evaluate)


class Run:
    """One run over its folder."""

    def __init__(self, settings: Settings, inputs: Inputs, console: Console) -> None:
        self._settings, self._inputs, self._console = settings, inputs, console
        self._graph = inputs.graph
        self._files = RunFolder(settings.folder)
        self._topology, self._space = stages.annotate(inputs.graph, settings.spec, settings.schema, settings.annotate)
        self._base = {"model": inputs.graph.model_hash}

    def execute(self) -> dict[str, Any]:
        settings = self._settings
        with self._files.lock():
            self._annotate()
            if settings.command == "replay":
                return self._finish(self._replayed(), None)
            wanted = settings.stages
            profile = self._calibrate() if "calibrate" in wanted or "search" in wanted else None
            found = self._search(profile) if "search" in wanted and profile is not None else None
            if not {"realize", "evaluate"} & set(wanted):
                return {}
            return self._finish(found or self._stored_strategy(), profile)

    # --- stages -----------------------------------------------------------------------------------------------------

    def _annotate(self) -> None:
        origin = self._origin("annotate", {}, ("hardware", "schema", "annotate"))
        self._console.stage(
            "annotate",
            f"{sum(self._topology.node_conds.values())} of {len(self._graph.nodes)} nodes in integers, "
            f"{len(self._space)} choices",
        )
        self._files.write_annotation(self._topology, self._space, origin)

    def _calibrate(self) -> Profile:
        data = {"calibrate_data": self._inputs.calibrate.digest}
        origin = self._origin("calibrate", data, ("hardware", "schema", "annotate"))
        stored = self._files.read_profile(origin)
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
        self._files.write_profile(profile, origin)
        return profile

    def _search(self, profile: Profile) -> Found:
        settings, samples = self._settings, self._inputs.search
        keys = ("hardware", "schema", "annotate", "threshold", "search", "objective", "seed")
        data = {"calibrate_data": self._inputs.calibrate.digest, "search_data": samples.digest}
        origin = self._origin("search", data, keys)
        table = ThresholdTable(
            self._graph, self._topology, settings.schema, profile, settings.estimator, settings.weight_method
        )
        planner = Planner(self._graph, self._topology, settings.spec, settings.schema)
        session = Session(self._graph.model, where=self._graph.source)
        reference = reference_of(session, samples, self._graph.batch_size)
        candidates = CandidateMeasure(
            self._graph,
            self._topology,
            settings.spec,
            self._space,
            table,
            planner,
            samples,
            reference,
            str(settings.objective["metric"]),
            str(settings.objective["cost"]),
        )
        objective = stages.make_objective(settings.objective, candidates, self._space)
        # The budget is not part of the log's origin: a larger one goes on where the smaller one ended.
        identity = search_origin(
            self._space,
            objective,
            settings.seed,
            model=self._graph.model_hash,
            origin=self._origin("trials", data, (*keys[:4], "objective")).digest,
            algorithm=repr(settings.search.algorithm),
        )
        log = JsonlLog(self._files.trials, identity, self._space)
        self._console.stage("search", f"{settings.choices.get('search', '')}, space of {self._space.size:.3g} points")
        show = self._console.progress("search")
        limit = settings.search.max_evaluations or 0
        result = stages.search(
            self._space,
            candidates,
            objective,
            settings.search.algorithm,
            stages.Budget(settings.search.max_evaluations, settings.search.max_seconds),
            settings.seed,
            log,
            lambda trial, best: show(trial.number + 1, limit, f"best {best.score.value:.5g} at {best.score.cost:.5g}"),
        )
        strategy = table.strategy(self._space.decode(result.best))
        report = self._search_report(result)
        self._files.write_strategy(settings, self._graph, self._topology, strategy, {"search": report}, origin)
        self._log_trials(log)
        if result.stopped is Stopped.INTERRUPTED:
            raise Interrupted(
                f"interrupted after {result.evaluations} evaluations; the best strategy so far is in "
                f"{self._files.strategy}. Resume with: {settings.resume_command}",
                stage="search",
            )
        if not result.feasible:
            self._console.warn(
                f"no candidate met the objective ({settings.objective['form']}); the best one found is used"
            )
        return Found(strategy, report, table.rectified(strategy))

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
        return self._read_strategy(self._settings.strategy)

    def _read_strategy(self, path: Any) -> Found:
        settings = self._settings
        payload = read_json(path)
        strategy = read_strategy(
            payload, str(path), self._graph.model_hash, settings.spec, settings.schema, self._topology
        )
        return Found(strategy, payload.get("results", {}).get("search", {}), [])

    def _finish(self, found: Found, profile: Profile | None) -> dict[str, Any]:
        """Realize, and evaluate when asked for."""
        settings = self._settings
        plan = stages.plan_of(self._graph, self._topology, settings.spec, settings.schema, found.strategy)
        self._console.stage("realize", settings.backend)
        realized = stages.realize(self._graph, self._topology, plan, settings.backend)
        keys = ("hardware", "schema", "annotate", "realize")
        from_strategy = {"strategy": self._files.digest_of(self._topology, found.strategy)}
        self._files.write_realized(plan, realized, self._origin("realize", from_strategy, keys))
        if "evaluate" not in settings.stages:
            return {}
        samples = self._inputs.evaluate
        data = from_strategy | {"evaluate_data": samples.digest}
        origin = self._origin("evaluate", data, (*keys, "evaluate"))
        if is_current(self._files.report, origin) and settings.command == "run":
            self._console.stage("evaluate", "from an earlier run in this folder")
            return self._conclude(read_json(self._files.report, origin))
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
        report = build_report(
            settings=settings,
            graph=self._graph,
            topology=self._topology,
            space=self._space,
            plan=plan,
            strategy=found.strategy,
            profile=profile,
            search=found.report,
            rectified=found.rectified,
            model=stages.describe_model(self._graph, self._topology, settings.spec, plan, found.strategy, realized),
            costs=stages.all_costs(self._graph, self._topology, settings.spec, found.strategy),
            evaluation=evaluation,
        )
        self._files.write_report(report, origin)
        results = {"search": found.report, **self._strategy_results(report)}
        self._files.write_strategy(settings, self._graph, self._topology, found.strategy, results, None)
        return self._conclude(report)

    # --- helpers ----------------------------------------------------------------------------------------------------

    def _conclude(self, report: dict[str, Any]) -> dict[str, Any]:
        self._log_report(report)
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

    def _search_report(self, result: SearchResult) -> dict[str, Any]:
        pass_seconds = stages.float_pass(self._graph, self._inputs.search)
        return {
            "algorithm": self._settings.choices.get("search", type(self._settings.search.algorithm).__name__),
            "evaluations": result.evaluations,
            "seconds": result.seconds,
            "float_pass_seconds": pass_seconds,
            "best_value": result.score.value,
            "best_cost": result.score.cost,
            "feasible": result.feasible,
            "stopped": result.stopped.value,
            "space_size": float(self._space.size),
            "metrics": dict(result.score.metrics),
            "trace": [[t.number, t.score.value] for t in result.trace],
        }

    def _strategy_results(self, report: Mapping[str, Any]) -> dict[str, Any]:
        metrics = report["metrics"]
        return {
            "sim_acc": metrics["simulated"]["top1"],
            "quant_acc": metrics["realized"]["top1"],
            "float_acc": metrics["float"]["top1"],
            "cost": report["cost"],
        }

    def _log_trials(self, log: JsonlLog) -> None:
        trials = [(t.number, {"candidate.value": t.score.value, "candidate.cost": t.score.cost}) for t in log.read()]
        self._settings.tracker.log_trials(trials)

    def _log_report(self, report: Mapping[str, Any]) -> None:
        tracker = self._settings.tracker
        flat = {
            f"{part}.{name}": value
            for part in ("float", "simulated", "realized")
            for name, value in report["metrics"][part].items()
        }
        for part in ("agreement", "model", "latency", "cost", "search", "calibrate"):
            for name, value in (report.get(part) or {}).items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    flat[f"{part}.{name}"] = float(value)
        tracker.log_metrics(flat)
        tracker.log_params({f"bits.{c['key']}": c["value"] for c in report.get("choices", [])[:MAX_LOGGED_CHOICES]})
        tracker.log_artifacts(self._settings.folder)
        example = next(iter(self._inputs.evaluate.batches(1))).inputs
        tracker.log_model(self._files.model, example)


MAX_LOGGED_CHOICES = 80
"""More parameters than this make MLflow's comparison unreadable; all choices are in the strategy artifact."""
