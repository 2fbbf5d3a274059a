"""The typed settings of a run: the app fills them from the configuration, the runner acts on them. No Hydra here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, get_args

import numpy as np

from quantpipe.annotate.conditions import STRUCTURAL, AnnotateOptions
from quantpipe.annotate.limits import ChoiceLimits
from quantpipe.artifacts import digest_json
from quantpipe.calibrate.estimators import Estimator
from quantpipe.calibrate.ruled import WeightMethod
from quantpipe.calibrate.rules import Rule
from quantpipe.data.splits import Splits
from quantpipe.errors import ConfigError
from quantpipe.metrics.detection_outputs import DetectionOptions
from quantpipe.metrics.reference import ValueOf
from quantpipe.option_checks import flag, integer, number, one_of
from quantpipe.pipeline.effort_options import EffortOptions
from quantpipe.pipeline.explain_settings import ExplainSettings
from quantpipe.pipeline.vector_settings import OF_DUMPS, OF_RUNS, TimesSettings, VectorSettings, refuse_runs
from quantpipe.recover import RecoverOptions
from quantpipe.scoring.candidate import EvaluatorKind
from quantpipe.scoring.workers import Executor
from quantpipe.search import Algorithm, FloatFigures, Metric, Objective, ObjectiveForm, ObjectiveOptions, Pick
from quantpipe.tracking import Tracker
from quantpipe.train.train_options import NO_TRAINING, TrainOptions
from quantpipe.types import NO_CELLS, HardwareSpec, Keep, LoopForms, RandomOps, Schema, TensorInfo
from quantpipe.types.choice_key import ChoiceKind

RUN_LOG = "quantpipe.run"
"""The logger that main.log is written from: what happens in a run, whatever the terminal shows of it."""

STAGES = ("annotate", "calibrate", "search", "realize", "evaluate")
VERBOSITIES = ("quiet", "normal", "verbose")
RUNS = ("run", "replay")
COMMANDS = (*RUNS, "check", "lint", "verify", "explain", "compare", "sync", "export_vectors", "identify")
COMPARED_GROUPS = (
    "dataset", "hardware", "schema", "threshold", "precision", "search", "objective", "recover", "train", "realize",
    "effort",
)  # fmt: skip
"""Groups of the configuration whose options a report names, and by which runs are distinguished."""
FORMATS, VERIFY = ("text", "json"), ("fail", "warn")
OBJECTIVE = (
    "metric", "target", "outputs", "all_outputs", "form", "tolerance", "cost", "cost_limit", "weight", "latency_runs",
    "latency_seconds", "over",
)  # fmt: skip
LEAST_MEMORY_MB = 16
PRECISION = ("auto", "none")
STATISTICS, WEIGHTS = ("full", "extremes"), ("nearest", "recovered")


class Dataset(Protocol):
    """Declare the interface of a dataset option: three disjoint splits that fit the model."""

    def splits(self, inputs: Sequence[TensorInfo], outputs_classes: int | None, seed: int) -> Splits:
        """Return the calibrate, search and evaluate split of the samples, fitted to the model's inputs."""


@dataclass(frozen=True)
class SearchSettings:
    """State how a search is run.

    `weights`: how candidates' weights are rounded. `refine`: whether `finalists` candidates are recovered, and the best
    of them after that is taken. `start`: the file of an earlier search that this one begins with.
    """

    algorithm: Algorithm
    max_evaluations: int | None
    max_seconds: float | None
    candidate_form: str = EvaluatorKind.AUTO.value
    target: float | None = None
    weights: str = "nearest"
    refine: bool = False
    finalists: int = 4
    start: Path | None = None

    def __post_init__(self) -> None:
        one_of("search.weights", self.weights, WEIGHTS)
        integer("search.finalists", self.finalists, least=1)
        flag("search.refine", self.refine)
        one_of("search.candidate_form", self.candidate_form, [kind.value for kind in EvaluatorKind])
        if self.max_evaluations is not None:
            integer("search.max_evaluations", self.max_evaluations, least=1, also=", or null for no limit")
        if self.max_seconds is not None:
            number("search.max_seconds", self.max_seconds, above=0.0, also=", or null for no limit")
        if self.target is not None:
            number("search.target", self.target, also=", or null for none")


@dataclass(frozen=True)
class CalibrateSettings:
    """State which statistics are gathered.

    `statistics`: `full`, or `extremes` for minima and maxima only. `per_channel`: glob patterns of tensors.

    `cache`: the folder of statistics that all runs share, `auto` for the user's own, `none` for no cache.
    """

    memory_mb: int = 1024
    statistics: str = "full"
    per_channel: tuple[str, ...] = ()
    cache: str = "auto"

    def __post_init__(self) -> None:
        if self.memory_mb < LEAST_MEMORY_MB:
            raise ConfigError(
                f"is {self.memory_mb}; at least {LEAST_MEMORY_MB} MiB are needed", where="calibrate.memory_mb"
            )
        one_of("calibrate.statistics", self.statistics, STATISTICS)
        object.__setattr__(self, "per_channel", tuple(self.per_channel))
        if not self.cache:
            raise ConfigError("is empty; legal are auto, none and a folder", where="calibrate.cache")


@dataclass(frozen=True)
class PrecisionSettings:
    """State whether nodes may stay in float before the search.

    `mode`: `auto` or `none`. `loss_above`: The loss of the outputs, in nats, up to which nothing is done.
    `max_evaluations`: How many candidates are measured at most.
    """

    mode: str = "auto"
    loss_above: float = 0.1
    max_evaluations: int = 30

    def __post_init__(self) -> None:
        one_of("precision.mode", self.mode, PRECISION)
        number("precision.loss_above", self.loss_above, least=0.0)
        integer("precision.max_evaluations", self.max_evaluations, least=1)


@dataclass(frozen=True)
class EvaluateSettings:
    """State which measurements of the result are made.

    `agreement_samples`, `layer_samples`: how many samples of the evaluate split are compared tensor by tensor.
    `realized_samples`: how many of them the realized model runs on for its metrics, None for all. `output`: the model's
    output that metrics and objectives are about, None for the first. `warn_sqnr_db`: outputs of the realized model with
    less SQNR are warned of, None for none. `baseline`: auto compares with onnxruntime's own quantization. `explain`:
    auto looks for what is wrong with a result that misses its objective or loses too much.
    """

    output: str | None = None
    realized_samples: int | None = None
    agreement_samples: int = 64
    layer_samples: int = 32
    latency_runs: int = 50
    latency_seconds: float = 10.0
    warn_sqnr_db: float | None = 15.0
    baseline: str = "auto"
    explain: str = "auto"

    def __post_init__(self) -> None:
        for name in ("baseline", "explain"):
            one_of(f"evaluate.{name}", getattr(self, name), ("auto", "none"))
        for name in ("agreement_samples", "layer_samples", "latency_runs"):
            integer(f"evaluate.{name}", getattr(self, name), least=1)
        if self.realized_samples is not None:
            integer("evaluate.realized_samples", self.realized_samples, least=1, also=", or null for all")
        if self.warn_sqnr_db is not None:
            number("evaluate.warn_sqnr_db", self.warn_sqnr_db, also=", or null for no warning")
        number("evaluate.latency_seconds", self.latency_seconds, above=0)


@dataclass(frozen=True)
class CheckSettings:
    """State how `command=check` and `command=lint` answer; `shapes` by input name, for inputs with free axes."""

    format: str = "text"
    shapes: Mapping[str, Sequence[int]] | None = None

    def __post_init__(self) -> None:
        one_of("check.format", self.format, FORMATS)
        object.__setattr__(self, "shapes", self.shapes or {})
        if not isinstance(self.shapes, Mapping):
            raise ConfigError(f"is {self.shapes!r}; legal is {{input: [1,3,224,224]}}", where="check.shapes")
        for name, shape in self.shapes.items():
            if isinstance(shape, str) or not isinstance(shape, Sequence):
                raise ConfigError(f"is {shape!r}; legal is a list such as [1,3,224,224]", where=f"check.shapes.{name}")


@dataclass(frozen=True)
class ReplaySettings:
    """State which strategy is replayed.

    `force`: take a strategy of another model where all its names fit. `trial`: a number in trials.jsonl, where the file
    named is a log.
    """

    force: bool = False
    trial: int | None = None

    def __post_init__(self) -> None:
        flag("replay.force", self.force)
        if self.trial is not None:
            integer("replay.trial", self.trial, least=0, also=", or null for a strategy.json")


class Console(Protocol):
    """Tell how far a run is."""

    def stage(self, name: str, note: str = "") -> None:
        """Tell that a stage begins."""

    def progress(self, name: str) -> Callable[[int, int, str], None]:
        """Return a function to call with (done, total, note)."""

    def warn(self, text: str) -> None:
        """Tell a warning."""


@dataclass(frozen=True)
class Settings:
    """One run.

    `choices` are the names of the group options, and `changed` the keys that the command line gave, with their values
    as given. `config` is the resolved configuration as plain data.
    """

    command: str
    stages: tuple[str, ...]
    model: Path
    dataset: Dataset
    spec: HardwareSpec
    schema: Schema
    estimator: Estimator
    weight_method: WeightMethod
    search: SearchSettings
    objective: Mapping[str, Any]
    recover: RecoverOptions
    backend: str
    annotate: AnnotateOptions
    evaluate: EvaluateSettings
    check: CheckSettings
    calibrate: CalibrateSettings
    resident_mb: int
    verify: str
    seed: int
    folder: Path
    resume_command: str
    tracker: Tracker
    executor: Executor
    choices: Mapping[str, str] = field(default_factory=dict)
    changed: Mapping[str, str] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    strategy: Path | None = None
    profile: Path | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    limits: ChoiceLimits = field(default_factory=ChoiceLimits)
    pick: str = "knee"
    replay: ReplaySettings = field(default_factory=ReplaySettings)
    value_of: ValueOf | None = None
    isolate: bool = True
    random: RandomOps | None = None
    """What replaces ops that draw random numbers."""
    cells: LoopForms = NO_CELLS
    """Recurrent layers that are written as their steps, or as loops."""
    keep: Keep = Keep.ALL
    precision: PrecisionSettings = field(default_factory=PrecisionSettings)
    effort: EffortOptions = EffortOptions()  # noqa: RUF009  (frozen)
    explain: ExplainSettings = field(default_factory=ExplainSettings)
    detections: DetectionOptions = DetectionOptions()  # noqa: RUF009  (frozen)
    rules: tuple[Rule, ...] = ()
    train: TrainOptions = NO_TRAINING
    runs: tuple[str, ...] = ()
    dump: Path | None = None
    vectors: VectorSettings = field(default_factory=VectorSettings)
    identify: TimesSettings = field(default_factory=TimesSettings)
    verbosity: str = "normal"
    forms: tuple[str, ...] = ()
    """Forms that are written beside realize/model.onnx, which has that of `backend`."""
    exact_implied: bool = False
    """Whether nobody asked for the form of model.onnx: it is written because no other one is exact."""
    told: dict[str, Any] = field(init=False, default_factory=dict, compare=False, repr=False)
    """Parts as plain data, each made once: every artifact's origin asks for several."""

    @property
    def estimation(self) -> str:
        """Return how ranges are estimated, as logs of trials name it."""
        own = f", rules {[rule.text for rule in self.rules]}, {[rule.estimator for rule in self.rules]}"
        long = any(isinstance(value, np.ndarray) for value in vars(self.estimator).values())  # their text is shortened
        named = f"{self.estimator!r}{f' {digest_json(self.estimator)}' if long else ''}"
        return f"{named}, weights by {self.weight_method}{own if self.rules else ''}"

    @property
    def recovers_if_needed(self) -> bool:
        """Return whether the result of the search decides on recovery (`recover.when`).

        Whoever asks for finalists asks for their recovery.
        """
        return self.recover.when != "always" and not self.search.refine

    @property
    def holdout(self) -> float:
        """Return the share of the search samples that the search does not see, so that they can judge recovery.

        Nothing is set aside where candidates are rounded to the nearest: recovery then makes other weights than those
        chosen by. Nor is it for a recovery that may never run: the search is the one that it would be without.
        """
        if self.search.weights == "nearest" or not self.recover.steps or self.recovers_if_needed:
            return 0.0
        return self.recover.holdout

    def __post_init__(self) -> None:
        one_of("command", self.command, COMMANDS)
        one_of("verify", self.verify, VERIFY)
        one_of("verbosity", self.verbosity, VERBOSITIES)
        for stage in self.stages:
            one_of("stages", stage, STAGES)
        if self.resident_mb < 0:
            raise ConfigError(f"is {self.resident_mb}; legal is 0 and above", where="model.resident_mb")
        if not self.stages:
            raise ConfigError(f"names no stage; legal are {', '.join(STAGES)}", where="stages")
        one_of("threshold.weights.method", self.weight_method, get_args(WeightMethod))
        used = {f"threshold={self.choices.get('threshold', type(self.estimator).__name__)}": self.estimator}
        used |= {f"threshold.rules: {rule.text}": rule.estimator for rule in self.rules}
        reading = [name for name, estimator in used.items() if getattr(estimator, "needs_histogram", True)]
        if self.calibrate.statistics == "extremes" and reading:
            raise ConfigError(
                f"is extremes, and {reading[0]} reads "
                "histograms; legal are full, or a threshold that needs only extremes, such as max_range",
                where="calibrate.statistics",
            )
        for name in self.objective:
            one_of("objective", name, OBJECTIVE)
        # Built once more, with the float model's own figures, when the search begins: a wrong word is told now.
        objective = Objective.of(ObjectiveOptions(**self.objective), FloatFigures(accuracy=0.0, start_cost=1.0))
        if objective.form is ObjectiveForm.PARETO and self.search.target is not None:
            raise ConfigError(
                f"has no meaning with objective.form={ObjectiveForm.PARETO}, which has no single best; give null",
                where="search.target",
            )
        structural = [kind for kind in self.annotate.choices if kind in STRUCTURAL and kind != ChoiceKind.BLOCK]
        if structural and self.search.weights != "nearest":
            raise ConfigError(
                f"is {self.search.weights}, and annotate.choices has {', '.join(structural)}: candidates' weights are "
                "recovered for one topology; legal is nearest, or choices of bits, blocks, thresholds (recover works "
                "with all of them)",
                where="search.weights",
            )
        Pick.parse(self.pick)
        if self.search.refine and not self.recover.steps:
            raise ConfigError(
                "is true, and recover names no step; give recover=auto or recover=default, or search.refine=false",
                where="search.refine",
            )
        self._refuse_idle_keys()
        refuse_runs(self.command, self.runs, self.dump, self.identify.times)
        if self.command == "replay" and self.profile is not None:
            raise ConfigError("has no meaning with command=replay, which reads no statistics", where="profile.load")
        if self.command == "replay" and self.strategy is None:
            raise ConfigError("command=replay needs strategy=FILE, a strategy.json of an earlier run", where="strategy")
        subjects = (self.explain.run, self.explain.file, self.strategy)
        if self.command == "explain" and sum(one is not None for one in subjects) != 1:
            raise ConfigError(
                "command=explain needs one of three keys. Legal are explain.run=FOLDER (a finished run), "
                "explain.file=FILE (a quantized model made from model.path), and strategy=FILE (a strategy.json for "
                "model.path)",
                where="explain.run",
            )
        if self.explain.run is None and self.explain.apply:
            raise ConfigError("goes with explain.run alone: there is no run to repeat", where="explain.apply")

    def _refuse_idle_keys(self) -> None:
        """Raise ConfigError for keys that are set and would change nothing."""
        search, aim = self.search, self.objective
        idle = {
            "strategy": (self.strategy is not None, "command=replay or explain", self.command in ("replay", "explain")),
            "replay.trial": (self.replay.trial is not None, "command=replay", self.command == "replay"),
            "explain.run": (self.explain.run is not None, "command=explain", self.command == "explain"),
            "explain.file": (self.explain.file is not None, "command=explain", self.command == "explain"),
            "runs": (bool(self.runs), f"command={', '.join(OF_RUNS)}", self.command in OF_RUNS),
            "dump": (self.dump is not None, "command=compare or command=identify", self.command in OF_DUMPS),
            "identify.times": (self.identify.times is not None, "command=identify", self.command == "identify"),
            "replay.force": (self.replay.force, "command=replay", self.command == "replay"),
            "objective.outputs": (bool(aim.get("outputs")), "objective=auto", aim["metric"] == Metric.AUTO),
            "pick": (self.pick != "knee", "objective.form=pareto", self.objective["form"] == ObjectiveForm.PARETO),
            "search.finalists": (search.finalists != SearchSettings.finalists, "search.refine=true", search.refine),
        }
        for key, (given, needed, there) in idle.items():
            if given and not there:
                raise ConfigError(f"is set, and has a meaning with {needed} only; leave it out, or add that", where=key)
