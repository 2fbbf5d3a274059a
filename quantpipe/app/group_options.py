"""Options of configuration groups as Hydra's own command line finds them, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from quantpipe.app.renamed import config_as_now_named
from quantpipe.errors import ConfigError, nearest
from quantpipe.hardware.schemas import AUTO


def shipped_schemas() -> dict[str, Mapping[str, Any]]:
    """Return every option of the schema group, plug-ins included, except `auto`."""
    loader = GlobalHydra.instance().config_loader()
    found: dict[str, Mapping[str, Any]] = {}
    for name in loader.get_group_options("schema"):
        if name == AUTO:
            continue
        result = loader.repository.load_config(f"schema/{name}") if isinstance(loader, ConfigLoaderImpl) else None
        if result is not None and isinstance(result.config, DictConfig) and not result.defaults_list:
            found[name] = plain_config(result.config)
        else:  # it builds upon others
            loaded = loader.load_configuration(f"schema/{name}", overrides=[], run_mode=RunMode.RUN)
            found[name] = plain_config(loaded["schema"])
    return found


def threshold_option(name: str) -> Mapping[str, Any]:
    """Return the content of an option of the group threshold, also from a folder that the command line adds.

    Raises ConfigError for an unknown name.
    """
    loader = GlobalHydra.instance().config_loader()
    legal = loader.get_group_options("threshold")
    if name not in legal:
        raise ConfigError(f"has no option {name!r}{nearest(name, legal)}; legal are {', '.join(legal)}")
    loaded = loader.load_configuration(f"threshold/{name}", overrides=[], run_mode=RunMode.RUN)
    return plain_config(loaded["threshold"])


def plain_config(config: DictConfig) -> dict[str, Any]:
    """Return a configuration with references resolved and with the current names of keys.

    Raises ConfigError if it is no mapping.
    """
    data = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    if not isinstance(data, dict):
        raise ConfigError("the configuration is not a mapping")
    return config_as_now_named({str(k): v for k, v in data.items()})
