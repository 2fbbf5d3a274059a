"""Names, parameter values and metric values in the form that MLflow accepts."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Iterator, Mapping
from typing import Any

from quantpipe.artifacts import plain
from quantpipe.passwords import conceal

MAX_NAME = 250
MAX_PARAM = 6000
MAX_TAG = 8000
_REFUSED = re.compile(r"[^/\w.\- :]")


def name(text: str) -> str:
    """Return a name with illegal characters (`|`, `>`, `[` …) as `_`.

    It is never a path that leads elsewhere when resolved.
    """
    parts = [part for part in _REFUSED.sub("_", text).split("/") if part]
    path = posixpath.join(*("_" * len(part) if set(part) == {"."} else part for part in parts)) if parts else "_"
    return path[:MAX_NAME].rstrip("/")


def text(value: Any, limit: int = MAX_PARAM) -> str:
    """Return a value as text (JSON unless it is a string), without passwords, shortened to `limit` characters."""
    whole = conceal(value if isinstance(value, str) else json.dumps(plain(value)))
    if len(whole) <= limit:
        return whole
    note = f"… ({len(whole)} characters)"
    return whole[: limit - len(note)] + note


def numbers(metrics: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    """Yield cleaned names and values of what is a finite number."""
    for key, value in metrics.items():
        if value is not None and math.isfinite(value):
            yield name(key), float(value)
