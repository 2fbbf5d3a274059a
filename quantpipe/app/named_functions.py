"""Turn `package.module:function` in the configuration into a function.

This is the one place that does so, after the same check of allowed packages as `_target_` (app/targets.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

from quantpipe.app.targets import OWN, home_of, load
from quantpipe.errors import ConfigError

FOR_DATA = ("quantpipe.data.sources.ascii_text", "quantpipe.data.sources.digits", "quantpipe.metrics.outputs")
"""Modules of quantpipe whose functions data sets and objectives may call: they compute, and open and start nothing."""
KEYS = ("target", "tokenizer", "feature")
"""The keys of a data set that name functions."""


def functions_of(dataset: Mapping[str, Any], plugins: Sequence[str], launch: Path) -> dict[str, Callable[..., Any]]:
    """Return a mapping: key -> function, for the keys of `KEYS` that are set.

    Modules of `plugins` may also be in the folder `launch`. Raises ConfigError for a function that is missing or not
    allowed.
    """
    if plugins and str(launch) not in sys.path:
        sys.path.append(str(launch))  # last: an installed package is never shadowed
    found = {}
    for key in KEYS:
        if dataset.get(key) is not None:
            found[key] = load_function(dataset[key], f"dataset.{key}", plugins)
    return found


def load_function(target: Any, key: str, plugins: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the function that `package.module:function` names: one that an allowed package defines itself."""
    module, colon, path = str(target).partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        raise ConfigError(f"is {target!r}; legal is package.module:function", where=key)
    found = load(module, path.split("."), key, plugins, kind="functions")
    if home_of(found) == OWN and not _is_for_data(found):
        raise ConfigError(
            f"the target {target!r} is not allowed: it is not meant for data; of {OWN}, legal are functions of "
            f"{', '.join(FOR_DATA)}",
            where=key,
        )
    if not callable(found):
        raise ConfigError(f"{target!r} is a {type(found).__name__}; legal is a function", where=key)
    function: Callable[..., Any] = found
    return function


def _is_for_data(found: Any) -> bool:
    """Whether something is a public function that a module of `FOR_DATA` defines."""
    return isinstance(found, FunctionType) and found.__module__ in FOR_DATA and not found.__name__.startswith("_")


def objective_function(target: Any, plugins: Any) -> Any:
    """Return the function that `objective.target` names; None where it is not set."""
    return load_function(target, "objective.target", plugins) if target else None
