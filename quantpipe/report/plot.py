"""The search's best value over its evaluations, as coordinates that the page's template draws (inline SVG)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from quantpipe.report.text import number

WIDTH, HEIGHT = 720, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 72, 16, 12, 32
_MOST_POINTS = 400


@dataclass(frozen=True)
class Plot:
    """An SVG path, and axis ticks as (position in pixels, label)."""

    path: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    last: tuple[float, float]
    width: int = WIDTH
    height: int = HEIGHT
    left: int = _LEFT
    right: int = WIDTH - _RIGHT
    bottom: int = HEIGHT - _BOTTOM


def best_so_far(trace: Any) -> Plot | None:
    """Return the plot of `[[evaluation, best value], …]`; None when fewer than two finite points are there."""
    points = _points(trace)
    if len(points) < 2:
        return None
    (first, last) = points[0][0], points[-1][0]
    low, high = min(v for _, v in points), max(v for _, v in points)
    if high - low < 1e-12 * max(abs(high), 1.0):  # a flat line stands in the middle
        pad = abs(high) * 0.05 or 1.0
        low, high = low - pad, high + pad

    def x(evaluation: float) -> float:
        return round(_LEFT + (WIDTH - _LEFT - _RIGHT) * (evaluation - first) / max(last - first, 1e-12), 1)

    def y(value: float) -> float:
        return round(_TOP + (HEIGHT - _TOP - _BOTTOM) * (high - value) / (high - low), 1)

    # A best value holds until it is beaten: steps, not slopes.
    path = f"M{x(points[0][0])} {y(points[0][1])}" + "".join(f"H{x(e)}V{y(v)}" for e, v in points[1:])
    return Plot(
        path=path,
        x_ticks=tuple((x(e), number(e)) for e in _even(first, last, whole=True)),
        y_ticks=tuple((y(v), number(v)) for v in _even(low, high)),
        last=(x(points[-1][0]), y(points[-1][1])),
    )


@dataclass(frozen=True)
class Front(Plot):
    """A Pareto front: the steps between its points, the points themselves, and the one that was picked (`last`)."""

    dots: tuple[tuple[float, float], ...] = ()


def pareto_front(points: Any, picked: Any) -> Front | None:
    """Return the plot of `[[trial, cost, value], …]`: value over cost.

    None when fewer than two finite points are there.
    """
    found = [(p[1], p[2], p[0]) for p in points or () if isinstance(p, list | tuple) and len(p) == 3]
    steps = best_so_far([[cost, value] for cost, value, _ in found])
    if steps is None:
        return None
    low, high = found[0][0], found[-1][0]
    values = [value for _, value, _ in found]
    top, bottom = max(values), min(values)

    def at(cost: float, value: float) -> tuple[float, float]:
        x = _LEFT + (WIDTH - _LEFT - _RIGHT) * (cost - low) / max(high - low, 1e-12)
        y = _TOP + (HEIGHT - _TOP - _BOTTOM) * (top - value) / max(top - bottom, 1e-12)
        return round(x, 1), round(y, 1)

    chosen = next((at(c, v) for c, v, number in found if number == picked), steps.last)
    ticks = tuple((at(c, bottom)[0], number(c)) for c in _even(low, high))
    dots = tuple(at(c, v) for c, v, _ in found)
    return Front(steps.path, ticks, steps.y_ticks, chosen, dots=dots)


def _points(trace: Any) -> list[tuple[float, float]]:
    """The finite points in order, thinned out to what a screen can show (every improvement's level is kept)."""
    points = []
    for item in trace or ():
        if isinstance(item, list | tuple) and len(item) == 2 and all(isinstance(n, int | float) for n in item):
            evaluation, value = item
            if math.isfinite(evaluation) and math.isfinite(value):
                points.append((evaluation, value))
    points.sort(key=lambda point: point[0])
    stride = max(1, math.ceil(len(points) / _MOST_POINTS))
    return points if stride == 1 else [*points[:-1:stride], points[-1]]


def _even(low: float, high: float, whole: bool = False) -> list[float]:
    """Round numbers in the interval, about four of them."""
    if high <= low:
        return [low]
    step = 10.0 ** math.floor(math.log10((high - low) / 4))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= 5)
    step = max(step, 1.0) if whole else step
    return [round(index * step, 12) for index in range(math.ceil(low / step), math.floor(high / step) + 1)]
