"""Two kinds of charts as SVG text: lines over an axis, and groups of bars. The same input gives the same bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLOURS = ("#1d4e89", "#c1121f", "#2a9d8f", "#8a5a00", "#6a4c93", "#33658a", "#7a7a7a")
WIDTH, HEIGHT = 720, 320
LEFT, TOP, RIGHT, BOTTOM = 64, 40, 16, 44


@dataclass(frozen=True)
class Axis:
    """Where values lie: from `low` to `high` on a linear or logarithmic scale, with labelled ticks."""

    title: str
    low: float
    high: float
    ticks: Sequence[float]
    logarithmic: bool = False

    def share(self, value: float) -> float:
        """The place of a value, 0 at `low` and 1 at `high`."""
        low, high, value = (math.log(v) if self.logarithmic else v for v in (self.low, self.high, value))
        return (value - low) / (high - low)


def document(body: Sequence[str], title: str, height: int = HEIGHT) -> str:
    """A whole SVG file with a white ground and a title that readers of screens speak."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" '
        f'font-size="12" role="img">\n<title>{escape(title)}</title>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *body, "</svg>\n"])


def text(x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, colour: str = "#222") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text {place} fill="{colour}">{escape(words)}</text>'


def legend(names: Sequence[str]) -> list[str]:
    """The names beside their colours, in one row above the plot."""
    parts, x = [], float(LEFT)
    for colour, name in zip(COLOURS, names, strict=False):
        parts.append(f'<rect x="{x:.1f}" y="14" width="12" height="6" fill="{colour}"/>')
        parts.append(text(x + 16, 21, name, size=11))
        x += 30 + 5.8 * len(name)
    return parts


def lines(curves: Mapping[str, Sequence[tuple[float, float]]], across: Axis, up: Axis, *, marked: bool = True) -> str:
    """Curves through points, each of which is marked by a dot if asked."""
    body = [*legend(list(curves)), *_frame(up), *_ticks_below(across)]
    for colour, points in zip(COLOURS, curves.values(), strict=False):
        places = [(_x(across.share(x)), _y(up.share(y))) for x, y in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        body.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        if marked:
            body += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
    return document(body, f"{up.title} over {across.title}")


def bars(groups: Mapping[str, Mapping[str, float]], up: Axis) -> str:
    """Groups of bars side by side, each with its value above it."""
    names = list(dict.fromkeys(name for group in groups.values() for name in group))
    room = (WIDTH - LEFT - RIGHT) / len(groups)
    width = room * 0.8 / len(names)
    body = [*legend(names), *_frame(up)]
    for place, (label, group) in enumerate(groups.items()):
        begin = LEFT + room * (place + 0.1)
        for number, name in enumerate(names):
            if name not in group:
                continue
            top = _y(max(up.share(group[name]), 0))
            x = begin + number * width
            body.append(
                f'<rect x="{x:.1f}" y="{top:.1f}" width="{width * 0.9:.1f}" height="{_y(0) - top:.1f}" '
                f'fill="{COLOURS[number]}"/>'
            )
        for row, words in enumerate(label.split("\n")):
            body.append(text(begin + room * 0.4, HEIGHT - BOTTOM + 16 + 13 * row, words, anchor="middle", size=10))
    return document(body, f"{up.title}: {', '.join(names)}")


def _x(share: float) -> float:
    return LEFT + share * (WIDTH - LEFT - RIGHT)


def _y(share: float) -> float:
    return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def _frame(up: Axis) -> list[str]:
    body = []
    for tick in up.ticks:
        y = _y(up.share(tick))
        body.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        body.append(text(LEFT - 6, y + 4, f"{tick:g}", anchor="end", size=11))
    return [*body, text(4, 34, up.title, size=11, colour="#555")]


def _ticks_below(across: Axis) -> list[str]:
    marks = [text(_x(across.share(t)), HEIGHT - BOTTOM + 16, f"{t:g}", anchor="middle", size=11) for t in across.ticks]
    middle = text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, across.title, anchor="middle", size=11, colour="#555")
    return [*marks, middle]
