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
    """Where time and memory of a run went, up to its report."""

    # `samples`, `float_pass_seconds`: evaluation samples, and the seconds of one float pass over them; null if an
    # interrupted evaluation had all of its outputs
    samples: int
    float_pass_seconds: float | None
    # `seconds`, `processor_seconds`: by the clock, and of all cores
    seconds: float
    processor_seconds: float
    # everything after calibration, in float passes
    passes: float | None
    # `effort.passes`
    limit: float
    # what was not measured because of the [limits](effort.md#limits), in sentences
    left_out: list[str]
    # `peak_mb`, `estimated_peak_mb`: peak memory of the process, MiB, and its [estimate](effort.md#memory) before
    # calibration
    peak_mb: float
    estimated_peak_mb: NotRequired[float | None]
    # per stage, and per named part of it: `stage`, `part` (null for the whole stage), `seconds`, `processor_seconds`,
    # `passes`, `memory_mb` (held at the end), `peak_mb` (peak up to the end). A step of recovery has seconds and passes
    # only
    rows: list[EffortRow]
