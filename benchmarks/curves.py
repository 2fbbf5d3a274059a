"""Best-so-far curves of searches, and a drawing of them (SVG)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log10

Panel = tuple[str, bool, Mapping[str, "Curve"]]
"""Title; whether the curves are costs (drawn as shares of their first value, else as logarithms); search -> curve."""


@dataclass(frozen=True)
class Curve:
    """`steps`: (evaluation, from 1; what was best from there on, less is better). It holds until it is beaten."""

    steps: Sequence[tuple[int, float]]
    budget: int

    def at(self, evaluation: int) -> float:
        return [value for number, value in self.steps if number <= evaluation][-1]

    @property
    def area(self) -> float:
        """Mean over all evaluations of the budget; a search that ended earlier keeps what it found."""
        return sum(self.at(n) for n in range(1, self.budget + 1)) / self.budget

    @property
    def last(self) -> int:
        """The evaluation that found the best."""
        return self.steps[-1][0]


WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM, LEGEND = 460, 250, 56, 12, 30, 34, 24
COLOURS = (
    *("#c1121f", "#1d4e89", "#2a9d8f", "#8a5a00", "#6a4c93", "#e07a00", "#4d7c0f"),
    *("#0096c7", "#777777", "#b5838d", "#222222"),
)


def drawing(panels: Sequence[Panel], columns: int = 2) -> str:
    """One panel per task, evaluations to the right; costs linear, values (KL) on a logarithmic axis."""
    names = list(dict.fromkeys(name for _, _, curves in panels for name in curves))
    colour = dict(zip(names, COLOURS, strict=False))
    rows = -(-len(panels) // columns)
    width, height = columns * WIDTH, rows * HEIGHT + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    x, gap = 8.0, (width - 16 - sum(16 + 5.5 * len(name) for name in names)) / max(len(names), 1)
    for name in names:
        parts.append(f'<rect x="{x:.0f}" y="8" width="12" height="3" fill="{colour[name]}"/>')
        parts.append(f'<text x="{x + 16:.0f}" y="14" font-size="10">{name}</text>')
        x += 16 + 5.5 * len(name) + gap
    for number, panel in enumerate(panels):
        x, y = number % columns * WIDTH, LEGEND + number // columns * HEIGHT
        parts += [f'<g transform="translate({x} {y})">', *_panel(panel, colour), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _panel(panel: Panel, colour: Mapping[str, str]) -> list[str]:
    title, by_cost, curves = panel
    unit = next(iter(curves.values())).at(1) if by_cost else 1.0
    scale: Callable[[float], float] = (lambda v: 100 * v / unit) if by_cost else (lambda v: log10(max(v, 1e-9)))
    budget = max(curve.budget for curve in curves.values())
    values = [scale(value) for curve in curves.values() for _, value in curve.steps]
    low, high = min(values), max(values)
    high = high if high > low else low + 1

    def place(evaluation: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * (evaluation - 1) / max(budget - 1, 1)
        return round(x, 1), round(TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / (high - low), 1)

    parts = [f'<text x="{LEFT}" y="{TOP - 10}" font-weight="bold">{title}</text>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        level = low + share * (high - low)
        y = place(1, level)[1]
        label = f"{level:.0f} %" if by_cost else f"{10**level:.3g}"
        parts.append(f'<path d="M{LEFT} {y}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y + 4}" text-anchor="end">{label}</text>')
        evaluation = round(1 + share * (budget - 1))
        x = place(evaluation, low)[0]
        parts.append(f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{evaluation}</text>')
    for name, curve in reversed(curves.items()):
        points = [place(number, scale(value)) for number, value in curve.steps]
        path = f"M{points[0][0]} {points[0][1]}" + "".join(f"H{x}V{y}" for x, y in points[1:])
        path += f"H{place(budget, low)[0]}"
        width = 2.4 if name == "knapsack" else 1.2
        parts.append(f'<path d="{path}" fill="none" stroke="{colour[name]}" stroke-width="{width}"/>')
    return parts
