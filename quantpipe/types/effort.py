"""The account of a run: where its time and its memory went. The part `effort` of a report."""

from __future__ import annotations

from typing import NotRequired, TypedDict


class EffortRow(TypedDict):
    """A stage, or a named part of one (`part`).

    `seconds` by the clock and `processor_seconds` of all cores; null for a recovery step, which times itself. `passes`:
    the seconds in float passes over the evaluation samples. `memory_mb` is held at the end in MiB; `peak_mb` is the
    process's peak up to the end.
    """

    stage: str
    part: str | None
    seconds: float
    processor_seconds: float | None
    passes: float | None
    memory_mb: float | None
    peak_mb: float | None


class EffortPart(TypedDict):
    """Where time and memory of a run went, up to its report.

    `float_pass_seconds`: of the float model over all `samples` of the evaluation, null if unknown. `passes`: everything
    after calibration in that unit, and `limit` what the options leave it. `left_out`: what was not measured for that,
    in sentences. `estimated_peak_mb`: `peak_mb` by an estimate before calibration.
    """

    samples: int
    float_pass_seconds: float | None
    seconds: float
    processor_seconds: float
    peak_mb: float
    estimated_peak_mb: NotRequired[float | None]
    passes: float | None
    limit: float
    left_out: list[str]
    rows: list[EffortRow]
