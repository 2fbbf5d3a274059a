"""Latency as people read it: its ratio to the float model's, and how it was measured."""

from __future__ import annotations

from typing import Any

from quantpipe.report.text import is_number, mapping, number, times
from quantpipe.types import RunReport


def latency_ratio(latency: Any) -> str | None:
    """Return how the realized model's latency compares with the float model's; None if the device runs elsewhere.

    Where 1 is between the quartiles of the pairs' ratios, the text has no verdict.
    """
    found = mapping(latency)
    middle, low, high = (found.get(key) for key in ("ratio", "ratio_low", "ratio_high"))
    if found.get("of") == "reference" or middle is None or not is_number(middle) or middle <= 0:
        return None
    if low is None or high is None or not (is_number(low) and is_number(high)):
        return times(middle, 1.0, "faster", "slower")
    between = f"{number(low, 3)} to {number(high, 3)} times float's in half of the pairs"
    if low <= 1 <= high:
        return f"no clear difference, {between}"
    return f"{times(middle, 1.0, 'faster', 'slower')}, {between}"


def latency_quartiles(latency: Any) -> str | None:
    """Return the quartiles of the pairs' ratios, "0.52 – 0.55"; None if unknown, or if the device runs elsewhere."""
    found = mapping(latency)
    ends = [found.get(key) for key in ("ratio_low", "ratio_high")]
    if found.get("of") == "reference" or not all(map(is_number, ends)):
        return None
    return " – ".join(number(end, 3) for end in ends)


def latency_conditions(report: RunReport) -> str | None:
    """Return how latency was measured, and of what; None where it was not."""
    found = mapping(report.get("latency"))
    if not is_number(found.get("realized_ms")):
        return None
    threads = (
        f", {number(found['threads'])} thread{'s' if found['threads'] > 1 else ''}" if found.get("threads") else ""
    )
    processor = f", {found['processor']}" if found.get("processor") else ""
    how = f"medians of {number(found.get('runs'))} interleaved pairs of runs at batch 1{threads}{processor}"
    if found.get("of") != "reference":
        return f"Latency: {how}."
    device = mapping(report.get("run")).get("hardware") or "the device"
    return f"Latency is of the reference form in onnxruntime on this host, not of {device}: {how}."
