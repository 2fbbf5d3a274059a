"""The one place that turns `_target_` into objects, and refuses targets outside quantpipe and its plug-ins."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from quantpipe.errors import ConfigError, QuantpipeError

PLUGINS = "quantpipe.conf"


def allowed_packages(plugins: Sequence[str] = ()) -> tuple[str, ...]:
    """Top-level packages whose classes and functions configuration may name; `plugins` are those it allows itself."""
    announced = {entry.value.split(".")[0] for entry in entry_points(group=PLUGINS)}
    return ("quantpipe", *sorted(announced | set(plugins)))


def refuse_other_packages(target: str, package: str, key: str, plugins: Sequence[str], kind: str = "classes") -> None:
    """ConfigError when `target` lies in a package that is not allowed; `kind` is what it should be."""
    if package not in allowed_packages(plugins):
        raise ConfigError(
            f"the target {target!r} is not allowed; legal are {kind} of "
            f"{', '.join(allowed_packages(plugins))}. A plug-in package announces itself by an entry point in the "
            f"group {PLUGINS!r}; any other must be allowed by name: plugins=[{package}]",
            where=key,
        )


def make(config: DictConfig, key: str, plugins: Sequence[str] = (), **extra: Any) -> Any:
    """The object that the configuration at `key` describes; `extra` are further arguments, or replace configured ones.

    Raises ConfigError for a target that is not allowed, cannot be imported, or does not take the given options.
    """
    _check(OmegaConf.to_container(config, resolve=True), key, plugins)
    try:
        return instantiate(config, **extra)
    except Exception as error:  # Hydra wraps constructors' errors; ours keep their own words
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, QuantpipeError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise ConfigError(f"cannot be built: {' '.join(str(error).split())[:300]}", where=key) from error


def _check(node: Any, key: str, plugins: Sequence[str]) -> None:
    if isinstance(node, dict):
        target = node.get("_target_")
        if target is not None:
            refuse_other_packages(str(target), str(target).split(".")[0], f"{key}._target_", plugins)
        for name, value in node.items():
            _check(value, f"{key}.{name}", plugins)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            _check(value, f"{key}[{number}]", plugins)
