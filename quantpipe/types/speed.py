"""The parts of report.json about speed: measured latency, and the verdict on it."""

from __future__ import annotations

from typing import Literal, TypedDict


class LatencyPart(TypedDict, total=False):
    """Medians of interleaved pairs at batch 1; empty without any. `of` names what ran; ratios have quartiles."""

    float_ms: float
    realized_ms: float
    ratio: float
    ratio_low: float
    ratio_high: float
    runs: int
    threads: int
    processor: str
    of: Literal["device", "reference"]


class SpeedPart(TypedDict):
    """The speed of the realized model, compared with the float one."""

    by: Literal["latency", "cycles"]
    ratio: float
    slower: bool
