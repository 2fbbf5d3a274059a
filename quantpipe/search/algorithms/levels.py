"""Points that need no knowledge: every choice equally coarse. And points near a given one that were not seen yet."""

from __future__ import annotations

import itertools
from collections.abc import Container

import numpy as np

from quantpipe.types import ChoiceSpace, Point

_SMALL = 4096
_TRIES = 256


def depth(space: ChoiceSpace) -> int:
    """Return the last level: the most options beyond the first that a graded choice has."""
    return max((len(c.options) - 1 for c in space if c.graded), default=0)


def level(space: ChoiceSpace, index: int) -> Point:
    """Return every graded choice at this option, or at its last one; all others at their first.

    Level 0 is the start.
    """
    return tuple(min(index, len(c.options) - 1) if c.graded else 0 for c in space)


def levels(space: ChoiceSpace) -> list[Point]:
    """Return all levels from the most to the smallest precise, each once."""
    return list(dict.fromkeys(level(space, i) for i in range(depth(space) + 1)))


def mutated(space: ChoiceSpace, point: Point, rng: np.random.Generator, share: float) -> Point:
    """Return the point with this share of its choices moved by one option, or to any where options have no order.

    At least one choice moves, where there is one to move.

    `share`: the share of choices that move, 0 to 1.
    """
    movable = [i for i, c in enumerate(space) if len(c.options) > 1]
    moved = list(point)
    if movable:
        chosen = rng.choice(movable, size=max(1, int(share * len(movable))), replace=False)
        for i, up in zip(chosen.tolist(), (rng.random(len(chosen)) < 0.5).tolist(), strict=True):
            last = len(space.choices[i].options) - 1
            if not space.choices[i].graded and last > 1:  # no option is next to another
                moved[i] = (moved[i] + 1 + int(rng.integers(last))) % (last + 1)
                continue
            moved[i] += 1 if moved[i] == 0 or (up and moved[i] < last) else -1
    return tuple(moved)


def unseen(space: ChoiceSpace, point: Point, seen: Container[Point], rng: np.random.Generator) -> Point | None:
    """Return a point near this one that is not in `seen`; None if there is no such point.

    Small spaces are searched exhaustively.
    """
    near = point
    for _ in range(_TRIES):
        near = mutated(space, near, rng, 0.0)
        if near not in seen:
            return near
    if space.size > _SMALL:
        return tuple(int(rng.integers(len(c.options))) for c in space)
    every = itertools.product(*(range(len(c.options)) for c in space))
    return next((p for p in every if p not in seen), None)
