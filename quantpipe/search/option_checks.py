"""Checks of configuration values: what is wrong is told with its configuration key and what would be legal."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Any, TypeVar

from quantpipe.errors import ConfigError, nearest

E = TypeVar("E", bound=StrEnum)


def illegal(key: str, value: Any, legal: str) -> ConfigError:
    """Return the error to raise for a configuration value that means nothing."""
    return ConfigError(f"{value!r} is not legal; give {legal}", stage="search", where=key)


def check_enum(key: str, value: Any, kind: type[E]) -> E:
    """Return the enum member of a name; ConfigError when there is none."""
    names = [m.value for m in kind]
    if value not in names:
        raise illegal(key, value, "one of " + ", ".join(names) + nearest(str(value), names))
    return kind(value)


def whole(key: str, value: Any, *, least: int, also: str = "") -> int:
    """Return a whole number of at least `least` (a bool is no number).

    `also`: what else is legal, as errors say it. Raises ConfigError for anything else.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise illegal(key, value, f"an integer of at least {least}{also}")
    return value


def real(
    key: str,
    value: Any,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    also: str = "",
) -> float:
    """Return a finite number in the interval (above, most], at least `least`.

    `also`: what else is legal, as errors say it. Raises ConfigError for anything else.
    """
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and number > above and least <= number <= most):
        bounds = [f"above {above:g}"] * (above > -math.inf) + [f"at least {least:g}"] * (least > -math.inf)
        bounds += [f"at most {most:g}"] * (most < math.inf)
        raise illegal(key, value, f"a number {' and '.join(bounds)}{also}")
    return number
