"""The model as a picture: nodes by depth, colours by what they compute in, rims by how far off their results are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.report import text
from quantpipe.report.figures.canvas import BAD, INK, MARK, PAGE, QUIET, Canvas
from quantpipe.types.figures import GraphFigure, GraphNode

MOST = 2000
"""Nodes that are drawn one by one; of a larger model, each mark stands for some that follow one another."""
RANKS = 56
"""Steps of depth in one row; deeper models go on below, as text does."""
LEAST_RANKS = 30
"""Steps that a row has room for at the least: marks of a short model would be huge."""
FLOAT, WIDE, NARROW = "#c8881a", "#0f9d8a", "#8b5cf6"
Places = NDArray[np.float64]
_STEP = 0.16
"""Inches per step of depth."""


def network(graph: GraphFigure) -> str:
    """Return the picture of a model."""
    graph = _merged(graph)
    nodes, edges = graph["nodes"], [(a, b) for a, b in graph["edges"]]
    x, y = _places(len(nodes), edges)
    rows = int(y.max() - y.min()) + 1 if len(y) else 1
    wide = max(LEAST_RANKS, int(x.max()) + 1 if len(x) else 0)
    width, height = _STEP * (wide + 3), max(1.0, _STEP * (rows + 2) + 0.3)
    with Canvas(width, height, f"The model: {len(nodes)} nodes by depth, coloured by what they compute in") as canvas:
        ax = canvas.axes[0]
        ax.set_axis_off()
        _edges(ax, edges, x, y)
        worst = {id(node) for node in sorted(filter(_known, nodes), key=lambda n: n["sqnr_db"] or 0.0)[:10]}
        rims = [BAD if id(node) in worst else PAGE for node in nodes]
        ax.scatter(
            x, y, s=40, marker="s", c=[_colour(node) for node in nodes], edgecolors=rims, linewidths=1.6, zorder=3,
            gid="nodes",
        )  # fmt: skip
        canvas.titles["nodes"] = [_said(node) for node in nodes]
        for node, at, up in zip(nodes, x, y, strict=True):
            if id(node) in worst:
                ax.annotate(text.decibel(node["sqnr_db"]), (at, up), (0, 5), textcoords="offset points", size=5,
                            ha="center", color=BAD)  # fmt: skip
        ax.set_xlim(-1.5, wide + 0.5)
        ax.set_ylim(y.max() + 1.2 if len(y) else 1, y.min() - 1.2 if len(y) else 0)
        _legend(ax, nodes)
        return canvas.svg()


def _known(node: GraphNode) -> bool:
    return node["sqnr_db"] is not None


def _said(node: GraphNode) -> str:
    form = "float" if node["bits"] is None else f"{node['bits']} bits"
    error = f", SQNR {text.decibel(node['sqnr_db'])}" if _known(node) else ""
    return f"{node['name']} ({node['op']}): {form}{error}"


def _colour(node: GraphNode) -> str:
    bits = node["bits"]
    return FLOAT if bits is None else NARROW if bits < 8 else MARK if bits == 8 else WIDE


def _legend(ax: Any, nodes: Sequence[GraphNode]) -> None:
    from matplotlib.lines import Line2D

    names = {FLOAT: "float", NARROW: "integer, fewer than 8 bits", MARK: "integer, 8 bits", WIDE: "integer, more bits"}
    present = {_colour(node) for node in nodes}
    marks = [
        Line2D([], [], marker="s", linestyle="", markersize=7, color=colour, label=name)
        for colour, name in names.items()
        if colour in present
    ]
    if any(map(_known, nodes)):
        marks.append(
            Line2D([], [], marker="s", linestyle="", markersize=7, markerfacecolor=PAGE, markeredgecolor=BAD,
                   markeredgewidth=1.6, label="least SQNR in the integer model")
        )  # fmt: skip
    ax.legend(handles=marks, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(marks), fontsize=7, labelcolor=INK)


def _edges(ax: Any, edges: Sequence[tuple[int, int]], x: Places, y: Places) -> None:
    """All edges as one path, which keeps the page small; those to the next row end and begin at its rim."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    points: list[tuple[float, float]] = []
    codes: list[Any] = []
    for a, b in edges:
        if x[b] > x[a] + 1.5 and y[a] == y[b]:  # past others in its way: a bow below them
            points += [(x[a], y[a]), ((x[a] + x[b]) / 2, y[a] + 1.3), (x[b], y[b])]
            codes += [Path.MOVETO, Path.CURVE3, Path.CURVE3]
            continue
        codes += [Path.MOVETO, Path.LINETO] * (1 if x[b] > x[a] else 2)
        if x[b] > x[a]:
            points += [(x[a], y[a]), (x[b], y[b])]
        else:
            points += [(x[a], y[a]), (x[a] + 0.8, y[a]), (x[b] - 0.8, y[b]), (x[b], y[b])]
    if points:
        path = Path(np.array(points), codes)
        ax.add_patch(PathPatch(path, fill=False, edgecolor=QUIET, linewidth=0.6, zorder=1))


def _places(count: int, edges: Sequence[tuple[int, int]]) -> tuple[Places, Places]:
    """Where each node stands: at its depth, beside those of the same depth, in rows of `RANKS` steps."""
    before: dict[int, list[int]] = defaultdict(list)
    for a, b in edges:
        before[b].append(a)
    depth = np.zeros(count, int)
    for node in range(count):  # in an order in which each follows what it reads
        depth[node] = max((depth[a] + 1 for a in before[node]), default=0)
    lane, taken = np.zeros(count, float), dict[tuple[int, float], int]()
    for node in range(count):
        wish = float(np.median([lane[a] for a in before[node]])) if before[node] else 0.0
        lane[node] = next(
            spot
            for step in range(2 * count + 1)
            if (int(depth[node]), spot := round(wish) + (step + 1) // 2 * (-1 if step % 2 else 1)) not in taken
        )
        taken[int(depth[node]), lane[node]] = node
    row = depth // RANKS
    x, y, top = (depth % RANKS).astype(float), np.zeros(count, float), 0.0
    for number in range(int(row.max()) + 1 if count else 0):
        here = row == number
        y[here] = lane[here] - lane[here].min() + top
        top = float(y[here].max()) + 2.0
    return x, y


def _merged(graph: GraphFigure) -> GraphFigure:
    """At most `MOST` marks: runs of nodes that follow one another become one, which shows the worst of them."""
    nodes = graph["nodes"]
    size = -(-len(nodes) // MOST)
    if size <= 1:
        return graph
    found: list[GraphNode] = []
    for begin in range(0, len(nodes), size):
        part = nodes[begin : begin + size]
        worst = min(filter(_known, part), key=lambda n: n["sqnr_db"] or 0.0, default=part[0])
        name = f"{len(part)} nodes from {part[0]['name']}, worst {worst['name']}"
        found.append({**worst, "name": name, "bits": None if any(n["bits"] is None for n in part) else worst["bits"]})
    edges = {(a // size, b // size) for a, b in graph["edges"] if a // size != b // size}
    return {"nodes": found, "edges": [list(edge) for edge in sorted(edges)]}
