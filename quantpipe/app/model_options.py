"""The keys of the groups `model` and `import`, read one by one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from quantpipe.errors import ConfigError
from quantpipe.graph.custom_ops import KEY, use_custom_ops
from quantpipe.option_checks import word_of
from quantpipe.types import Keep, RandomOps


def read_keep(given: Mapping[str, Any]) -> Keep:
    """Return what of a quantized model is kept."""
    return word_of(Keep, given.get("keep", Keep.ALL), "import.keep")


def read_fixed(value: Any) -> Mapping[str, Any]:
    """Return the inputs that are constant."""
    if value is not None and not isinstance(value, Mapping):
        raise ConfigError(f"is {value!r}; legal is null, or values by input such as {{sr: 16000}}", where="model.fixed")
    return value or {}


def read_random(value: Any) -> RandomOps | None:
    """Return what replaces ops that draw random numbers."""
    return None if value is None else word_of(RandomOps, value, "model.random", also="null, ")


def install_custom_ops(value: Any, launch: Path) -> None:
    """Make sessions register the libraries that the configuration names, one or several."""
    names = [value] if isinstance(value, str) else value or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise ConfigError(f"is {value!r}; legal is null, the path of a library, or a list of them", where=KEY)
    use_custom_ops([str(launch / name) if (launch / name).is_file() else name for name in names])
