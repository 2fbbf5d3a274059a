"""The part `effort` of a report: where the time and the memory of a run went, also in float passes."""

from __future__ import annotations

from collections.abc import Iterable

from quantpipe.calibrate.measure import peak_rss_mb
from quantpipe.pipeline.timeline import Spent, Timed
from quantpipe.types import RecoveryRecord
from quantpipe.types.effort import EffortPart, EffortRow

BEFORE = ("model", "annotate", "calibrate")
"""Stages up to the end of calibration."""


def effort_part(timed: Timed, samples: int, per_sample: float | None, recovery: RecoveryRecord) -> EffortPart:
    """Return the account of a run up to now.

    `per_sample`: the seconds of the float model for one of the evaluation samples; None if it did not run. The steps of
    a `recovery` that this run made are parts of its stage.
    """
    once = per_sample * samples if per_sample else None
    rows: list[EffortRow] = []
    for stage, part, spent in timed.account():
        rows.append(_row(stage, part, spent, once))
        if (stage, part) == ("recover", None):
            rows += _steps(recovery, once)
    stages = [row for row in rows if row["part"] is None]
    after = sum(row["seconds"] for row in stages if row["stage"] not in BEFORE)
    return {
        "samples": samples,
        "float_pass_seconds": once,
        "seconds": sum(row["seconds"] for row in stages),
        "processor_seconds": sum(row["processor_seconds"] or 0.0 for row in stages),
        "peak_mb": peak_rss_mb(),
        "passes": _passes(after, once),
        "rows": rows,
    }


def seconds_by_stage(rows: Iterable[EffortRow]) -> dict[str, float]:
    """Return the seconds of each stage; a stage that began several times is one."""
    found: dict[str, float] = {}
    for row in rows:
        if row["part"] is None:
            found[row["stage"]] = found.get(row["stage"], 0.0) + row["seconds"]
    return found


def _row(stage: str, part: str | None, spent: Spent, once: float | None) -> EffortRow:
    return {
        "stage": stage,
        "part": part,
        "seconds": spent.seconds,
        "processor_seconds": spent.processor_seconds,
        "passes": _passes(spent.seconds, once),
        "memory_mb": spent.memory_mb,
        "peak_mb": spent.peak_mb,
    }


def _steps(recovery: RecoveryRecord, once: float | None) -> list[EffortRow]:
    return [
        {
            "stage": "recover",
            "part": step["step"],
            "seconds": step["seconds"],
            "processor_seconds": None,
            "passes": _passes(step["seconds"], once),
            "memory_mb": None,
            "peak_mb": None,
        }
        for step in recovery.get("steps", ())
        if "seconds" in step
    ]


def _passes(seconds: float, once: float | None) -> float | None:
    return seconds / once if once else None
