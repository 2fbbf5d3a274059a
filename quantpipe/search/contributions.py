"""What each changed choice of a search's result contributed: the result is measured with that choice as it began."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from quantpipe.types import ChoiceSpace, OptionValue, Point, Score

MOST = 48
"""Choices that are measured, at most: choices that cost nothing first, then in the order of the space."""


@dataclass(frozen=True)
class Contribution:
    """State what the result loses, and saves, by one choice.

    `key`: The choice. `before`: The option that the search began with. `after`: The option of the result. `value`: What
    the result gains against the option before, by `Score.compared`; NaN where that cannot be measured. `saved`: The
    cost with the option before minus the cost of the result.
    """

    key: str
    before: OptionValue
    after: OptionValue
    value: float
    saved: float


def changed_choices(space: ChoiceSpace, point: Point) -> list[int]:
    """Return the places of the choices in which a point differs from the start, those that cost nothing first."""
    moved = [i for i, (a, b) in enumerate(zip(space.start, point, strict=True)) if a != b]
    return sorted(moved, key=lambda i: (not space.choices[i].free, i))


def contributions(
    space: ChoiceSpace, point: Point, score: Score, measure: Callable[[Sequence[Point]], Iterable[Score]]
) -> list[Contribution]:
    """Return what each changed choice contributed, the largest gain of value first, then the largest saving.

    `measure`: Scores points; it is asked for at most `MOST`.
    """
    asked = changed_choices(space, point)[:MOST]
    if not asked:
        return []
    points = [(*point[:i], space.start[i], *point[i + 1 :]) for i in asked]
    found = []
    for i, back in zip(asked, measure(points), strict=True):
        choice = space.choices[i]
        begin, end = choice.options[space.start[i]], choice.options[point[i]]
        found.append(Contribution(choice.key, begin, end, score.compared - back.compared, back.cost - score.cost))
    return sorted(found, key=_order)


def _order(found: Contribution) -> tuple[bool, float, float]:
    """NaN, a result that does not work without the choice, comes first."""
    broken = found.value != found.value
    return (not broken, 0.0 if broken else -found.value, -found.saved)
