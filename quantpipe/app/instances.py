"""The one place that turns `_target_` into objects, and refuses targets outside quantpipe and its plug-ins."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import DictConfig, OmegaConf

from quantpipe.errors import ConfigError, QuantpipeError, refuse_unknown

PLUGINS = "quantpipe.conf"
OWN = ("_target_", "_convert_", "_recursive_", "_partial_", "_args_")
"""Keys that Hydra reads itself."""
GIVEN = ("launch_folder", "parent_key")
"""Arguments that the app gives, so that configuration cannot."""


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
    plain = OmegaConf.to_container(config, resolve=True)
    _check(plain, key, plugins)
    _refuse_unknown_options(plain, key)
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


def _refuse_unknown_options(node: Any, key: str) -> None:
    """ConfigError for options that a target, a class or a function of an allowed package, does not take."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        _refuse_unknown_options(value, f"{key}.{name}")
    if not isinstance(node, dict) or "_target_" not in node:
        return
    try:
        parameters = inspect.signature(get_object(str(node["_target_"]))).parameters.values()
    except Exception:  # what cannot be imported or looked into is told when it is built
        return
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        refuse_unknown([k for k in node if k not in OWN], [p.name for p in parameters if p.name not in GIVEN], key)
