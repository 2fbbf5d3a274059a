"""Settings as the command line makes them, in this process."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from hydra import compose, initialize_config_dir
from hydra.conf import HydraConf, JobConf, RunDir, RuntimeConf, SweepDir
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from quantpipe.app.configfiles import check_config_files
from quantpipe.app.main import asset, folder_of, search_path
from quantpipe.app.settings import GROUPS, build_settings
from quantpipe.app.thresholds import shipped_option
from quantpipe.pipeline.settings import Settings
from tests.ops.line import schemas


def settings_of(*overrides: str, folder: Path = Path("unused")) -> Settings:
    """What `python run.py tracking=none OVERRIDES` would run with. Hydra is asked once for every set of options of
    groups, since it takes most of the time; keys are set behind it."""
    pairs = [o.split("=", 1) for o in ("tracking=none", *overrides)]
    options = tuple(f"{key}={value}" for key, value in pairs if key in GROUPS)
    config = copy.deepcopy(_composed(options))
    OmegaConf.set_struct(config, False)
    for key, value in pairs:
        if key not in GROUPS:
            OmegaConf.update(config, key.lstrip("+"), yaml.safe_load(value), merge=False)
    with (
        patch("quantpipe.app.settings.shipped_schemas", schemas),
        patch("quantpipe.app.settings.threshold_option", shipped_option),
    ):
        return build_settings(config, _hydra(dict(o.split("=", 1) for o in options), folder))


@cache
def _composed(options: tuple[str, ...]) -> DictConfig:
    OmegaConf.register_new_resolver("asset", asset, replace=True)
    check_config_files()
    with initialize_config_dir(str(folder_of("conf")), version_base="1.3"):
        return compose("config", overrides=[*options, *search_path()])


def _hydra(options: dict[str, str], folder: Path) -> HydraConf:
    choices: dict[str, Any] = dict.fromkeys(GROUPS, "") | options
    runtime = RuntimeConf(cwd=str(Path.cwd()), output_dir=str(folder), choices=choices, config_sources=[])
    return HydraConf(
        mode=RunMode.RUN, run=RunDir(str(folder)), sweep=SweepDir("s", "0"), runtime=runtime, job=JobConf()
    )


def takes_all(**options: Any) -> dict[str, Any]:
    return options
