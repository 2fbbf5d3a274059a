"""Whether plain data of a file have the types that a TypedDict declares; keys may be missing, and others be there."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, Required, Union, get_args, get_origin, get_type_hints, is_typeddict


def misfit(value: Any, hint: Any, place: str = "") -> str | None:
    """Return the place of the first value of another type than declared, with what stands there; None where all fit.

    `value`: Plain data, as JSON holds it. `hint`: The declared type: a TypedDict, a list, a mapping, a tuple, a union,
    a literal or a plain type.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if value is None:
        return None  # a figure that a run does not have
    if origin in (Required, NotRequired):
        return misfit(value, inner[0], place)
    if origin in (Union, types.UnionType):
        found = [misfit(value, one, place) for one in inner]
        return None if None in found else max((text for text in found if text), key=len)
    if origin is Literal:
        return None if value in inner else _found(value, place)
    if is_typeddict(hint):
        return _record(value, get_type_hints(hint), place)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return _record(value, dict.fromkeys(value, inner[1]) if isinstance(value, Mapping) else {}, place)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _rows(value, inner, place, fixed=origin is tuple and Ellipsis not in inner)
    return None if _is(value, hint) else _found(value, place)


def _record(value: Any, hints: Mapping[str, Any], place: str) -> str | None:
    if not isinstance(value, Mapping):
        return _found(value, place)
    found = (misfit(value[key], hint, f"{place}.{key}".lstrip(".")) for key, hint in hints.items() if key in value)
    return next((text for text in found if text is not None), None)


def _rows(value: Any, inner: Sequence[Any], place: str, *, fixed: bool) -> str | None:
    if not isinstance(value, list | tuple) or (fixed and len(value) != len(inner)):
        return _found(value, place)
    hints = inner if fixed else [inner[0]] * len(value)
    found = (
        misfit(row, hint, f"{place}[{number}]") for number, (row, hint) in enumerate(zip(value, hints, strict=True))
    )
    return next((text for text in found if text is not None), None)


def _is(value: Any, kind: Any) -> bool:
    """Whether a value is of a plain type; any number is one, a truth value is not."""
    if kind in (int, float):
        return isinstance(value, int | float) and not isinstance(value, bool)
    if kind is None or kind is type(None):
        return False
    return not isinstance(kind, type) or kind is object or isinstance(value, kind)


def _found(value: Any, place: str) -> str:
    text = str(value)
    return f"{place} is {text if len(text) <= 40 else text[:39] + '…'} ({type(value).__name__})"
