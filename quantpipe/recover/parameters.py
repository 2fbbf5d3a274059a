"""Checks of what a step of recovery is given: ConfigError that names the parameter and what would be legal."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from quantpipe.errors import ConfigError, nearest

KEY = "recover.steps"
SEARCHED = ("gptq", "coordinate_descent")
"""Roundings that look at a layer's output error."""


def at_least(name: str, value: float, least: float) -> None:
    """Reject a parameter that is not a finite number of at least the smallest legal one, by ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not least <= value < inf:
        raise ConfigError(f"has {name}={value!r}; legal is {least:g} and above", where=KEY)


AUTO = "auto"


def whole(name: str, value: int, least: int) -> None:
    """Reject a parameter that is not a whole number of at least `least`, by ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"has {name}={value!r}; legal are integers, {least} and above", where=KEY)


def share(name: str, value: float) -> None:
    """Reject a parameter that is not a number from 0 to less than 1, by ConfigError."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise ConfigError(f"has {name}={value!r}; legal is 0 to less than 1", where=KEY)


def one_of(name: str, value: object, legal: Sequence[str]) -> None:
    """Reject a parameter that is none of the legal values, by ConfigError."""
    if value not in legal:
        raise ConfigError(f"has {name}={value!r}{nearest(str(value), legal)}; legal are {', '.join(legal)}", where=KEY)


def flag(name: str, value: object) -> None:
    """Reject a parameter that is neither true nor false, by ConfigError."""
    if not isinstance(value, bool):
        raise ConfigError(f"has {name}={value!r}; legal are true and false", where=KEY)


def flag_or_auto(name: str, value: object) -> None:
    """Reject a parameter that is none of true, false and auto, by ConfigError."""
    if not isinstance(value, bool) and value != AUTO:
        raise ConfigError(f"has {name}={value!r}; legal are true, false and {AUTO}", where=KEY)
