"""What of a run goes to MLflow: every candidate, the report's numbers, the chosen bits, the files, the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from quantpipe.tracking import Tracker
from quantpipe.types import Trial

MOST_CHOICES = 80
"""More parameters than this make MLflow's comparison unreadable; all choices are in the strategy artifact."""
PARTS = ("agreement", "proof", "free_running", "model", "latency", "cost", "search", "calibrate")


def file_trials(tracker: Tracker, trials: Sequence[Trial]) -> None:
    """Candidates as metric steps."""
    tracker.log_trials((t.number, {"candidate.value": t.score.value, "candidate.cost": t.score.cost}) for t in trials)


def file_report(
    tracker: Tracker, report: Mapping[str, Any], folder: Path, model: Path, example: Mapping[str, NDArray[Any]]
) -> None:
    """Numbers as metrics, choices as parameters, the run folder as artifacts, the model with its signature."""
    numbers = {f"{part}.{name}": value for part, found in report["metrics"].items() for name, value in found.items()}
    for part in PARTS:
        for name, value in (report.get(part) or {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers[f"{part}.{name}"] = float(value)
    tracker.log_metrics(numbers)
    tracker.log_params({f"{_kind(c['kind'])}.{c['key']}": c["value"] for c in report.get("choices", [])[:MOST_CHOICES]})
    tracker.log_artifacts(folder)
    tracker.log_model(model, example)


def _kind(kind: str) -> str:
    return "bits" if kind in ("activation", "weight") else kind
