"""Turn what the Python functions take into the settings of a run.

The files of conf/ are used, as on the command line, so that both have the same defaults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypedDict

from quantpipe.api.workspace import Workspace
from quantpipe.app import compose
from quantpipe.app.settings import Launch, settings_of
from quantpipe.artifacts import plain
from quantpipe.calibrate.estimators import Estimator
from quantpipe.data import GivenDataset
from quantpipe.data.user_functions import name_of
from quantpipe.errors import ConfigError, nearest
from quantpipe.extend import Extension, install_given
from quantpipe.pipeline.settings import Settings
from quantpipe.types import HardwareSpec

Hardware = str | os.PathLike[str] | Mapping[str, Any] | HardwareSpec
Group = str | Mapping[str, Any]
"""The name of an option, or a mapping of its keys; the key `option` names another option than the default."""

QUIET: Mapping[str, Any] = {"tracking": "none", "calibrate": {"cache": "none"}}
"""Where a call from Python departs from the defaults of conf/: nothing is written outside the run folder."""


BESIDE = ("bodies", "dataset", "custom_ops", "fixed", "keep", "random", "recurrent", "strategy", "trial")
"""Options that stand elsewhere in the configuration than by their own names."""

OF_MODEL = ("bodies", "custom_ops", "random", "recurrent")
"""Options that are keys of the group `model`."""


class Options(TypedDict, total=False):
    """Name the options of a run in addition to model, samples and hardware.

    A group (the first twelve) is the name of an option, or a mapping of its keys, of which `option` chooses among the
    files of conf/. The others are values, or mappings of keys, as these files have them.

    Attributes:
        schema: How ranges become scales.
        threshold: How ranges are estimated: an option, or an estimator of your own (also as its key `activations`).
        precision: What stays in float before the search.
        search: How bits are chosen, such as `{"option": "greedy", "max_evaluations": 100}`.
        objective: What is kept within which tolerance at which cost; or a function of yours, as its `target` is.
        recover: Better weights and biases from the calibration samples.
        train: Learned weights and ranges after recovery, such as `"lsq"`; nothing by default. It needs PyTorch.
        realize: The form of the integer model, or a list of forms, which are compared.
        effort: How much is measured after calibration: `"quick"`, `"default"` or `"thorough"`.
        executor: Where candidates are measured.
        tracking: Where the run is filed; nowhere by default.
        dataset: How given samples are divided and preprocessed (the keys of conf/dataset/callable.yaml).
        annotate: What runs in integers and what a search may decide.
        calibrate: What is measured; the cache of statistics is off by default.
        profile: Statistics from a file instead of a calibration run.
        evaluate: The measurements of the result.
        detections: Where a detector's outputs hold boxes and scores.
        choices: Limits on what the search may choose.
        fixed: Values of inputs that are always the same, by name.
        random: What replaces ops that draw random numbers (`model.random`).
        custom_ops: Libraries of custom ops that sessions need (`model.custom_ops`).
        recurrent: Whether recurrent layers are written as their steps or as loops (`model.recurrent`).
        bodies: Whether bodies of If, Loop and Scan are written out (`model.bodies`).
        keep: What of a model that is quantized already is kept (`import.keep` on the command line).
        pick: Which point of a Pareto front is taken.
        plugins: Packages that `_target_` may name; or extensions as objects, with ops, patterns and calibrators.
        seed: Everything random follows from it.
        strict: Reject ops that no rule knows, and raise TargetError where the objective is missed.
        strategy: The file of a strategy (`strategy.json` of a run), which is realized instead of a search; or a log of
            candidates (`trials.jsonl`), with `trial`.
        trial: The number of the candidate in the log.
        verify: `fail` or `warn`: what a difference between simulated and realized integers means.
    """

    schema: Group
    threshold: Group | Estimator
    precision: Group
    search: Group
    objective: Group | Callable[..., float]
    recover: Group
    train: Group
    realize: Group | Sequence[str]
    effort: Group
    executor: Group
    tracking: Group
    dataset: Mapping[str, Any]
    annotate: Mapping[str, Any]
    calibrate: Mapping[str, Any]
    profile: Mapping[str, Any]
    evaluate: Mapping[str, Any]
    detections: Mapping[str, Any]
    choices: Mapping[str, Any]
    fixed: Mapping[str, Any]
    keep: str
    random: str
    custom_ops: str | Sequence[str]
    recurrent: str
    bodies: str
    pick: str
    plugins: Sequence[str | Extension]
    seed: int
    strategy: str | os.PathLike[str]
    strict: bool
    trial: int
    verify: str


def settings_for(
    model: Path, samples: Any, hardware: Hardware, workspace: Workspace, *, options: Mapping[str, Any]
) -> Settings:
    """Return the settings of a run; nothing is read of the model or the samples yet.

    Args:
        model: the ONNX file.
        samples: the samples, in any form that `quantpipe.quantize` takes.
        hardware: the name of a device, its file, or its fields.
        workspace: where the run writes.
        options: the keyword arguments of `quantpipe.quantize`.

    Returns:
        The settings.

    Raises:
        QuantpipeError: a ConfigError, DataError or HardwareError that names what is wrong.
    """
    legal = tuple(Options.__annotations__)
    for name in options:
        if name not in (*legal, "check"):
            raise ConfigError(f"is no option{nearest(name, legal)}; legal are {', '.join(legal)}", where=name)
    given = {key: value for key, value in options.items() if key not in BESIDE and value is not None}
    given |= {"tracking": given.get("tracking", QUIET["tracking"])}
    given["calibrate"] = {**QUIET["calibrate"], **_mapping(given.get("calibrate", {}), "calibrate")}
    given["model"] = {"path": str(model), "fixed": options.get("fixed")}
    given["model"] |= {key: options[key] for key in OF_MODEL if options.get(key) is not None}
    given |= {"import": {"keep": options["keep"]}} if options.get("keep") is not None else {}
    given |= _replay(options.get("strategy"), options.get("trial"))
    if (plugins := given.get("plugins")) is not None and not isinstance(plugins, str):
        given["plugins"] = [install_given(one) if isinstance(one, Extension) else one for one in plugins]
    objects: dict[str, Any] = {"dataset": _dataset(samples, options.get("dataset"))}
    if (function := _function(given.get("objective"))) is not None:
        objects["value_of"] = function
        given["objective"] = _named(given["objective"], function)
    chosen: dict[str, Mapping[str, Any]] = {"dataset": _record(objects["dataset"])}
    if (estimator := _estimator(given.get("threshold"))) is not None:
        objects["estimator"] = estimator
        chosen["threshold"] = _with_estimator(given.pop("threshold"), estimator)
    described = _described(hardware)
    if isinstance(hardware, HardwareSpec):
        objects["spec"] = hardware
    if described is None:
        given["hardware"] = hardware
    else:
        chosen["hardware"] = described
    config, names = compose.composed(chosen, given)
    file = _file(hardware)
    launch = Launch(Path.cwd(), workspace.path, names, workspace.resume_call, given=objects, hardware_file=file)
    return settings_of(config, launch, compose.schemas())


def _replay(strategy: Any, trial: Any) -> dict[str, Any]:
    """The configuration that realizes a stored strategy; empty without a strategy."""
    if strategy is None:
        if trial is not None:
            raise ConfigError("is given without strategy, the log that holds the candidate", where="trial")
        return {}
    if not isinstance(strategy, str | os.PathLike):
        raise ConfigError(
            f"is a {type(strategy).__name__}; legal is the path of a strategy.json, or of a trials.jsonl with trial",
            where="strategy",
        )
    path = str(Path(strategy).expanduser().absolute())
    return {"command": "replay", "strategy": path} | ({} if trial is None else {"replay": {"trial": trial}})


def _described(hardware: Hardware) -> Mapping[str, Any] | None:
    """Return the content of a hardware description that is no option of the group; None for an option."""
    if isinstance(hardware, HardwareSpec):
        content: dict[str, Any] = plain(hardware)
        return content
    if isinstance(hardware, os.PathLike):
        return compose.read_hardware(Path(hardware))
    if isinstance(hardware, Mapping):
        return None if compose.OPTION in hardware else hardware
    if not isinstance(hardware, str):
        raise ConfigError(
            f"is a {type(hardware).__name__}; legal are the name of a shipped file, the path of a YAML file, its "
            "content as a mapping, and a HardwareSpec",
            where="hardware",
        )
    names = compose.option_names("hardware")
    if hardware in names:
        return None
    if hardware.endswith((".yaml", ".yml")):
        return compose.read_hardware(Path(hardware).expanduser())
    raise ConfigError(
        f"is {hardware!r}{nearest(hardware, names)}; legal are {', '.join(names)}, and the path of a YAML file",
        where="hardware",
    )


def _file(hardware: Hardware) -> Path | None:
    """Return the file that describes the device, where it is one."""
    if isinstance(hardware, str | os.PathLike):
        return compose.hardware_file(str(hardware)) or Path(hardware).expanduser()
    return None


def _dataset(samples: Any, options: Mapping[str, Any] | None) -> Any:
    """Return a data set as it is; else one of in-memory samples, with the keys of conf/dataset/callable.yaml."""
    if hasattr(samples, "splits"):
        if options:
            raise ConfigError(
                f"is given together with a {type(samples).__name__}, which has its own options; legal together with "
                "arrays and iterables",
                where="dataset",
            )
        return samples
    keys = {field.name for field in fields(GivenDataset)}
    defaults = {key: value for key, value in compose.option("dataset", "callable").items() if key in keys}
    return GivenDataset(given=samples, **compose.changed(defaults, _mapping(options or {}, "dataset"), "dataset"))


def given_dataset(folder: Path, samples: Any) -> Any:
    """Return samples in memory as the data set of the run in a folder, divided and preprocessed as there.

    Args:
        folder: The run folder; its configuration has the options.
        samples: In any form that `quantpipe.quantize` takes.
    """
    if hasattr(samples, "splits"):
        return samples
    path = folder / "config.yaml"
    kept = compose.read_yaml(path, "explain.run").get("dataset") if path.is_file() else None
    options = (kept.get("options") if isinstance(kept, Mapping) else None) or {}
    legal = compose.option("dataset", "callable")
    return _dataset(samples, {key: value for key, value in options.items() if key in legal})


def _record(dataset: Any) -> dict[str, Any]:
    """Return config.yaml's entry for a data set: its class, and its options as far as they are data.

    Which samples they are is in data.json, by digest.
    """
    kind = type(dataset)
    names = [f.name for f in fields(dataset) if f.name != "given"] if is_dataclass(dataset) else []
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(dataset, name)
        try:
            found[name] = name_of(value) if callable(value) else plain(value)
        except TypeError:  # an object of the user's
            found[name] = type(value).__name__
    return {"name": kind.__name__, "class": f"{kind.__module__}.{kind.__qualname__}", "options": found}


def _estimator(threshold: Any) -> Any:
    """Return the estimator that is given as an object; None for an option or its keys.

    Raises ConfigError for an object that is no estimator, or no dataclass.
    """
    found = threshold.get("activations") if isinstance(threshold, Mapping) else threshold
    if found is None or isinstance(found, str | Mapping):
        return None
    lacking = [name for name in ("needs_histogram", "needs_batches") if not hasattr(found, name)]
    if isinstance(found, type) or not callable(found) or lacking:
        raise ConfigError(
            f"is {found!r}; legal are the name of an option, a mapping of its keys, and an estimator. An estimator has "
            "needs_histogram and needs_batches, is called with (statistics, bits, schema), and returns a Range, as "
            "quantpipe.calibrate.estimators.MSE() does",
            where="threshold",
        )
    if not is_dataclass(found):
        raise ConfigError(
            f"is a {type(found).__name__}, which is no dataclass; legal is a dataclass, since later runs in the folder "
            "compare its fields",
            where="threshold",
        )
    return found


def _with_estimator(threshold: Any, estimator: Any) -> dict[str, Any]:
    """Return the content of the group threshold for an estimator that is an object: its class and its text."""
    kind = type(estimator)
    changes = {k: v for k, v in threshold.items() if k != "activations"} if isinstance(threshold, Mapping) else {}
    content = dict(compose.changed(dict(compose.option("threshold", "mse")), changes, "threshold"))
    return {**content, "activations": {"class": f"{kind.__module__}.{kind.__qualname__}", "object": repr(estimator)}}


def _function(objective: Any) -> Callable[..., float] | None:
    target = objective.get("target") if isinstance(objective, Mapping) else objective
    return target if callable(target) else None


def _named(objective: Any, function: Callable[..., float]) -> dict[str, Any]:
    """Return an objective that is a function, as data."""
    changes = {"option": "callable", **objective} if isinstance(objective, Mapping) else {"option": "callable"}
    return {**changes, "target": name_of(function)}


def _mapping(value: Any, key: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"is {value!r}; legal is a mapping of its keys", where=key)
    return value
