"""What of a run goes to MLflow: every candidate, the report's numbers, the chosen bits, the files, the model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from numpy.typing import NDArray

from quantpipe.pipeline.settings import Settings
from quantpipe.tracking import Tracker
from quantpipe.types import (
    RunReport,
    Trial,
    by_model,
)

MOST_CHOICES = 80
"""More parameters than this make MLflow's comparison unreadable; all choices are in the strategy artifact."""
PARTS = ("agreement", "proof", "free_running", "model", "latency", "cost", "precision", "search", "calibrate")
NEARNESS = ("sqnr_db", "mse", "cosine", "equal")
"""What is filed of each output."""


def start_tracking(settings: Settings) -> None:
    """Open the run's record, with its name and what is worth comparing between runs."""
    settings.tracker.start(_run_name(settings), _parameters(settings), {"folder": str(settings.folder)})


def file_trials(tracker: Tracker, trials: Sequence[Trial]) -> None:
    """File candidates as metric steps."""
    tracker.log_trials((t.number, {"candidate.value": t.score.value, "candidate.cost": t.score.cost}) for t in trials)


def file_report(
    tracker: Tracker, report: RunReport, folder: Path, model: Path, *, example: Mapping[str, NDArray[Any]]
) -> None:
    """File numbers as metrics, choices as parameters, the run folder as artifacts, the model with its signature.

    Args:
        tracker: where the run is filed.
        report: the whole report.
        folder: the run folder.
        model: the realized model's file.
        example: one sample of the model's inputs.
    """
    parts = cast("Mapping[str, Mapping[str, Any] | None]", report)
    models = cast("Mapping[str, Mapping[str, float | None]]", by_model(report["metrics"]))
    numbers = {f"{part}.{name}": value for part, found in models.items() for name, value in found.items()}
    for part in PARTS:
        for name, value in (parts.get(part) or {}).items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                numbers[f"{part}.{name}"] = float(value)
    if few := report.get("run", {}).get("realized_samples"):
        numbers["realized.samples"] = float(few)  # its metrics are not of all samples
    for name, (low, high) in (report.get("intervals") or {}).items():
        numbers |= {f"{name}.top1_low": low, f"{name}.top1_high": high}
    rows = cast("Sequence[Mapping[str, Any]]", report.get("outputs") or ())
    for row in rows:
        numbers |= {f"outputs.{row['output']}.{k}": v for k, v in row.items() if k in NEARNESS and v is not None}
    tracker.log_metrics(numbers)
    tracker.log_params({f"{_kind(c['kind'])}.{c['key']}": c["value"] for c in report.get("choices", [])[:MOST_CHOICES]})
    tracker.log_artifacts(folder)
    tracker.log_model(model, example)


def _kind(kind: str) -> str:
    return "bits" if kind in ("activation", "weight") else kind


def _run_name(settings: Settings) -> str:
    return f"{settings.model.stem} {settings.spec.name} {settings.choices.get('search', '')}".strip()


def _parameters(settings: Settings) -> dict[str, object]:
    """What is worth comparing between runs: the group choices and the key numbers."""
    return {
        **{k: v for k, v in settings.choices.items() if k != "tracking"},
        "model": settings.model.name,
        "schema": settings.schema.name,
        "realize": settings.backend,
        "command": settings.command,
        "seed": settings.seed,
        "max_evaluations": settings.search.max_evaluations,
        "objective.form": settings.objective["form"],
        "objective.cost": settings.objective["cost"],
        "objective.tolerance": settings.objective["tolerance"],
        "min_bits": settings.annotate.min_bits,
        "memory_mb": settings.calibrate.memory_mb,
        **({"search": "replay", "objective": "replay", "threshold": "replay"} if settings.command == "replay" else {}),
    }
