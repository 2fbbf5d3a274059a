"""Where the time of a run went, as the page and main.log show it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.report.text import is_number, mapping, number, seconds

LEAST = 0.005
"""Share of the run's seconds: shorter parts are in report.json only."""


def effort_sentence(effort: Any) -> str | None:
    """Return the time of a run and of everything after calibration in one sentence; None if it is unknown."""
    found = mapping(effort)
    if not is_number(found.get("seconds")):
        return None
    spent = f"{seconds(found['seconds'])} up to the report"
    if is_number(found.get("processor_seconds")):
        spent += f", {seconds(found['processor_seconds'])} of all cores"
    if is_number(found.get("passes")):
        spent += f"; after calibration {number(found['passes'], 3)} float passes over {found.get('samples')} samples"
        spent += f" of {seconds(found.get('float_pass_seconds'))} each"
    return spent


def left_out(effort: Any) -> str | None:
    """Return in one line what was not measured; None if nothing was left out."""
    found = mapping(effort).get("left_out")
    return f"left out: {'; '.join(map(str, found))}" if found else None


def effort_rows(effort: Any) -> list[Mapping[str, Any]]:
    """Return the rows that the page shows: every stage, and the parts that take time."""
    found = mapping(effort)
    rows = [mapping(row) for row in found.get("rows") or ()]
    least = LEAST * found["seconds"] if is_number(found.get("seconds")) else 0.0
    return [row for row in rows if row.get("part") is None or (row.get("seconds") or 0.0) >= least]
