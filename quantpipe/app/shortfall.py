"""Whether a finished run is one that asks for an explanation."""

from __future__ import annotations

from quantpipe.evaluate.nearness import below, is_accurate
from quantpipe.pipeline.settings import Settings
from quantpipe.types import RunReport


def falls_short(report: RunReport, settings: Settings) -> bool:
    """Return whether a run misses its objective, or an output is farther from the float model's than it may be."""
    metrics = report["metrics"]
    right = is_accurate(metrics["float"]["top1"], metrics["realized"]["top1"])
    lost = below(report["outputs"], settings.evaluate.warn_sqnr_db, _main_output(report) if right else None)
    return bool(report["search"].get("shortfall") or lost)


def _main_output(report: RunReport) -> str:
    """Return the output that metrics are about; it is named where there are several."""
    return report["run"].get("output") or report["outputs"][0]["output"]
