"""A rotation of a stream's channels after which few weights stand out of the range of their scale.

A weight is rounded with a step of peak / levels, so what rounding costs grows with (peak / root mean square)², the
squared crest factor of what shares a scale. Rotations of the channels leave the network as it is, and weights before
and after them may be as even as they can be made: rotations against outliers are from QuaRot (Ashkboos et al.
2024), learned ones from SpinQuant (Liu et al. 2024), both for language models. Here the crest factor itself is
minimized, from the weights alone.

Takes weights of streams (weights as a stream's channels meet them); gives an orthogonal matrix. Pure linear algebra.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Floats

Rows = NDArray[np.float32]
POWER = 8
"""The peak of weights is taken as the root of this order of the mean of their squares' powers: smooth, and close to
it."""
LONGEST = 0.5
"""Most of a step's angle, as root mean square over the axes, in radians."""
WORSE = 1.05
"""A step may lose by as much against the worst of the last `REMEMBERED` ones: the way down is not even."""
REMEMBERED = 5
MOST = 1 << 24
"""Values of a stream's weights that decide the steps, at most: evenly spaced rows of larger ones. A step through 1 GB
of weights takes half a minute."""
STILL = 1e-3
"""Where the last `REMEMBERED` steps won less, as a share, nothing more is to be had."""


@dataclass(frozen=True, eq=False)
class StreamWeight:
    """Hold a weight as the channels of a stream meet it.

    `values` is `[S, T, C]`, the last axis being the stream's channels; those along the axes `shared` have one scale.
    """

    values: Floats = field(repr=False)
    shared: tuple[int, ...]


def crest_factor(stream_weights: Iterable[StreamWeight]) -> float:
    """Return the mean over the weights of the squared crest factor.

    Each scale's is weighted by the squares that it holds; 1 where all weights are 0.
    """
    found = [1.0]
    for weight in stream_weights:
        squares = weight.values**2
        if not squares.any():
            continue
        held = squares.size / max(squares.max(axis=weight.shared, keepdims=True).size, 1)
        found.append(float(squares.max(axis=weight.shared).sum() * held / squares.sum()))
    return float(np.mean(found[1:] or found))


def rotated(weight: StreamWeight, matrix: Floats) -> StreamWeight:
    """Return the weight after a rotation of the channels, T' = M T.

    `matrix`: M, `[C, C]`.
    """
    return StreamWeight(weight.values @ matrix.T, weight.shared)


def optimize_rotation(
    stream_weights: Sequence[StreamWeight],
    channels: int,
    iterations: int,
    apply: Callable[..., Iterable[Any]] = map,
    *,
    centred: bool = False,
) -> Floats:
    """Return an orthogonal matrix M `[C, C]` that makes the (smoothed) squared crest factors of the weights small.

    It takes steps against the gradient along the rotations, of the length of Barzilai and Borwein (1988), by Cayley's
    transform, from the identity on; so the same weights give the same matrix.

    `apply`: shares the work on single weights among threads, as `map` would do it. `centred`: M keeps the mean of the
    channels (M 1 = 1, and so Mᵀ 1 = 1): the slope has no part along it. Returns M, float64.
    """
    every = max(1, -(-sum(f.values.size for f in stream_weights) // MOST))
    alive = [(f, np.linalg.norm(f.values)) for f in (_some_rows(f, every) for f in stream_weights)]
    scaled = [StreamWeight((f.values / norm).astype(np.float32), f.shared) for f, norm in alive if norm > 0]
    if not scaled:
        return np.eye(channels)
    identity = np.eye(channels, dtype=np.float32)

    def at(matrix: Rows) -> tuple[float, Rows]:
        parts = list(apply(lambda weight: _slope(weight, matrix), scaled))
        slope = np.sum([s for _, s in parts], axis=0)
        slope = slope - slope.T
        if centred:  # P S P with P = I - 1 1ᵀ / C, of a skew S
            mean = slope.mean(axis=1, keepdims=True)
            slope = slope - mean - slope.mean(axis=0, keepdims=True)
        return sum(value for value, _ in parts), slope

    matrix = best = identity
    value, slope = at(matrix)
    least, last = value, deque([value], REMEMBERED + 1)
    length = 0.1 * LONGEST * np.sqrt(channels) / max(float(np.linalg.norm(slope)), 1e-30)
    for number in range(iterations):
        half = np.float32(length / 2) * slope
        moved = np.linalg.solve(identity + half, (identity - half) @ matrix)
        found, steeper = at(moved)
        if found > WORSE * max(last):
            length /= 4
            continue
        step, change = -length * slope, steeper - slope
        both = float(np.sum(step * change))
        if both > 0:
            length = float(np.sum(step * step)) / both if number % 2 else both / float(np.sum(change * change))
        else:
            length *= 1.5
        length = min(length, LONGEST * np.sqrt(channels) / max(float(np.linalg.norm(steeper)), 1e-30))
        matrix, value, slope = moved, found, steeper
        last.append(value)
        if value < least:
            least, best = value, matrix
        if len(last) > REMEMBERED and max(last) - min(last) < STILL * least:
            break
    left, _, right = np.linalg.svd(_centred(best.astype(np.float64)) if centred else best.astype(np.float64))
    return np.asarray(left @ right)


def _some_rows(weight: StreamWeight, every: int) -> StreamWeight:
    """Return one in `every` rows of a weight; they lie along the longer of its first two axes."""
    if every == 1:
        return weight
    scales, rows, _ = weight.values.shape
    place = (slice(None, None, every),) if scales > rows else (slice(None), slice(None, None, every))
    return StreamWeight(weight.values[place], weight.shared)


def _centred(matrix: Floats) -> Floats:
    """Return the nearest matrix that takes the vector of ones to itself, from either side; float32 is off by 1e-6."""
    size = len(matrix)
    spread = np.eye(size) - 1 / size
    return spread @ matrix @ spread + 1 / size


def _slope(weight: StreamWeight, matrix: Rows) -> tuple[float, Rows]:
    """Return the smoothed crest factor of a rotated weight, and its slope by infinitesimal rotations.

    The squares of the weight sum to 1. Of the slope the skew part counts. With n values y to a scale, its share is
    n·(mean y^2p)^(1/p); the slope by y is 2·(mean y^2p)^(1/p - 1)·y^(2p - 1).
    """
    turned = weight.values @ matrix.T
    squares = turned * turned
    most = squares.max(axis=weight.shared, keepdims=True)
    dead = most == 0  # all weights of a scale, as those of a pruned channel: they weigh nothing
    squares /= most + dead
    twice = squares * squares
    powers = twice * twice * twice * squares  # to the POWER - 1; numpy's own power takes many times as long
    means = (powers * squares).mean(axis=weight.shared, keepdims=True) + dead
    held = turned.size // most.size
    value = held * float(np.sum(most * means ** (1 / POWER), dtype=np.float64))
    slope = (2 * means ** (1 / POWER - 1) * powers * turned).reshape(-1, turned.shape[-1])
    return value, slope.T @ turned.reshape(-1, turned.shape[-1])
