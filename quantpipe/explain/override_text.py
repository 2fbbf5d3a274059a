"""Changes of a configuration as they are pasted on a command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
from itertools import zip_longest
from typing import Any

_NUMBER = re.compile(r"(\d+)")
_BARE = re.compile(r"[\w/.+@%*?-]+")
_NEVER = re.compile(r"[^\w/.+@%*?$|:=, \t()\[\]{}\\-]")
_ESCAPED = re.compile(r"([\\()\[\]{}:=, \t])")


def override(key: str, value: Any) -> str:
    """Return `key=value` in Hydra's grammar, not yet quoted for a shell."""
    return f"{key}={written(value)}"


def written(value: Any) -> str:
    """Return plain data in Hydra's grammar: words in quotes where a character means something to it."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_key(str(k))}:{written(v)}" for k, v in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ",".join(map(written, value)) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, float):
        return repr(value)
    if not isinstance(value, str):
        return str(value)
    return value if _BARE.fullmatch(value) else "'" + value.replace("'", "\\'") + "'"


def _key(name: str) -> str:
    """Return a key for an override; keys cannot be quoted, so unsupported characters become pattern wildcards."""
    return _ESCAPED.sub(r"\\\1", _NEVER.sub("?", name))


def patterns(names: Sequence[str], universe: Collection[str]) -> list[str]:
    """Return glob patterns that match these of all names and no others: blocks that differ in a number share one.

    `universe` is the list of all names.
    """
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(_NUMBER.sub("0", name), []).append(name)
    found: list[str] = []
    for group in alike.values():
        pattern = "".join(_common(parts) for parts in zip_longest(*map(_NUMBER.split, group), fillvalue=""))
        only = len(group) > 1 and {n for n in universe if fnmatchcase(n, pattern)} <= set(names)
        found += [pattern] if only else [escape(name) for name in group]
    return found


def _common(parts: Sequence[str]) -> str:
    return escape(parts[0]) if len(set(parts)) == 1 else "*"
