"""Turn `package.module:function` in the configuration into a function.

This is the one place that does so, after the same check of allowed packages as `_target_` (app/targets.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from quantpipe.app.targets import load
from quantpipe.errors import ConfigError

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
    if not callable(found):
        raise ConfigError(f"{target!r} is a {type(found).__name__}; legal is a function", where=key)
    function: Callable[..., Any] = found
    return function
