"""Write a run's decisions to main.log: the search result, the recovery steps kept, the comparison of the models."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from quantpipe.pipeline.settings import RUN_LOG
from quantpipe.types import RecoveryRecord, RunReport, SearchReport, by_model

_log = logging.getLogger(RUN_LOG)


def searched(report: SearchReport) -> None:
    """Log the search's part of the report."""
    _log.info(
        "search     %s after %s evaluations (%s given up): value %.6g at cost %.6g (%s), objective %s",
        report.get("stopped"),
        report.get("evaluations"),
        report.get("pruned"),
        report["best_value"],
        report["best_cost"],
        report.get("cost"),
        "met" if report.get("feasible") else "not met",
    )

    left_out = report["device"]["left_out"] if "device" in report else {}
    if left_out:
        _log.info(
            "search     %s options of %s choices of bits are left out: the device gains nothing from them",
            left_out["options"],
            left_out["choices"],
        )


def recovered(record: RecoveryRecord) -> None:
    """Log the record of recovery."""
    for step in record.get("steps", ()):
        kept = "kept" if step.get("kept") else f"not kept ({step.get('reason') or 'no gain'})"
        _log.info(
            "recover    %s: loss %s to %s, %s", step.get("step"), step.get("kl_before"), step.get("kl_after"), kept
        )


def evaluated(report: RunReport) -> None:
    """Log the metrics and the agreement of the whole report."""
    for name, found in by_model(report["metrics"]).items():
        _log.info("evaluate   %s: %s", name, ", ".join(f"{k} {v}" for k, v in found.items()))
    agreement = report["agreement"]
    _log.log(
        logging.ERROR if agreement["differing"] else logging.INFO,
        "evaluate   %s of %s elements differ",
        agreement["differing"],
        agreement["elements"],
    )


def spent(parts: Mapping[str, float], sentence: str | None) -> None:
    """Log where the time went: the sentence of the report, and the seconds of what came after it by name."""
    after = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())
    _log.info("effort     %s", "; ".join(text for text in (sentence, after) if text))
