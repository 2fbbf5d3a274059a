"""Measure the latency of the float and the realized model at batch 1.

The figures are medians of interleaved runs, so that drift hits both alike.
"""

from __future__ import annotations

import math
import platform
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from statistics import median, quantiles

import onnx_ir as ir

from quantpipe.arrays import Feeds
from quantpipe.graph.execute import Session, available_cores
from quantpipe.types import LatencyPart

WARM_UP = 3

SETTLED = 0.02
"""A ratio that is known this well needs no more pairs."""
CLEAR = 2.0
"""Nor does one where three pairs of four say that a model is so many times as fast as the other."""
ENOUGH_PAIRS, ENOUGH_SECONDS = 10, 0.5
"""Pairs, and seconds, that are run in any case: the first runs on an idle machine differ from all others."""


def latency(float_model: ir.Model, realized: ir.Model, feeds: Feeds, runs: int, *, max_seconds: float) -> LatencyPart:
    """Return medians of both models, their ratio (realized / float) with its quartiles, and the conditions.

    `feeds` is one sample; all cores are used. At most `runs` pairs are run. No pair begins after `max_seconds`, but at
    least five are run.
    """
    sessions = (Session(float_model, where="float model"), Session(realized, where="realized model"))
    return interleaved(sessions, feeds, runs, max_seconds, within=SETTLED)


def interleaved(
    sessions: tuple[Session, Session], feeds: Feeds, runs: int, max_seconds: float, *, within: float = 0.0
) -> LatencyPart:
    """Return the latency of two models, whose sessions are (float, realized), on one sample.

    At most `runs` pairs are run. No pair begins after `max_seconds`, but at least five are run. With `within` above 0,
    the measurement ends once the median ratio is known this precisely, or is far from 1.
    """
    given = [session.prepared(feeds) for session in sessions]
    for session, own in zip(sessions, given, strict=True):
        for _ in range(WARM_UP):
            session.run(own, stored=True)
    times: tuple[list[float], list[float]] = ([], [])
    started = time.perf_counter()
    while len(times[0]) < runs and (len(times[0]) < 5 or time.perf_counter() - started < max_seconds):
        if within and time.perf_counter() - started > ENOUGH_SECONDS and _is_settled(times, within):
            break
        for session, own, found in zip(sessions, given, times, strict=True):
            before = time.perf_counter()
            session.run(own, stored=True)
            found.append(time.perf_counter() - before)
    ratios = sorted(b / a for a, b in zip(*times, strict=True))
    return {
        "float_ms": 1e3 * median(times[0]),
        "realized_ms": 1e3 * median(times[1]),
        "ratio": median(ratios),
        "ratio_low": ratios[len(ratios) // 4],
        "ratio_high": ratios[-1 - len(ratios) // 4],
        "runs": len(times[0]),
        "threads": available_cores(),
        "processor": _processor(),
    }


@cache
def _processor() -> str:
    """Return the name of this machine's processor, or its architecture where the system has no name."""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        if names:
            return names[0]
    return platform.processor() or platform.machine()


def _is_settled(times: tuple[list[float], list[float]], within: float) -> bool:
    """Return whether the median ratio is known, by the quartiles, or so far from 1 that its decimals decide nothing."""
    count = len(times[0])
    if count < ENOUGH_PAIRS:
        return False
    low, middle, high = quantiles([b / a for a, b in zip(*times, strict=True)], n=4)
    if low > CLEAR or high < 1 / CLEAR:
        return True
    # Of a normal distribution: the quartiles are 1.349 standard deviations apart, and a median's error is 1.253 σ / √n.
    return 1.253 * (high - low) / 1.349 / math.sqrt(count) < within * middle
