"""Check values of options: an error names the key, the value and the legal values."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeGuard, TypeVar

from quantpipe.errors import ConfigError, nearest

E = TypeVar("E", bound=StrEnum)


def illegal(key: str, value: object, legal: str) -> ConfigError:
    """Return the error to raise for a value that is not legal."""
    return ConfigError(f"is {value!r}; legal is {legal}", where=key)


def is_integer(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[int]:
    """Return whether a value is an integer within bounds; a bool is no number."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a finite number; a bool is no number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def integer(key: str, value: Any, *, least: int, also: str = "") -> int:
    """Return an integer of at least `least`, or raise ConfigError; `also` is the text about other legal values."""
    if not is_integer(value, least):
        raise illegal(key, value, f"an integer of at least {least}{also}")
    return value


def number(
    key: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    also: str = "",
) -> float:
    """Return a finite number within bounds, or raise ConfigError; `also` is the text about other legal values."""
    if not (is_number(value) and above < value < below and least <= value <= most):
        bounds = [f" above {above:g}"] * (above > -math.inf) + [f" of at least {least:g}"] * (least > -math.inf)
        bounds += [f" at most {most:g}"] * (most < math.inf) + [f" below {below:g}"] * (below < math.inf)
        raise illegal(key, value, f"a number{' and'.join(bounds)}{also}")
    return float(value)


def flag(key: str, value: object) -> None:
    """Raise ConfigError for a value that is neither true nor false."""
    if not isinstance(value, bool):
        raise illegal(key, value, "true or false")


def one_of(key: str, value: object, legal: Sequence[object]) -> None:
    """Raise ConfigError, with a near word, for a value that is not listed."""
    if not any(value == entry and isinstance(value, bool) == isinstance(entry, bool) for entry in legal):
        words = [str(entry).lower() if isinstance(entry, bool) else str(entry) for entry in legal]
        raise ConfigError(f"is {value!r}{nearest(str(value), words)}; legal are {', '.join(words)}", where=key)


def word_of(kind: type[E], value: object, where: str, also: str = "") -> E:
    """Return the member of an enumeration that a value names; `also` are further legal words for the error.

    Raises ConfigError, with a near word, for any other value.
    """
    legal = [str(word) for word in kind]
    if str(value) not in legal:
        raise ConfigError(f"is {value!r}{nearest(str(value), legal)}; legal are {also}{', '.join(legal)}", where=where)
    return kind(str(value))


def matching(key: str, pattern: str, names: Sequence[str], what: str) -> list[str]:
    """Return the names that a glob pattern matches, or raise ConfigError if none does."""
    found = fnmatch.filter(names, pattern)
    if not found:
        raise ConfigError(f"the pattern {pattern!r} matches no {what}{nearest(pattern, names)}", where=key)
    return found
