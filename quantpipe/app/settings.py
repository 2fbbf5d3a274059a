"""Configuration -> Settings: every group turned into its typed value, every mistake named by its key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any

from hydra.conf import HydraConf
from hydra.types import RunMode
from omegaconf import DictConfig

from quantpipe import extend
from quantpipe.annotate.conditions import AnnotateOptions
from quantpipe.annotate.constraints import constraints_given
from quantpipe.annotate.limits import ChoiceLimits
from quantpipe.app.chosen_forms import forms_of, forms_record, is_implied, refuse_brain, refuse_half, several_options
from quantpipe.app.command_line import changed_keys, overrides_of, resume_command
from quantpipe.app.compose import hardware_file
from quantpipe.app.device_defaults import with_bits, with_cost
from quantpipe.app.group_options import plain_config as _plain
from quantpipe.app.group_options import shipped_schemas, threshold_option
from quantpipe.app.hardware_place import load_located
from quantpipe.app.instances import make
from quantpipe.app.model_options import install_custom_ops, read_fixed, read_keep, read_random, refuse_custom_ops
from quantpipe.app.named_functions import functions_of, objective_function
from quantpipe.app.shape import check_shape
from quantpipe.app.targets import refuse_plugins
from quantpipe.app.thresholds import Option, rules_of, shipped_option
from quantpipe.errors import ConfigError, brief, nearest, refuse_unknown
from quantpipe.graph.io import RESIDENT_MB
from quantpipe.hardware.bodies import Bodies, body_forms, read_bodies
from quantpipe.hardware.cells import Recurrent, cell_forms, read_recurrent
from quantpipe.hardware.schemas import resolve_schema
from quantpipe.metrics.detection_outputs import DetectionOptions
from quantpipe.option_checks import integer
from quantpipe.passwords import concealed
from quantpipe.pipeline.effort_options import EffortOptions
from quantpipe.pipeline.explain_settings import ExplainSettings
from quantpipe.pipeline.settings import (
    OBJECTIVE,
    CalibrateSettings,
    CheckSettings,
    EvaluateSettings,
    PrecisionSettings,
    ReplaySettings,
    SearchSettings,
    Settings,
)
from quantpipe.pipeline.vector_settings import OF_FINISHED_RUNS
from quantpipe.realize import refuse_clashes
from quantpipe.recover import RecoverOptions
from quantpipe.train.train_options import TrainOptions

GROUPS = (
    "model",
    "dataset",
    "hardware",
    "schema",
    "threshold",
    "precision",
    "search",
    "objective",
    "recover",
    "train",
    "realize",
    "effort",
    "executor",
    "tracking",
)

KEYS = (
    "command",
    "strategy",
    "pick",
    "stages",
    "seed",
    "strict",
    "verify",
    "verbosity",
    "plugins",
    "replay",
    "choices",
    "annotate",
    "calibrate",
    "profile",
    "evaluate",
    "detections",
    "check",
    "explain",
    "runs",
    "dump",
    "vectors",
    "identify",
    "import",
)

PARTS: Mapping[str, tuple[str, ...]] = {
    "model": ("path", "resident_mb", "fixed", "isolate", "recurrent", "bodies", "random", "custom_ops"),
    "schema": ("name", "activations", "weights"),
    "threshold": ("activations", "weights", "rules"),
    "threshold.weights": ("method",),
    "search": tuple(SearchSettings.__dataclass_fields__),
    "objective": OBJECTIVE,
    "realize": ("backend", "forms"),
    "profile": ("load",),
    "import": ("keep",),
}
"""What may stand in parts of the configuration that are read key by key."""


@dataclass(frozen=True, eq=False)
class Launch:
    """Hold the sources of a run's settings other than its configuration.

    `cwd` is the folder that relative paths start from; further there are the run folder, the option of each group, and
    how to go on after an interruption. `sweep` is the folder of the sweep that the run belongs to; `changed` the keys
    that were given on the command line. `threshold` gives the content of an option of that group. `given`: settings
    that the caller has as objects already, by the name of their field, in place of what the configuration would
    describe. `hardware_file` is the file that describes the device, where it is one.
    """

    cwd: Path
    folder: Path
    choices: Mapping[str, str]
    resume_command: str
    sweep: str | None = None
    changed: Mapping[str, str] = field(default_factory=dict)
    threshold: Option = shipped_option
    given: Mapping[str, Any] = field(default_factory=dict)
    hardware_file: Path | None = None


def build_settings(config: DictConfig, hydra_config: HydraConf) -> Settings:
    """Return all of a run's settings.

    Raises ConfigError or HardwareError naming the key and what would be legal.
    """
    check_shape(_plain(config), (*GROUPS, *KEYS))
    refuse_plugins(_expect(_plain(config)["plugins"], ("",), "plugins"), overrides_of(hydra_config))
    refuse_custom_ops(_plain(config)["model"].get("custom_ops"), overrides_of(hydra_config))
    _refuse_beside_explain(str(config.command), overrides_of(hydra_config))
    cwd = Path(hydra_config.runtime.cwd)
    folder = Path(hydra_config.runtime.output_dir).absolute()
    sweep = str((cwd / hydra_config.sweep.dir).absolute()) if hydra_config.mode == RunMode.MULTIRUN else None
    known = hydra_config.runtime.choices  # of a group that has a list of options Hydra tells none
    choices = {g: str(known[g]) if g in known else several_options(config, g) for g in GROUPS}
    changed = changed_keys(hydra_config)
    resume = resume_command(hydra_config, folder)
    file = _hardware_file(choices["hardware"], hydra_config)
    launch = Launch(cwd, folder, choices, resume, sweep, changed, threshold_option, hardware_file=file)
    return settings_of(_plain(config), launch, shipped_schemas())


def _hardware_file(name: str, hydra_config: HydraConf) -> Path | None:
    """Return the file of the chosen device: Hydra takes the first of its search path."""
    folders = [Path(source.path) for source in hydra_config.runtime.config_sources if source.schema == "file"]
    found = (folder / "hardware" / f"{name}.yaml" for folder in folders)
    return next((path for path in found if path.is_file()), None) or hardware_file(name)


def _refuse_beside_explain(command: str, overrides: Sequence[str]) -> None:
    """Raise ConfigError for keys that `command=explain` would ignore: the run's own configuration is in its folder."""
    legal = ("command", "explain.", "check.format", "plugins", "model.custom_ops", "verbosity", "hydra.")
    other = [text for text in overrides if not text.lstrip("+").startswith(legal)]
    elsewhere = any(text.lstrip("+").startswith(("explain.file=", "strategy=")) for text in overrides)
    if command == "explain" and other and not elsewhere:
        raise ConfigError(
            "has no meaning with explain.run=FOLDER, as command=explain takes the configuration from the folder of the "
            "run; legal are explain.*, check.format, plugins and model.custom_ops",
            where=other[0].lstrip("+~").partition("=")[0],
        )


def settings_of(config: Mapping[str, Any], start: Launch, schemas: Mapping[str, Mapping[str, Any]]) -> Settings:
    """Return the settings of a configuration, whoever composed it.

    `config`: plain data by today's names; `schemas`: every option of that group but `auto`, by name.

    Raises ConfigError or HardwareError naming the key and what would be legal.
    """
    plain, launch, given = dict(config), start.cwd, start.given
    _refuse_unknown_keys(plain)
    plugins = _expect(plain["plugins"], ("",), "plugins")
    extend.install(plugins)
    install_custom_ops(plain["model"].get("custom_ops"), launch)
    refuse_clashes()
    constraints = constraints_given(plain["annotate"].get("constraints"), launch)
    plain["annotate"] = plain["annotate"] | {"constraints": constraints}
    spec = given.get("spec") or load_located(plain["hardware"], start.hardware_file, start.changed)
    schema = resolve_schema(spec, plain["schema"], schemas)
    forms = forms_of(plain["realize"], spec, verify=str(plain["verify"]))
    refuse_half(forms, str(plain["annotate"].get("float_type")))
    refuse_brain(forms, spec)
    search = plain["search"]
    functions = functions_of(plain["dataset"], plugins, launch)
    return Settings(
        command=str(plain["command"]),
        stages=tuple(_expect(plain["stages"], ("",), "stages")),
        model=_path(plain["model"].get("path"), "model.path", launch),
        dataset=given["dataset"] if "dataset" in given else make(plain["dataset"], "dataset", plugins, **functions),
        spec=spec,
        schema=schema,
        estimator=given.get("estimator") or make(plain["threshold"]["activations"], "threshold.activations", plugins),
        weight_method=plain["threshold"]["weights"]["method"],
        rules=rules_of(plain["threshold"].get("rules"), plugins, start.threshold),
        search=SearchSettings(
            make(search["algorithm"], "search.algorithm", plugins),
            search["max_evaluations"],
            search["max_seconds"],
            str(search["candidate_form"]),
            search.get("target"),
            str(search["weights"]),
            search["refine"],
            search["finalists"],
            _path(search["start"], "search.start", launch) if search.get("start") else None,
        ),
        objective=with_cost(plain["objective"], spec),
        recover=recover_options(plain["recover"]),
        train=_built(TrainOptions, plain.get("train") or {}, "train"),
        backend=forms[0],
        forms=forms[1:],
        exact_implied=is_implied(plain["realize"], spec, forms[0]),
        annotate=_annotate(
            with_bits(plain["annotate"], plain["objective"].get("cost")), _expect(plain["strict"], False, "strict")
        ),
        evaluate=_evaluate(plain["evaluate"]),
        effort=_effort(plain["effort"]),
        detections=_built(DetectionOptions, plain["detections"] or {}, "detections"),
        check=_built(CheckSettings, plain["check"] or {}, "check"),
        explain=_explain(plain.get("explain") or {}, launch),
        calibrate=_options(CalibrateSettings, _calibrate(plain["calibrate"]), "calibrate"),
        resident_mb=_expect(plain["model"].get("resident_mb", RESIDENT_MB), RESIDENT_MB, "model.resident_mb"),
        fixed=read_fixed(plain["model"].get("fixed")),
        precision=_options(PrecisionSettings, plain["precision"], "precision"),
        keep=read_keep(plain.get("import") or {}),
        random=read_random(plain["model"].get("random")),
        isolate=_expect(plain["model"].get("isolate", True), True, "model.isolate"),
        cells=replace(
            cell_forms(spec, read_recurrent(plain["model"].get("recurrent", Recurrent.AUTO))),
            bodies=body_forms(spec, read_bodies(plain["model"].get("bodies", Bodies.AUTO))),
        ),
        verify=str(plain["verify"]),
        verbosity=str(plain["verbosity"]),
        seed=integer("seed", plain["seed"], least=0),
        folder=start.folder,
        resume_command=start.resume_command,
        tracker=make(plain["tracking"], "tracking", plugins, launch_folder=str(launch), parent_key=start.sweep),
        executor=make(plain["executor"], "executor", plugins),
        choices=start.choices,
        changed=start.changed,
        config=concealed(plain) | {"realize": forms_record(forms), "schema": asdict(schema)},
        strategy=_path(plain["strategy"], "strategy", launch) if plain["strategy"] else None,
        profile=_profile(plain["profile"], launch),
        limits=_built(ChoiceLimits, plain["choices"], "choices"),
        pick=str(plain["pick"]),
        runs=tuple(_expect(plain.get("runs") or [], ("",), "runs")),
        dump=_path(plain["dump"], "dump", launch) if plain.get("dump") else None,
        **{key: _built(kind, plain.get(key) or {}, key) for key, kind in OF_FINISHED_RUNS.items()},
        replay=_built(ReplaySettings, plain["replay"], "replay"),
        value_of=given.get("value_of") or objective_function(plain["objective"].get("target"), plugins),
    )


def _annotate(given: Mapping[str, Any], strict: bool) -> AnnotateOptions:
    known = [name for name in AnnotateOptions.__dataclass_fields__ if name != "strict"]  # which stands at the top
    refuse_unknown(given, known, "annotate")
    plain = {k: v for k, v in given.items() if k not in ("constraints", "split_channels")} | {"strict": strict}
    options: AnnotateOptions = _options(AnnotateOptions, plain, "annotate")
    return replace(options, constraints=given["constraints"], split_channels=given.get("split_channels"))


def _options(kind: type[Any], given: Mapping[str, Any], key: str) -> Any:
    """Return a dataclass of options whose defaults say what kind of value each one takes."""
    fields = kind.__dataclass_fields__
    for name, value in _known(kind, given, key).items():
        _expect(value, fields[name].default, f"{key}.{name}")
    return _built(kind, given, key)


def _built(kind: type[Any], given: Mapping[str, Any], key: str) -> Any:
    """Return a dataclass of options, whose own checks say what is wrong with a value.

    A value of a type that they do not expect is a ConfigError, too.
    """
    try:
        return kind(**_known(kind, given, key))
    except (TypeError, ValueError, ArithmeticError, AttributeError, LookupError) as error:
        raise ConfigError(
            f"is {dict(given)!r}, of which one value has another type ({brief(error)})", where=key
        ) from error


def recover_options(given: Mapping[str, Any]) -> RecoverOptions:
    """Return the options of recovery.

    Its steps may be mappings; what they hold is checked by the options themselves.
    """
    plain = {key: value for key, value in given.items() if key != "steps"}
    found: RecoverOptions = _options(RecoverOptions, plain, "recover")
    return replace(found, steps=given.get("steps", ()))


def _evaluate(given: Mapping[str, Any]) -> EvaluateSettings:
    """Return the evaluate settings, which check values of number or null themselves."""
    free = ("realized_samples", "warn_sqnr_db")
    found: EvaluateSettings = _options(
        EvaluateSettings, {key: value for key, value in given.items() if key not in free}, "evaluate"
    )
    return replace(found, **{key: given[key] for key in free if key in given})


def _effort(given: Mapping[str, Any]) -> EffortOptions:
    """Return the options of the effort; they check `max_seconds`, a number or null, themselves."""
    plain = {key: value for key, value in given.items() if key != "max_seconds"}
    found: EffortOptions = _options(EffortOptions, plain, "effort")
    return replace(found, max_seconds=given.get("max_seconds"))


def _known(kind: type[Any], given: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the options, all of which the dataclass has; ConfigError otherwise."""
    refuse_unknown(given, kind.__dataclass_fields__, key)
    return given


def _refuse_unknown_keys(plain: Mapping[str, Any]) -> None:
    """Reject unknown keys, in parts that are read key by key, by ConfigError.

    All others are checked where they become typed values, or objects (`make`).
    """
    for key in plain:
        if key not in (*GROUPS, *KEYS):
            raise ConfigError(
                f"is no key{nearest(key, (*GROUPS, *KEYS))}; legal are {', '.join((*GROUPS, *KEYS))}", where=key
            )
    for path, legal in PARTS.items():
        part: Any = plain
        for name in path.split("."):
            part = part.get(name) if isinstance(part, Mapping) else None
        refuse_unknown(part if isinstance(part, Mapping) else (), legal, path)


def _expect(value: Any, default: Any, key: str) -> Any:
    """Return the value, if it is of the default's kind; ConfigError otherwise."""
    if not _fits(value, default):
        raise ConfigError(f"is {value!r}; legal is {_KINDS[type(default)]}", where=key)
    return value


def _fits(value: Any, default: Any) -> bool:
    if isinstance(default, tuple):
        return isinstance(value, list) and all(_fits(item, default[0] if default else "") for item in value)
    if default is None:
        return value is None or isinstance(value, str)
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    return isinstance(value, int | float if isinstance(default, float) else type(default))


_KINDS = {
    NoneType: "a word, or null",
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "a word",
    tuple: "a list in brackets, such as [a,b] or [0,1]",
}


def _calibrate(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with true and false for all and no tensors, and null for no cache, as users write them."""
    shorthand = {True: ["*"], False: []}
    found = {key: shorthand[v] if key == "per_channel" and isinstance(v, bool) else v for key, v in given.items()}
    return found | ({"cache": "none"} if found.get("cache", "") is None else {})


def _path(value: Any, key: str, launch: Path) -> Path:
    if not value:
        raise ConfigError("is empty; it must name a file", where=key)
    return launch / Path(str(value)).expanduser()


def _explain(given: Mapping[str, Any], launch: Path) -> ExplainSettings:
    own = {k: v for k, v in given.items() if k not in ("run", "file")}
    own["per_channel"] = own.get("per_channel") or []
    found: ExplainSettings = _options(ExplainSettings, own, "explain")
    places: dict[str, Any] = {k: _path(given[k], f"explain.{k}", launch) for k in ("run", "file") if given.get(k)}
    return replace(found, per_channel=tuple(found.per_channel), **places)


def _profile(given: Mapping[str, Any], launch: Path) -> Path | None:
    return _path(given["load"], "profile.load", launch) if given.get("load") else None
