"""Exact sums of windows: convolutions, their transposes and pools over integers, in NumPy.

Products go through float64 matrix multiplications, which are exact below 2^53.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.arrays import Ints
from quantpipe.graph.view import Node
from quantpipe.oprules.geometry import pads_before
from quantpipe.realize.c.sums import transposed_begin


@dataclass(frozen=True)
class ProbeWindow:
    """Say where a window lies: input place = result place · stride - begin + tap · dilation (+ what it is moved by)."""

    taps: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    made: tuple[int, ...]

    def moved(self, by: Sequence[int]) -> ProbeWindow:
        """Return the same window moved along the axes of the map."""
        begin = tuple(b - m for b, m in zip(self.begin, by, strict=True)) if by else self.begin
        return ProbeWindow(self.taps, self.strides, self.dilations, begin, self.made)


def window_of(node: Node, size: Sequence[int], taps: Sequence[int], made: Sequence[int]) -> ProbeWindow:
    """Return the window of a convolution or a pool.

    `size` and `made` are the sizes of its input and output maps; `taps` is the size of its kernel.
    """
    ones = [1] * len(taps)
    begin = pads_before(node, list(size), list(taps), list(made))
    strides, dilations = node.attr("strides", ones), node.attr("dilations", ones)
    return ProbeWindow(tuple(taps), tuple(strides), tuple(dilations), tuple(begin), tuple(made))


def transposed_window(node: Node, size: Sequence[int], taps: Sequence[int], made: Sequence[int]) -> ProbeWindow:
    """Return the window of a transposed convolution, read from its input on."""
    ones = [1] * len(taps)
    begin = transposed_begin(node, tuple(size), tuple(taps), tuple(made))
    strides, dilations = node.attr("strides", ones), node.attr("dilations", ones)
    return ProbeWindow(tuple(taps), tuple(strides), tuple(dilations), tuple(begin), tuple(made))


def taken(x: Ints, window: ProbeWindow, pad: int) -> list[tuple[tuple[int, ...], Ints]]:
    """Return (tap, what it reads) of every tap: `[N, C, *made]`, `pad` outside of the map."""
    rank = len(window.taps)
    size = x.shape[2:]
    last = [
        (m - 1) * s - b + (t - 1) * d
        for m, s, b, t, d in zip(window.made, window.strides, window.begin, window.taps, window.dilations, strict=True)
    ]
    before = [max(b, 0) for b in window.begin]
    after = [max(e - n + 1, 0) for e, n in zip(last, size, strict=True)]
    wide = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)], constant_values=pad)
    found = []
    for tap in itertools.product(*(range(t) for t in window.taps)):
        places: list[Any] = [slice(None), slice(None)]
        for a in range(rank):
            first = tap[a] * window.dilations[a] - window.begin[a] + before[a]
            places.append(slice(first, first + (window.made[a] - 1) * window.strides[a] + 1, window.strides[a]))
        found.append((tap, wide[tuple(places)]))
    return found


def convolved(x: Ints, weight: Ints, group: int, window: ProbeWindow, *, pad: int = 0) -> Ints:
    """Return Σ x·w over windows, `[N, M, *made]`.

    `x` is `[N, C, *size]`, `weight` is `[M, C / group, *taps]`; `pad` is the value outside the map.
    """
    batch, made = len(x), window.made
    matrices = weight.reshape(group, -1, *weight.shape[1:]).astype(np.float64)
    total: Any = 0.0
    for tap, part in taken(x, window, pad):
        values = part.reshape(batch, group, -1, int(np.prod(made))).astype(np.float64)
        total = total + _at(matrices, tap) @ values
    sums: Ints = np.asarray(total, np.float64).reshape(batch, -1, *made).astype(np.int64)
    return sums


def summed(x: Ints, window: ProbeWindow) -> Ints:
    """Return Σ x over windows, `[N, C, *made]`; nothing is outside of the map."""
    return np.asarray(np.sum([part for _, part in taken(x, window, 0)], axis=0, dtype=np.int64), np.int64)


def spread(x: Ints, weight: Ints, group: int, window: ProbeWindow) -> Ints:
    """Return the transposed convolution, `[N, M, *made]`.

    `x` is `[N, C, *size]`, `weight` is `[C, M / group, *taps]`; the windows are windows of the result.
    """
    batch, size = len(x), x.shape[2:]
    values = x.reshape(batch, group, -1, int(np.prod(size))).astype(np.float64)
    matrices = np.swapaxes(weight.reshape(group, -1, *weight.shape[1:]), 1, 2).astype(np.float64)
    outputs = group * matrices.shape[1]
    total = np.zeros((batch, outputs, *window.made), np.int64)
    for tap in itertools.product(*(range(t) for t in window.taps)):
        part = (_at(matrices, tap) @ values).reshape(batch, outputs, *size).astype(np.int64)
        into: list[Any] = [slice(None), slice(None)]
        out_of: list[Any] = [slice(None), slice(None)]
        for a, n in enumerate(size):
            places = np.arange(n) * window.strides[a] - window.begin[a] + tap[a] * window.dilations[a]
            kept = np.flatnonzero((places >= 0) & (places < window.made[a]))
            if not len(kept):
                break
            first, stop = int(places[kept[0]]), int(places[kept[-1]]) + 1
            into.append(slice(first, stop, window.strides[a]))
            out_of.append(slice(int(kept[0]), int(kept[-1]) + 1))
        else:
            total[tuple(into)] += part[tuple(out_of)]
    return total


def _at(matrices: NDArray[np.float64], tap: tuple[int, ...]) -> NDArray[np.float64]:
    """Return the matrices of one tap, `[group, rows, columns]`."""
    return np.asarray(matrices.reshape(*matrices.shape[:3], -1)[..., np.ravel_multi_index(tap, matrices.shape[3:])])
