"""Every figure of a report that has something to show."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from quantpipe.option_checks import is_number
from quantpipe.report.figures.canvas import BAD, MARK, QUIET, Canvas
from quantpipe.types.figures import ConfusionFigure, Figures


def confusion(found: ConfusionFigure) -> str:
    """Return the samples that got another class, by the class before and after."""
    classes, counts = found["classes"], found["counts"]
    size = len(classes)
    with Canvas(
        min(4.6, 1.6 + 0.28 * size), min(4.2, 1.2 + 0.28 * size), "Classes of the float and the realized model"
    ) as canvas:
        ax = canvas.axes[0]
        ax.grid(visible=False)
        for row in range(size):
            for column in range(size):
                number = counts[row][column]
                if number:
                    colour = MARK if row == column else BAD
                    ax.annotate(str(number), (column, row), ha="center", va="center", size=8, color=colour)
        ax.set_xticks(range(size), [str(c) for c in classes], size=7)
        ax.set_yticks(range(size), [str(c) for c in classes], size=7)
        ax.set_xlim(-0.5, size - 0.5)
        ax.set_ylim(size - 0.5, -0.5)
        ax.plot([-0.5, size - 0.5], [-0.5, size - 0.5], color=QUIET, linewidth=0.4)
        ax.set_xlabel("class of the realized model")
        ax.set_ylabel("class of the float model")
        return canvas.svg()


VARIABLE = "QUANTPIPE_FIGURES"
"""`none` in the environment: pages are written without figures, half a second quicker."""


@dataclass(frozen=True)
class Drawn:
    """The figures as `<svg>` elements; None, or empty, where there is nothing to show."""

    network: str | None = None
    depth: str | None = None
    bars: str | None = None
    histograms: Sequence[str] = ()
    curve: str | None = None
    front: str | None = None
    confusion: str | None = None
    timeline: str | None = None


def drawn(report: Mapping[str, Any], data: Figures | None) -> Drawn:
    """Return the figures of a report.json, in which keys may be missing.

    `data` holds what figures show in addition; None if that is not known.
    """
    if os.environ.get(VARIABLE) == "none":
        return Drawn()
    from quantpipe.report.figures import course, graph_figure, layers

    search = report.get("search") or {}
    search = search if isinstance(search, Mapping) else {}
    by_cost = search.get("form") == "least_cost_within_tolerance" and _varies(search.get("trace_cost"))
    cost, metric = str(search.get("cost") or "cost"), str(search.get("metric") or "value")
    rows = _layers(report.get("layers"))
    confused = data["confusion"] if data is not None else None
    return Drawn(
        network=graph_figure.network(data["graph"]) if data is not None and data["graph"]["nodes"] else None,
        depth=layers.along_depth(rows, data.get("stages", ()) if data is not None else ()) if len(rows) > 1 else None,
        bars=layers.bars(rows, data.get("shares", {}) if data is not None else {}) if rows else None,
        histograms=[layers.histogram(one) for one in data["histograms"]] if data is not None else (),
        curve=course.curve(search.get("trace_cost" if by_cost else "trace"), f"cost ({cost})" if by_cost else metric),
        front=course.front(search.get("front"), search.get("picked"), cost, metric),
        confusion=confusion(confused) if confused is not None and confused["changed"] else None,
        timeline=course.timeline(data["timeline"]) if data is not None else None,
    )


def _varies(trace: Any) -> bool:
    """Whether the best cost changed: where the search found less loss at the same cost, the loss is drawn."""
    return isinstance(trace, list) and len({row[1] for row in trace if isinstance(row, list) and len(row) == 2}) > 1


def _layers(given: Any) -> list[dict[str, Any]]:
    """Return the rows that can be drawn: what is no number in them is left out."""
    names = ("bits", "sqnr_db", "rounding", "saturation")
    return [
        {"tensor": str(row["tensor"]), **{name: float(row[name]) for name in names if is_number(row.get(name))}}
        for row in given or ()
        if isinstance(row, Mapping) and row.get("tensor") is not None
    ]
