"""Draw the course of a run: the search, the front, the stages with their memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from quantpipe.option_checks import is_number
from quantpipe.report import text
from quantpipe.report.figures.canvas import BAD, FLOAT, INK, MARK, NARROW, QUIET, WIDE, Canvas
from quantpipe.search.objective import LOSSES
from quantpipe.types.figures import TimelineRow

MOST_POINTS = 1000

LINES = (MARK, BAD, FLOAT, WIDE, NARROW, INK, QUIET)
"""Colours of several curves, which repeat after these."""


def curve(trace: Any, name: str) -> str | None:
    """Return the best so far over the candidates tried; None where there are fewer than two."""
    points = _values(trace, name)
    if len(points) < 2:
        return None
    with Canvas(9, 2.2, f"{name} of the best candidate so far") as canvas:
        ax = canvas.axes[0]
        ax.step(*zip(*points, strict=True), where="post", color=MARK, linewidth=1.6)
        ax.plot(*points[-1], "o", color=MARK, markersize=4)
        ax.set_xlabel("candidates tried")
        ax.set_ylabel(name)
        return canvas.svg()


def _values(trace: Any, name: str) -> list[Sequence[float]]:
    """Return the points of a search; a search stores minus the loss, and the figure has the loss."""
    sign = -1 if name in LOSSES else 1
    return [(number, sign * value + 0.0) for number, value in _points(trace, 2)]


def curves(traces: Mapping[str, Any], name: str) -> str | None:
    """Return the best so far of several searches over the candidates tried; None where fewer than two were searches.

    `traces` is label of the run -> `[candidates, value]`. A run that tried a single candidate is a dashed line.
    """
    found = {label: points for label, trace in traces.items() if (points := _values(trace, name))}
    most = max((points[-1][0] for points in found.values()), default=0)
    if len(found) < 2 or most < 2:
        return None
    with Canvas(9, 2.8, f"{name} of the best candidate so far, per run") as canvas:
        ax = canvas.axes[0]
        for place, (label, points) in enumerate(found.items()):
            colour = LINES[place % len(LINES)]
            if points[-1][0] < 2:
                ax.axhline(points[-1][1], color=colour, linewidth=1.2, linestyle="--", label=label)
                continue
            ax.step(*zip(*points, strict=True), where="post", color=colour, linewidth=1.6, label=label)
            ax.plot(*points[-1], "o", color=colour, markersize=4)
        ax.set_xlabel("candidates tried")
        ax.set_ylabel(name)
        ax.legend(loc="lower right", ncols=4)
        return canvas.svg()


def front(points: Any, picked: Any, cost: str, value: str) -> str | None:
    """Return a Pareto front of `[trial, cost, value]`; None where it has fewer than two points."""
    found = _points(points, 3)
    if len(found) < 2:
        return None
    with Canvas(9, 2.6, f"Pareto front: {value} over {cost}") as canvas:
        ax = canvas.axes[0]
        costs, values = [p[1] for p in found], [p[2] for p in found]
        ax.step(costs, values, where="post", color=QUIET, linewidth=1)
        ax.scatter(costs, values, s=18, color=MARK, zorder=3, gid="front")
        canvas.titles["front"] = [
            f"trial {p[0]:.0f}: {cost} {text.number(p[1])}, {value} {text.number(p[2])}" for p in found
        ]
        taken = [(p[1], p[2]) for p in found if p[0] == picked]
        if taken:
            ax.plot(*taken[0], "o", markersize=11, markerfacecolor="none", markeredgecolor=BAD, markeredgewidth=1.6)
            ax.annotate(f"trial {picked}, taken", taken[0], (8, -10), textcoords="offset points", size=8, color=INK)
        ax.set_xlabel(f"cost ({cost})")
        ax.set_ylabel(value)
        return canvas.svg()


def timeline(rows: Sequence[TimelineRow]) -> str | None:
    """Return the stages over time, and the memory held at the end of each."""
    if not rows or sum(row["seconds"] for row in rows) <= 0:
        return None
    with Canvas(9, 0.9 + 0.22 * len(rows), "Stages over time, with the memory held at their ends") as canvas:
        ax = canvas.axes[0]
        at = range(len(rows))
        ax.barh(
            at, [max(row["seconds"], 1e-3) for row in rows], left=[row["start"] for row in rows], color=MARK, height=0.6
        )
        ax.set_yticks(at, [row["stage"] for row in rows])
        ax.invert_yaxis()
        end = max(row["start"] + row["seconds"] for row in rows)
        for number, row in enumerate(rows):
            memory = f", {row['memory_mb']:,.0f} MiB" if row["memory_mb"] is not None else ""
            inside = row["start"] + row["seconds"] > 0.7 * end
            place = row["start"] if inside else row["start"] + row["seconds"]
            ax.annotate(f"{text.seconds(row['seconds'])}{memory}", (place, number), (-4 if inside else 4, 0),
                        textcoords="offset points", va="center", ha="right" if inside else "left", size=8)  # fmt: skip
        ax.set_xlabel("time since the start [s]; memory held at the end of a stage")
        return canvas.svg()


def _points(given: Any, size: int) -> list[Sequence[float]]:
    """Return the finite points in their order; a long curve thinned out to what a screen can show, with its end."""
    rows = given if isinstance(given, list | tuple) else ()
    found = [p for p in rows if isinstance(p, list | tuple) and len(p) == size and all(map(is_number, p))]
    stride = -(-len(found) // MOST_POINTS) or 1
    thinned = found if stride == 1 else [*found[:-1:stride], found[-1]]
    return [[float(n) for n in p] for p in thinned]
