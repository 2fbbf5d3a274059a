"""The order in which advice is given, of whatever was explained."""

from __future__ import annotations

from collections.abc import Sequence

from quantpipe.types import AdviceRow

SPLIT = 2
"""So many times the culprits are split into rounding and clipping."""


def ordered(rows: Sequence[AdviceRow]) -> list[AdviceRow]:
    """Return the best first. Of those that gain alike, what is about the worst culprit, and costs least, comes first.

    Args:
        rows: In the order of the culprits, changes of the whole run last.
    """
    return sorted(rows, key=lambda row: (-round(row["gain"], 1), _dearer(row)))


def _dearer(row: AdviceRow) -> bool:
    before, after = row["cost_before"], row["cost_after"]
    return before is not None and after is not None and after > before
