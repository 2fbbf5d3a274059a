"""One number changed at a time: in a constant of the model, in plan.json, in certificate.json."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Place = tuple[str | int, ...]

TOLD_ELSEWHERE = ("origin", "rescales", "raised", "digests")
"""Parts of the files that carry digests, or say again for the report what stands in the kernels."""


def other_number(value: Array, rng: np.random.Generator) -> Array | None:
    """The array with one element changed by the least that its type knows."""
    if not value.size or value.dtype.kind not in "iuf":
        return None
    found = value.reshape(-1).copy()
    at = int(rng.integers(found.size))
    if found.dtype.kind == "f":
        found[at] = np.nextafter(found[at], np.asarray(np.inf, found.dtype))
    else:
        limit = np.iinfo(found.dtype).max
        found[at] = found[at] - 1 if found[at] == limit else found[at] + 1
    return np.asarray(found.reshape(value.shape))


def leaves(content: Any, rng: np.random.Generator, at: Place = ()) -> Iterator[Place]:
    """The numbers of a JSON value: all of an object's, one of each list of numbers."""
    if isinstance(content, dict):
        for key, inner in content.items():
            if at or key not in TOLD_ELSEWHERE:
                yield from leaves(inner, rng, (*at, key))
    elif isinstance(content, list) and content:
        plain = all(isinstance(v, int | float) for v in content)
        for number in [int(rng.integers(len(content)))] if plain else range(len(content)):
            yield from leaves(content[number], rng, (*at, number))
    elif isinstance(content, int | float):
        yield at


def with_other(content: dict[str, Any], path: Place) -> dict[str, Any]:
    """The same with another number (or the other truth value) there."""
    found = copy.deepcopy(content)
    held: Any = found
    for key in path[:-1]:
        held = held[key]
    value = held[path[-1]]
    if isinstance(value, bool):
        held[path[-1]] = not value
    elif isinstance(value, int):
        held[path[-1]] = value + 1
    else:
        held[path[-1]] = float(np.nextafter(np.float32(value), np.float32(np.inf)))
    return found
