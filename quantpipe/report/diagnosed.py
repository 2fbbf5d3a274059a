"""Summarize why a result misses its objective, for the last lines on the terminal and for the page."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.text import Text

from quantpipe.report import text
from quantpipe.types import DiagnosisPart

PLACES = 3
"""Culprits that the terminal names."""

MENDING = 2
"""Changes that the terminal tells."""


def diagnosed(part: DiagnosisPart | None) -> Iterator[Text]:
    """Yield the largest losses and their remedies, a line each; nothing without a diagnosis."""
    if part is None:
        return
    places = [f"{name_of(row)} ({said})" if (said := mostly(row)) else name_of(row) for row in part["culprits"]]
    if places:
        yield Text(f"lost    mostly at {', '.join(places[:PLACES])}")
    for row in [row for row in part["culprits"] if row.get("fault")][:1]:
        yield Text(f"why     {name_of(row)}: {row['fault']}")
    for row in best_of_places(part["advice"])[:MENDING]:
        yield Text(f"fix     {row['role']}: {row['change']}: {gained(row)}")
        if row["overrides"]:
            yield Text(f"        {shlex.join(row['overrides'])}", style="green")
    for left in part["unmeasured"]:
        yield Text(f"try     {shlex.join(left['overrides'])}    {left['change']}, not measured here", style="green")


def best_of_places(advice: Sequence[Any]) -> list[Any]:
    """Return the first row of each place, in order: the best of a place comes first."""
    best: dict[tuple[str, tuple[str, ...]], Any] = {}
    for row in advice:
        best.setdefault((row["role"], tuple(row["members"])), row)
    return list(best.values())


def name_of(row: Mapping[str, Any]) -> str:
    """Return a culprit's name, with its kind where it is no tensor."""
    return str(row["tensor"]) if row["kind"] == "tensor" else f"{row['kind']} {row['tensor']}"


def mostly(row: Mapping[str, Any]) -> str:
    """Return the main kind of a culprit's error: overflow, rescale, clipping or rounding; empty if unknown."""
    if row["overflow"]:
        return "overflow"
    split = row.get("split") or {}
    if split and split["rescale"] > max(split["rounding"], split["clipping"]):
        return "rescale"
    if row["rounding"] is None or row["clipping"] is None:
        return ""
    return "clipping" if row["clipping"] > row["rounding"] else "rounding"


def gained(row: Mapping[str, Any]) -> str:
    """Return a change's effect on the loss and the accuracy, and its cost."""
    right = "" if row["accuracy_after"] is None else f", accuracy {text.percent(row['accuracy_after'])}"
    gain = f"{abs(100 * row['gain']):.0f} % {'less' if row['gain'] >= 0 else 'more'}"
    return f"loss {text.number(row['loss_after'])} ({gain}){right}{_cost(row)}"


WORTH = 0.02
"""Of the cost: what changes less is not told."""


def _cost(row: Mapping[str, Any]) -> str:
    before, after = row["cost_before"], row["cost_after"]
    if before is None or after is None or not before:
        return ""
    if after < before * (1 - WORTH):
        return f"; saves {100 * (1 - after / before):.1f} % of the cost"
    return "; costs nothing" if after <= before else f"; costs {100 * (after / before - 1):.1f} % more"
