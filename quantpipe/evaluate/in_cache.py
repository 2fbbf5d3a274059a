"""Parts of arrays that fit a processor's cache, for arithmetic in several steps over large tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

ELEMENTS = 1 << 17
"""Elements that are worked on at once: a few float64 arrays of so many fit."""


def in_cache(shape: Sequence[int]) -> Iterator[slice | tuple[()]]:
    """Yield parts along the first axis, each of about as many elements as fit the cache; `()` for a scalar."""
    if not shape:
        yield ()
        return
    step = max(1, ELEMENTS * shape[0] // max(prod(shape), 1))
    for first in range(0, shape[0], step):
        yield slice(first, first + step)
