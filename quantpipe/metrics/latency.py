"""Measure the latency of the float and the realized model at batch 1.

The figures are medians of interleaved runs, so that drift hits both alike.
"""

from __future__ import annotations

import time
from statistics import median

import onnx_ir as ir

from quantpipe.graph.execute import Feeds, Session
from quantpipe.types import (
    LatencyPart,
)

WARM_UP = 3


def latency(float_model: ir.Model, realized: ir.Model, feeds: Feeds, runs: int, *, max_seconds: float) -> LatencyPart:
    """Return the latency of both models: float_ms, realized_ms, ratio (realized / float), its lower quartile, runs.

    Args:
        float_model: the float model.
        realized: the realized model.
        feeds: one sample; all cores are used.
        runs: most pairs of runs.
        max_seconds: no pair begins after that, but never fewer than five are run.

    Returns:
        The figures by name.
    """
    sessions = (Session(float_model, where="float model"), Session(realized, where="realized model"))
    return interleaved(sessions, feeds, runs, max_seconds)


def interleaved(sessions: tuple[Session, Session], feeds: Feeds, runs: int, max_seconds: float) -> LatencyPart:
    """Return the latency of two models whose sessions exist.

    Args:
        sessions: (float, realized).
        feeds: one sample.
        runs: most pairs of runs.
        max_seconds: no pair begins after that, but never fewer than five are run.

    Returns:
        The figures by name.
    """
    for session in sessions:
        for _ in range(WARM_UP):
            session.run(feeds)
    times: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    while len(times[0]) < runs and (len(times[0]) < 5 or time.perf_counter() - started < max_seconds):
        for session, found in zip(sessions, times, strict=True):
            before = time.perf_counter()
            session.run(feeds)
            found.append(time.perf_counter() - before)
    ratios = sorted(b / a for a, b in zip(*times, strict=True))
    return {
        "float_ms": 1e3 * median(times[0]),
        "realized_ms": 1e3 * median(times[1]),
        "ratio": median(ratios),
        "ratio_low": ratios[len(ratios) // 4],
        "runs": len(times[0]),
    }
