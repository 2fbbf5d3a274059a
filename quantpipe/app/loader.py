"""Let Hydra compose the configuration, then check that it calls no arbitrary code and holds no password.

Hydra itself instantiates what stands under `hydra` (callbacks, launcher, sweeper, handlers of logs), before the task is
asked, and writes what was composed to the run folder. So both are looked at as soon as the configuration exists, in
every process that composes one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import hydra._internal.hydra
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.experimental.callback import Callback
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from omegaconf import DictConfig, ListConfig, Node, OmegaConf, flag_override

from quantpipe.app.conceal_passwords import learn_environment, referred, shown
from quantpipe.app.outlets import guard
from quantpipe.app.targets import OWN, home_of, load_dotted, refuse_plugins
from quantpipe.errors import ConfigError
from quantpipe.passwords import conceal, secrets_in, without_passwords

HYDRA = ("hydra", "hydra_plugins")
LOGGING = ("logging", "colorlog", "rich")
FACTORIES = ("()", "class")
"""The keys by which a configuration of logging names what is called."""


class GuardedLoader(ConfigLoaderImpl):
    """Hydra's own, which checks what it has composed."""

    def load_configuration(self, *arguments: Any, **named: Any) -> DictConfig:
        """Return the configuration as Hydra composes it, checked, and with the passwords in it remembered."""
        guard()
        learn_environment()
        config = super().load_configuration(*arguments, **named)
        with flag_override(config, ["struct", "readonly"], [False, False]):
            _keep_secrets(config)
        if "hydra" in config:
            _check_hydra(config)
        return config


def install() -> None:
    """Make Hydra compose with the guarded loader."""
    hydra._internal.hydra.ConfigLoaderImpl = GuardedLoader  # type: ignore[attr-defined]


def _keep_secrets(config: DictConfig) -> None:
    """Put references in place of addresses with passwords, and safe texts in Hydra's records of overrides."""
    for parent, key, text in list(_texts(config)):
        if parent is not config and _is_record(parent, key):
            safe = shown(text) if key == "override_dirname" else text
            if key == "override_dirname" or any(True for _ in secrets_in(text)):
                _put(parent, key, conceal(without_passwords(safe)).replace("${", "{"))
        elif any(True for _ in secrets_in(text)):
            _put(parent, key, referred(text))


def _put(parent: Any, key: Any, text: str) -> None:
    with flag_override(parent, "readonly", False):
        parent[key] = text


def _is_record(parent: Any, key: Any) -> bool:
    full = str(parent._get_full_key(key))
    return full.startswith("hydra.overrides.") or full == "hydra.job.override_dirname"


def _texts(node: Any) -> Iterator[tuple[Any, Any, str]]:
    """Yield (container, key, text) of every text of a configuration, as it is written there."""
    if node._is_none() or node._is_missing() or node._is_interpolation():
        return
    keys: Sequence[Any] = range(len(node)) if isinstance(node, ListConfig) else list(node.keys())
    for key in keys:
        child = node._get_node(key)
        if isinstance(child, DictConfig | ListConfig):
            yield from _texts(child)
        elif isinstance(child, Node) and isinstance(child._value(), str):
            yield node, key, child._value()


def _check_hydra(config: DictConfig) -> None:
    """Raise ConfigError for objects that Hydra would instantiate and must not."""
    plain: Any = OmegaConf.to_container(config.hydra, resolve=False)
    plugins = [str(name) for name in OmegaConf.select(config, "plugins", default=None) or ()]
    refuse_plugins(plugins, plain["overrides"]["task"])
    for name, target in (plain.get("callbacks") or {}).items():
        _check_target(target, f"hydra.callbacks.{name}", plugins, Callback)
    _check_target(plain.get("launcher"), "hydra.launcher", plugins, Launcher)
    _check_target(plain.get("sweeper"), "hydra.sweeper", plugins, Sweeper)
    for part in ("job_logging", "hydra_logging"):
        _check_logging(plain.get(part), f"hydra.{part}")


def _check_target(node: Any, key: str, plugins: Sequence[str], kind: type | None) -> None:
    if isinstance(node, list):
        for number, value in enumerate(node):
            _check_target(value, f"{key}[{number}]", plugins, None)
    if not isinstance(node, dict):
        return
    if "_target_" in node:
        found = load_dotted(str(node["_target_"]), f"{key}._target_", (*plugins, *HYDRA))
        if not isinstance(found, type) or (kind is not None and not issubclass(found, kind)):
            raise ConfigError(
                f"the target {node['_target_']!r} is not allowed here; legal is a class"
                f"{f' derived from {kind.__module__}.{kind.__name__}' if kind else ''}",
                where=f"{key}._target_",
            )
        if kind is None and home_of(found) == OWN:
            raise ConfigError(f"the target {node['_target_']!r} is not allowed as an argument; legal are classes of "
                              f"{', '.join((*plugins, *HYDRA))}", where=f"{key}._target_")  # fmt: skip
    for name, value in node.items():
        _check_target(value, f"{key}.{name}", plugins, None)


def _check_logging(node: Any, key: str) -> None:
    """Allow only classes of logging: a logging configuration names classes, which are called with its values."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        place = f"{key}.{name}"
        if name in FACTORIES:
            found = load_dotted(str(value), place, (*LOGGING, *HYDRA)) if isinstance(value, str) else None
            if not isinstance(found, type):
                raise ConfigError(f"is {value!r}; legal is a class of {', '.join(LOGGING)}", where=place)
        _check_logging(value, place)
