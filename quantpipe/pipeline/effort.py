"""The part `effort` of a report: where the time and the memory of a run went, also in float passes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from quantpipe.calibrate.measure import float_pass_seconds, peak_rss_mb
from quantpipe.errors import ConfigError
from quantpipe.evaluate.bounded_agreement import SESSIONS
from quantpipe.graph.view import Graph
from quantpipe.pipeline.effort_options import EffortOptions
from quantpipe.pipeline.memory_estimate import MemoryEstimate
from quantpipe.pipeline.settings import Console
from quantpipe.pipeline.timeline import Spent, Timed
from quantpipe.types import Profile, RecoveryRecord, Samples
from quantpipe.types.report_parts import EffortPart, EffortRow

EXPLAIN, BASELINES = "explain", "baselines"
"""Optional parts with a limit of their own, besides the evaluation's comparison of sessions."""

TIMED = 1.0
"""Seconds for which the float model runs where a pass is estimated before the run."""

FEWEST = 128
"""Evaluation samples that are evaluated at least."""

BEFORE = ("model", "annotate", "calibrate")
"""Stages up to the end of calibration."""


@dataclass(eq=False)
class EffortBudget:
    """Hold what a run may take after calibration, and what was left out for that.

    `samples` of the evaluation, of all of which one float pass is the unit. `per_sample` gives the seconds of the float
    model for one of them, None before it has run. Until then, `estimate` replaces it. `memory` is the estimate of it.
    """

    options: EffortOptions
    console: Console
    samples: int
    per_sample: Callable[[], float | None] = lambda: None
    estimate: float | None = None
    memory: MemoryEstimate | None = None
    left_out: list[str] = field(default_factory=list)

    @property
    def once(self) -> float | None:
        """Return the seconds of one float pass, if they are known."""
        each = self.per_sample() or self.estimate
        return each * self.samples if each else None

    @property
    def evaluated(self) -> int:
        """Return how many of the evaluation samples are evaluated."""
        return min(self.samples, max(FEWEST, round(self.options.evaluated * self.samples)))

    def seconds(self, part: str) -> float:
        """Return the seconds that an optional part may take; no limit without a unit.

        It is the part's own limit, at most the rest of the run's, and at least `least_seconds`. `max_seconds` always
        holds.
        """
        options, once = self.options, self.once
        passes = {
            EXPLAIN: options.explain_passes,
            SESSIONS: options.session_passes,
            BASELINES: options.baseline_passes,
        }[part]
        if not isinstance(self.console, Timed):
            return math.inf
        after = _after(self.console)
        found = math.inf
        if once is not None:
            found = max(min(passes * once, options.passes * once - after), options.least_seconds)
        return found if options.max_seconds is None else max(min(found, options.max_seconds - after), 0.0)

    def leave_out(self, sentence: str) -> None:
        """Note what is not measured, for the report."""
        self.left_out.append(sentence)


def refuse_too_few_seconds(options: EffortOptions, graph: Graph, samples: Samples) -> None:
    """Raise ConfigError if one float pass over the samples alone exceeds `max_seconds`; it is timed on a part of them.

    Nothing is timed without that option.
    """
    if options.max_seconds is None:
        return
    once = float_pass_seconds(graph, samples, graph.batch_size, at_most=TIMED)
    if once > options.max_seconds:
        raise ConfigError(
            f"is {options.max_seconds:g}, and one pass of the float model over the {len(samples)} evaluation samples "
            f"takes about {once:.3g} seconds on this machine. Legal is more than that; effort=default allows "
            f"{EffortOptions.passes:g} passes. Fewer samples (dataset.samples.evaluate) make a pass shorter",
            where="effort.max_seconds",
        )


def estimated(profile: Profile | None, search: Mapping[str, Any], searched: int) -> float | None:
    """Return the seconds of the float model for one sample, as calibration or the search have timed it."""
    if profile is not None and profile.float_pass_seconds and profile.samples:
        return profile.float_pass_seconds / profile.samples
    seconds = search.get("float_pass_seconds")
    return seconds / searched if seconds and searched else None


def _after(timed: Timed) -> float:
    """Return the seconds of everything after calibration until now."""
    return sum(spent.seconds for stage, part, spent in timed.account() if part is None and stage not in BEFORE)


def effort_part(timed: Timed, budget: EffortBudget, recovery: RecoveryRecord) -> EffortPart:
    """Return the account of a run up to now.

    The steps of a `recovery` that this run made are parts of its stage.
    """
    once = budget.once
    rows: list[EffortRow] = []
    for stage, part, spent in timed.account():
        rows.append(_row(stage, part, spent, once))
        if (stage, part) == ("recover", None):
            rows += _steps(recovery, once)
    stages = [row for row in rows if row["part"] is None]
    after = _after(timed)
    return {
        "samples": budget.samples,
        "float_pass_seconds": once,
        "seconds": sum(row["seconds"] for row in stages),
        "processor_seconds": sum(row["processor_seconds"] or 0.0 for row in stages),
        "peak_mb": peak_rss_mb(),
        "estimated_peak_mb": None if budget.memory is None else budget.memory.peak_mb,
        "passes": _passes(after, once),
        "limit": budget.options.passes,
        "left_out": [*budget.left_out, *_limited(recovery)],
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


def _limited(recovery: RecoveryRecord) -> list[str]:
    """Return the steps of recovery that were left out, in sentences."""
    return [f"recovery step {row['step']}: {row['reason']}" for row in recovery.get("steps", ()) if row.get("limited")]


def _passes(seconds: float, once: float | None) -> float | None:
    return seconds / once if once else None
