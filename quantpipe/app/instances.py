"""Turn `_target_` into objects, only here, and reject targets outside quantpipe and its plug-ins."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.utils import get_object, instantiate
from omegaconf import OmegaConf

from quantpipe.app.targets import OWN, home_of, load_dotted
from quantpipe.errors import ConfigError, QuantpipeError, refuse_unknown

ROLES = {
    "dataset": "splits",
    "threshold.activations": "__call__",
    "search.algorithm": "__call__",
    "executor": "open",
    "tracking": "start",
}
"""Key -> the method that makes a class one for this place."""

CONFIGURED = ("quantpipe.data.sources", "quantpipe.calibrate.estimators", "quantpipe.search.algorithms",
              "quantpipe.scoring.workers", "quantpipe.tracking")  # fmt: skip
"""Packages of quantpipe whose classes are made for options. Others write files, or start something, when made."""

_RULES = re.compile(r"threshold\.rules\[\d+\]\.use")
"""What a rule uses is an estimator, as that of the option is."""

HYDRAS_OWN = ("_target_", "_convert_", "_recursive_", "_partial_", "_args_")
"""Keys that Hydra reads itself."""
GIVEN = ("launch_folder", "parent_key")
"""Arguments that the app gives, so that configuration cannot."""


def make(config: Mapping[str, Any], key: str, plugins: Sequence[str] = (), **extra: Any) -> Any:
    """Return the object that the configuration at `key` describes.

    `plugins` are further packages that it may name. `extra` arguments are added, or replace configured ones. Raises
    ConfigError for a target that is not allowed, cannot be imported, or does not take the given options.
    """
    plain = OmegaConf.to_container(OmegaConf.create(dict(config)), resolve=True)
    check_targets(plain, key, plugins)
    _refuse_unknown_options(plain, key)
    try:
        return instantiate(OmegaConf.create(plain), **extra)  # what was checked, and nothing that resolves anew
    except Exception as error:  # Hydra wraps constructors' errors; ours keep their own words
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, QuantpipeError):
            cause = cause.__cause__
        if cause is not None:
            raise cause from None
        raise ConfigError(f"cannot be built: {' '.join(str(error).split())[:300]}", where=key) from error


def check_targets(node: Any, key: str, plugins: Sequence[str]) -> None:
    """Check every `_target_` of plain data at any depth.

    Raises ConfigError for a target that no allowed package defines, and for a target that lacks what its place needs. A
    target of quantpipe must be a class, because quantpipe's functions were not written for arguments from files.
    """
    if isinstance(node, dict):
        if "_target_" in node:
            _check_target(str(node["_target_"]), key, plugins)
        for name, value in node.items():
            check_targets(value, f"{key}.{name}", plugins)
    elif isinstance(node, list):
        for number, value in enumerate(node):
            check_targets(value, f"{key}[{number}]", plugins)


def _check_target(target: str, key: str, plugins: Sequence[str]) -> None:
    found = load_dotted(target, f"{key}._target_", plugins)
    if home_of(found) == OWN and not isinstance(found, type):
        raise ConfigError(
            f"the target {target!r} is not allowed: it is a {type(found).__name__}; legal is a class",
            where=f"{key}._target_",
        )
    method = ROLES.get(_RULES.sub("threshold.activations", key))
    if isinstance(found, type) and method is not None and not _has(found, method):
        raise ConfigError(
            f"the target {target!r} is not allowed here: it has no {method}; legal is a class such as those that "
            f"the options of {key.split('.')[0]} name",
            where=f"{key}._target_",
        )
    made = isinstance(found, type) and any(_has(found, role) for role in ROLES.values())
    if home_of(found) == OWN and not (made and f"{found.__module__}.".startswith(tuple(f"{c}." for c in CONFIGURED))):
        raise ConfigError(
            f"the target {target!r} is not allowed: it is not made for options; of {OWN}, legal are the classes that "
            f"options name, in {', '.join(CONFIGURED)}",
            where=f"{key}._target_",
        )


def _has(kind: type, method: str) -> bool:
    return any(method in vars(base) for base in kind.__mro__)


def _refuse_unknown_options(node: Any, key: str) -> None:
    """Raise ConfigError for options that a target, a class or a function of an allowed package, does not take."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        _refuse_unknown_options(value, f"{key}.{name}")
    if not isinstance(node, dict) or "_target_" not in node:
        return
    try:
        parameters = inspect.signature(get_object(str(node["_target_"]))).parameters.values()
    except Exception:  # what cannot be imported or looked into is told when it is built
        return
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        refuse_unknown(
            [k for k in node if k not in HYDRAS_OWN], [p.name for p in parameters if p.name not in GIVEN], key
        )
