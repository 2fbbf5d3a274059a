"""The order in which advice is given, of whatever was explained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quantpipe.types import AdviceRow

SPLIT = 2
"""So many times the culprits are split into rounding and clipping."""

HALF = 0.5

WORTH = 0.02
"""Of the loss, or of the cost: a change that gains less is not advised."""


def ordered(rows: Sequence[AdviceRow], allowed: Callable[[AdviceRow], bool] | None = None) -> list[AdviceRow]:
    """Return the advice rows, the best first, with advised ones marked.

    A change that removes half of the loss in one place precedes changes of the whole run, because it points at the
    fault. The rest is ordered by gain; then by the rank of the culprit, then by cost. For a run that meets its
    objective (`allowed` is given), changes that lower the cost within the objective come first.
    """
    for row in rows:
        row["advised"] = row["gain"] >= WORTH or _saves(row, allowed)

    def place(row: AdviceRow) -> tuple[float, ...]:
        idle, saved = not _saves(row, allowed), -_saved(row, allowed)
        return idle, saved, not _names_the_fault(row), -round(row["gain"], 1), saving(row) < 0

    return sorted(rows, key=place)


def _names_the_fault(row: AdviceRow) -> bool:
    return bool(row["members"]) and row["gain"] >= HALF


def saving(row: AdviceRow) -> float:
    """Return the share of the cost that a change saves; negative where it costs more, 0 where no cost is known."""
    before, after = row["cost_before"], row["cost_after"]
    return 1.0 - after / before if before and after is not None else 0.0


def _saves(row: AdviceRow, allowed: Callable[[AdviceRow], bool] | None) -> bool:
    return allowed is not None and saving(row) >= WORTH and allowed(row)


def _saved(row: AdviceRow, allowed: Callable[[AdviceRow], bool] | None) -> float:
    return round(saving(row), 2) if _saves(row, allowed) else 0.0
