"""Nested loops over tensors with strides, as C text, and the fewest loops that visit a set of places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Strides = Sequence[int]
Places = NDArray[np.int64]


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the distance of neighbours along each axis of a row-major array, in elements."""
    found, step = [], 1
    for size in reversed(shape):
        found.append(step)
        step *= size
    return tuple(reversed(found))


def broadcast_strides(shape: Sequence[int], to: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of an array that is broadcast to another shape: 0 along axes that it repeats."""
    padded = (*[1] * (len(to) - len(shape)), *shape)
    return tuple(0 if n == 1 else s for n, s in zip(padded, strides_of(padded), strict=True))


def axis_strides(axis: int, rank: int) -> tuple[int, ...]:
    """Return the strides of numbers `[C]` along one axis of an array of `rank` axes."""
    return tuple(int(a == axis % rank) for a in range(rank))


def collapsed(shape: Sequence[int], strides: Sequence[Strides]) -> tuple[list[int], list[list[int]]]:
    """Return the same visits in fewer loops: sizes, and strides of each operand."""
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        if sizes and all(own[-1] == given[axis] * size for own, given in zip(steps, strides, strict=True)):
            sizes[-1] *= size
            for own, given in zip(steps, strides, strict=True):
                own[-1] = given[axis]
            continue
        sizes.append(size)
        for own, given in zip(steps, strides, strict=True):
            own.append(given[axis])
    return sizes, steps


def index(strides: Strides, offset: int = 0) -> str:
    """Return the place in an operand by the counters of the loops, i0 and so on."""
    terms = [f"i{n}" if s == 1 else f"i{n} * {s}" for n, s in enumerate(strides) if s]
    if offset or not terms:
        terms.append(str(offset))
    return " + ".join(terms).replace("+ -", "- ")


def loops(sizes: Sequence[int], body: str, depth: int = 1) -> str:
    """Return loops with counters i0, i1, … around statements."""
    lines, pad = [], "    "
    if sizes:
        lines.append(pad * depth + "int " + ", ".join(f"i{n}" for n in range(len(sizes))) + ";")
    for n, size in enumerate(sizes):
        opened = " {" if n + 1 == len(sizes) else ""
        lines.append(f"{pad * (depth + n)}for (i{n} = 0; i{n} < {size}; i{n}++){opened}")
    inner = depth + len(sizes)
    lines += [pad * inner + line for line in body.splitlines()]
    if sizes:
        lines.append(pad * (inner - 1) + "}")
    return "\n".join(lines)


def regular(places: Sequence[Places]) -> tuple[list[int], list[list[int]], list[int]] | None:
    """Return loops that visit given places of several operands together: sizes, strides and offsets of each operand.

    Each operand has places `[n]`, in order. None if a few nested loops cannot do that.
    """
    rows = np.stack(places)
    sizes: list[int] = []
    steps: list[list[int]] = []
    while rows.shape[1] > 1:
        run = _run(rows)
        if run < 2:
            return None
        sizes.append(run)
        steps.append([int(v) for v in rows[:, 1] - rows[:, 0]])
        blocks = rows.reshape(len(rows), -1, run)
        ramp = np.arange(run)[np.newaxis, np.newaxis] * np.array(steps[-1])[:, np.newaxis, np.newaxis]
        if not np.array_equal(blocks, blocks[:, :, :1] + ramp):
            return None
        rows = blocks[:, :, 0]
        if len(sizes) > MOST_LOOPS:
            return None
    sizes.reverse()
    steps.reverse()
    return sizes, [[step[n] for step in steps] for n in range(len(rows))], [int(v) for v in rows[:, 0]]


MOST_LOOPS = 8


def _run(rows: Places) -> int:
    """Return the length of the runs of equal steps at the beginning, one that divides the whole."""
    steps = np.diff(rows, axis=1)
    same = np.all(steps == steps[:, :1], axis=0)
    first = int(np.argmin(same)) if not same.all() else steps.shape[1]
    return first + 1 if rows.shape[1] % (first + 1) == 0 else 1
