"""Restore the settings of a run from its folder, and add the changes that `command=explain` tries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from quantpipe.app import compose
from quantpipe.app.instances import make
from quantpipe.app.model_options import refuse_custom_ops_of_run
from quantpipe.app.renamed import config_as_now_named
from quantpipe.app.settings import Launch, recover_options, settings_of
from quantpipe.artifacts import read_json, read_text
from quantpipe.errors import ArtifactError, ConfigError
from quantpipe.explain.diagnosis import diagnose
from quantpipe.pipeline.context import RunContext, SearchDecision
from quantpipe.pipeline.effort import EffortBudget
from quantpipe.pipeline.explain_settings import TRAINING, ShippedOptions
from quantpipe.pipeline.run_folder import RunFolder
from quantpipe.pipeline.settings import Settings
from quantpipe.train.train_options import TrainOptions
from quantpipe.types import DiagnosisPart, Profile, RunReport
from quantpipe.version import __version__

THRESHOLDS = ("max_range", "percentile", "mse", "kl")
"""Options of the group that are tried for the whole run."""

TRIAL_EPOCHS = 4
"""Of the training that is tried: enough to see whether it gains anything."""

STAGE = "explain"


def settings_of_run(
    folder: Path, *, plugins: list[str], given: Mapping[str, Any] | None = None, key: str = "explain.run"
) -> Settings:
    """Return the settings that a run was made with, by the config.yaml in its folder.

    `plugins` are packages that the caller allows; the file itself cannot allow any. `given` are settings that the
    caller has as objects, by field; `key` names the folder in errors.

    Raises ArtifactError for a folder that holds no run, or a run of another version. Raises ConfigError where the run
    needs a plug-in or in-memory samples that were not given.
    """
    files = RunFolder(folder)
    if not folder.is_dir():
        raise ArtifactError("is no folder; legal is the folder of a finished run", stage=STAGE, where=str(folder))
    if not files.config.is_file():
        raise ArtifactError(
            f"holds no {files.config.name}, so it is no run folder; legal is the folder of a finished run (where its "
            "report is in evaluate/report.json)",
            stage=STAGE,
            where=str(folder),
        )
    try:
        config = yaml.safe_load(read_text(files.config))
    except yaml.YAMLError as error:
        raise ArtifactError(f"is no YAML: {error}", stage=STAGE, where=str(files.config)) from error
    if not isinstance(config, dict):
        raise ArtifactError("holds no configuration", stage=STAGE, where=str(files.config))
    if not files.report.is_file():
        raise ArtifactError(
            "is not there: the run is not finished; run its command again to the end, then explain it",
            stage=STAGE,
            where=str(files.report),
        )
    _refuse_other_version(read_json(files.report), files.report)
    objects = dict(given or {})
    if "dataset" not in objects and "_target_" not in (config.get("dataset") or {}):
        raise ConfigError(
            f"the samples of the run in {folder} were given from Python, and are not in its folder; legal is "
            "quantpipe.explain(folder, samples=…) with the same samples",
            where=key,
        )
    wanted = [name for name in config.get("plugins") or () if name not in plugins]
    if wanted:
        raise ConfigError(
            f"the run was made with plugins=[{','.join(wanted)}]; give that on the command line, if you trust them",
            where=key,
        )
    refuse_custom_ops_of_run((config.get("model") or {}).get("custom_ops"), Path.cwd(), key)
    config |= {"command": "run", "strategy": None, "tracking": {"_target_": "quantpipe.tracking.NullTracker"}}
    config |= {"replay": {}, "search": {**(config.get("search") or {}), "start": None}}
    launch = Launch(Path.cwd(), folder.absolute(), {}, f"{key}={folder}", given=objects)
    try:
        return settings_of(config_as_now_named(config), launch, compose.schemas())
    except (LookupError, TypeError, AttributeError) as error:
        raise ArtifactError(
            f"is no configuration of this version ({type(error).__name__}: {error})", stage=STAGE,
            where=str(files.config),
        ) from error  # fmt: skip


def shipped() -> ShippedOptions:
    """Return the options that are tried for the whole run; of training, a trial of few epochs."""
    thresholds = {}
    for name in THRESHOLDS:
        found = compose.option("threshold", name)
        estimator = make(found["activations"], f"threshold={name}")
        thresholds[name] = (estimator, found["weights"]["method"])
    trial = replace(TrainOptions(**compose.option("train", TRAINING)), epochs=TRIAL_EPOCHS)
    return ShippedOptions(thresholds, recover_options(compose.option("recover", "default")), trial)


def diagnosis(
    context: RunContext, decision: SearchDecision, profile: Profile | None, report: RunReport, *, budget: EffortBudget
) -> DiagnosisPart | None:
    """Return the faults of a result that misses its objective, as `pipeline.open_run` takes it."""
    return diagnose(context, decision, profile, report, budget=budget, shipped=shipped)


def _refuse_other_version(report: Mapping[str, Any], path: Path) -> None:
    found = report.get("version")
    if found != __version__:
        raise ArtifactError(
            f"is of quantpipe {found}, and this is {__version__}, which may plan other numbers; run its command again "
            "in another folder, then explain that",
            stage=STAGE,
            where=str(path),
        )
