"""The model as a picture: nodes by depth, colours by what they compute in, rims by how far off their results are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.report import text
from quantpipe.report.figures.canvas import BAD, FLOAT, INK, NARROW, PAGE, QUIET, WIDE, Canvas
from quantpipe.types.figures import GraphFigure, GraphNode

MOST = 2000
"""Nodes that are drawn one by one; of a larger model, each mark stands for some that follow one another."""
RANKS = ((60, 14), (200, 20), (600, 32), (MOST, 56))
"""(nodes at most, steps of depth in one row): deeper models go on below, as text does."""
NAMED = 600
"""Nodes at most whose ops are written on them: small, for a reader who zooms in."""
LONGEST = 17
"""Letters of an op's name."""
WIDTH = 9.0
"""Inches of a row."""
WORST = 10
FAR, FARTHER = 20.0, 10.0
"""SQNR in dB below which a result is called far off, and very far."""
AMBER, EIGHT = "#e0a100", "#2f6fd0"
Places = NDArray[np.float64]


def network(graph: GraphFigure) -> str:
    """Return the picture of a model."""
    graph = _merged(graph)
    nodes, edges = graph["nodes"], [(a, b) for a, b in graph["edges"]]
    ranks = next(steps for most, steps in RANKS if len(nodes) <= most)
    x, y = _places(len(nodes), edges, ranks)
    step, rows = WIDTH / (ranks + 1), int(y.max() - y.min()) + 1 if len(y) else 1
    lane = max(0.16, 0.62 * step)
    with Canvas(
        WIDTH, lane * (rows + 0.6) + 0.3, f"The model: {len(nodes)} nodes by depth, coloured by what they compute in"
    ) as canvas:
        ax = canvas.axes[0]
        ax.set_axis_off()
        canvas.figure.subplots_adjust(0, 0, 1, 1)
        _edges(ax, edges, x, y)
        worst = {id(node) for node in sorted(filter(_known, nodes), key=lambda n: n["sqnr_db"] or 0.0)[:WORST]}
        _marks(ax, nodes, x, y, points=72 * step)
        canvas.titles["nodes"] = [_said(node) for node in nodes]
        size = 72 * step / 7
        for node, at, up in zip(nodes, x, y, strict=True):
            if len(nodes) <= NAMED:
                name = node["op"] if len(node["op"]) <= LONGEST else f"{node['op'][: LONGEST - 1]}…"
                ax.annotate(name, (at, up), size=size * min(1.0, 10 / len(name)), ha="center", va="center",
                            color="white")  # fmt: skip
            if id(node) in worst:
                ax.annotate(text.decibel(node["sqnr_db"]), (at, up - 0.36), size=size, ha="center", va="bottom",
                            color=INK)  # fmt: skip
        ax.set_xlim(-0.6, ranks - 0.4)
        ax.set_ylim(y.max() + 0.8 if len(y) else 1, y.min() - 0.8 if len(y) else 0)
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
    return FLOAT if bits is None else NARROW if bits < 8 else EIGHT if bits == 8 else WIDE


def _marks(ax: Any, nodes: Sequence[GraphNode], x: Places, y: Places, *, points: float) -> None:
    """Draw a box for each node, as wide as its place of so many points allows."""
    corners = ((-1, -0.42), (1, -0.42), (1, 0.42), (-1, 0.42), (-1, -0.42))
    halves = [((a + c) / 2, (b + d) / 2) for (a, b), (c, d) in pairwise(corners)]
    # With points enough, matplotlib writes the box once and refers to it, and references can have titles.
    box = [point for pair in zip(corners, [*halves, corners[-1]], strict=True) for point in pair]
    rims = [_rim(node) for node in nodes]
    ax.scatter(
        x, y, s=(0.86 * points) ** 2, marker=box, c=[_colour(node) for node in nodes], edgecolors=rims,
        linewidths=[min(2.4, 0.1 * points) if rim != PAGE else 0.0 for rim in rims], zorder=3, gid="nodes",
    )  # fmt: skip


def _rim(node: GraphNode) -> str:
    error = node["sqnr_db"]
    return PAGE if error is None or error >= FAR else AMBER if error >= FARTHER else BAD


def _legend(ax: Any, nodes: Sequence[GraphNode]) -> None:
    from matplotlib.lines import Line2D

    names = {FLOAT: "float", NARROW: "integer, fewer than 8 bits", EIGHT: "integer, 8 bits", WIDE: "integer, more bits"}
    errors = {AMBER: f"result below {FAR:.0f} dB of SQNR", BAD: f"below {FARTHER:.0f} dB"}
    filled, rims = {_colour(node) for node in nodes}, {_rim(node) for node in nodes}
    marks = [
        Line2D([], [], marker="s", linestyle="", markersize=7, color=colour, label=name)
        for colour, name in names.items()
        if colour in filled
    ]
    marks += [
        Line2D([], [], marker="s", linestyle="", markersize=7, markerfacecolor=PAGE, markeredgecolor=colour,
               markeredgewidth=1.8, label=name)
        for colour, name in errors.items()
        if colour in rims
    ]  # fmt: skip
    ax.legend(handles=marks, loc="lower left", bbox_to_anchor=(0, 1), ncols=len(marks), fontsize=7.5, labelcolor=INK,
              borderaxespad=0.0)  # fmt: skip


def _edges(ax: Any, edges: Sequence[tuple[int, int]], x: Places, y: Places) -> None:
    """Draw all edges as one path, which keeps the page small; edges to the next row end and begin at its rim."""
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


def _places(count: int, edges: Sequence[tuple[int, int]], ranks: int = RANKS[-1][1]) -> tuple[Places, Places]:
    """Return each node's place: at its depth, next to other nodes of this depth, in rows of `ranks` steps."""
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
    row = depth // ranks
    x, y, top = (depth % ranks).astype(float), np.zeros(count, float), 0.0
    for number in range(int(row.max()) + 1 if count else 0):
        here = row == number
        y[here] = lane[here] - lane[here].min() + top
        top = float(y[here].max()) + 2.0
    return x, y


def _merged(graph: GraphFigure) -> GraphFigure:
    """Return at most `MOST` marks: runs of consecutive nodes become one, which shows the worst of them."""
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
