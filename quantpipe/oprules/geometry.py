"""Where the windows of a pool lie: leading pads, the elements of the map in each window, and how they are padded."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.same_pads import SAME, leading_pads
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules.rule import Facts


def pads_before(node: Node, size: Sequence[int], taps: Sequence[int], made: Sequence[int]) -> list[int]:
    """Return the leading pads of a window op: given, or as `auto_pad` has them for the measured result."""
    auto = node.attr("auto_pad", "NOTSET")
    if auto in SAME:
        rank = len(taps)
        strides, dilations = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
        spans = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
        total = [max((o - 1) * s + k - n, 0) for o, s, k, n in zip(made, strides, spans, size, strict=True)]
        return leading_pads(total, auto)
    given = node.attr("pads", [0] * (2 * len(taps))) if auto == "NOTSET" else [0] * (2 * len(taps))
    return list(given[: len(taps)])


def window_elements(node: Node, graph: Graph) -> list[NDArray[np.int64]]:
    """Return which elements of the map each window of a pool has, along each axis: 0 or 1, `[made, size]`."""
    size, made, taps = _sizes(node, graph)
    begin = pads_before(node, size, taps, made)
    return [
        _along(node, axis, range(n), o, begin=begin[axis]) for axis, (n, o) in enumerate(zip(size, made, strict=True))
    ]


def window_counts(node: Node, graph: Graph) -> NDArray[np.int64]:
    """Return how many elements each window of an average has, `[*made]`: pads count if `count_include_pad` is set."""
    size, made, taps = _sizes(node, graph)
    begin, end = pads_before(node, size, taps, made), [0] * len(taps)
    if node.attr("count_include_pad", 0):
        end = list(node.attr("pads", [0] * 2 * len(taps))[len(taps) :])
        if node.attr("auto_pad", "NOTSET") in SAME:
            end = [max(t, 0) for t in _beyond(node, size, made, begin=begin, taps=taps)]
    before = begin if node.attr("count_include_pad", 0) else [0] * len(taps)
    found = np.ones((), np.int64)
    for axis, (n, o) in enumerate(zip(size, made, strict=True)):
        counted = range(-before[axis], n + end[axis])
        found = np.multiply.outer(found, _along(node, axis, counted, o, begin=begin[axis]).sum(axis=1))
    return np.asarray(found, np.int64)


def average_facts(node: Node, graph: Graph) -> Facts:
    """Return the size of the window, its widest pad, and how windows at the border are filled.

    `none`: no window leaves the map. `same`: as TensorFlow pads (half of what is missing in front), not counted.
    `counted`: zeros that count. `other`: else.
    """
    size, made, taps = _sizes(node, graph)
    begin = pads_before(node, size, taps, made)
    beyond = _beyond(node, size, made, begin=begin, taps=taps)
    facts: Facts = {"window": prod(taps), "pad_max": int(max([0, *begin, *beyond]))}
    strides = node.attr("strides", [1] * len(taps))
    same = all(
        (b, max(e, 0)) == (max(b + e, 0) // 2, max(b + e, 0) - max(b + e, 0) // 2) and o == -(-n // s)
        for b, e, o, n, s in zip(begin, beyond, made, size, strides, strict=True)
    )
    if not any(begin) and all(e <= 0 for e in beyond):
        return facts | {"pads": "none"}
    if node.attr("count_include_pad", 0):
        return facts | {"pads": "other" if node.attr("ceil_mode", 0) else "counted"}
    return facts | {"pads": "same" if same else "other"}


def _sizes(node: Node, graph: Graph) -> tuple[list[int], list[int], list[int]]:
    """The map, the result's map, and the window."""
    size, made = graph.shapes[node.inputs[0]][2:], graph.shapes[node.outputs[0]][2:]
    return list(size), list(made), list(node.attr("kernel_shape", [1] * len(size)))


def _along(node: Node, axis: int, held: range, made: int, *, begin: int) -> NDArray[np.int64]:
    """Which places of one axis each window has, `[made, places]`."""
    taps, rank = node.attr("kernel_shape"), len(node.attr("kernel_shape"))
    stride, dilation = (node.attr(key, [1] * rank)[axis] for key in ("strides", "dilations"))
    first = np.arange(made)[:, None] * stride - begin
    places = first + np.arange(taps[axis]) * dilation
    inside = np.asarray(held)[None, :, None] == places[:, None, :]
    return np.asarray(inside.any(axis=2), np.int64)


def _beyond(
    node: Node, size: Sequence[int], made: Sequence[int], *, begin: Sequence[int], taps: Sequence[int]
) -> list[int]:
    """How far the last window reaches beyond the map along each axis; negative where it ends before."""
    rank = len(taps)
    strides, dilations = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
    rows = zip(made, strides, taps, dilations, begin, size, strict=True)
    return [(o - 1) * s + (k - 1) * d + 1 - b - n for o, s, k, d, b, n in rows]
