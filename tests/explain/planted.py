"""Runs with a planted fault, and what an override that explain gives makes of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser

import quantpipe

QUIET: dict[str, Any] = {
    "precision": "none",
    "recover": "none",
    "executor": "serial",
    "evaluate": {"latency_runs": 1, "warn_sqnr_db": None, "baseline": "none", "explain": "none"},
}


def run(samples: Any, folder: Path, hardware: str = "ort_cpu", **options: Any) -> quantpipe.Result:
    """A run of the digits model without anything that would mend a fault by itself."""
    given = {**QUIET, **options}
    model = given.pop("model", quantpipe.example_model())
    return quantpipe.quantize(model, samples, hardware, folder=folder, **given)


def options_of(texts: Sequence[str], options: dict[str, Any]) -> dict[str, Any]:
    """The options of a call from Python, with what is pasted on a command line: read by Hydra's own parser."""
    found = dict(options)
    for part in texts:
        parsed = OverridesParser.create().parse_override(part)
        group, _, key = parsed.key_or_group.partition(".")
        value = parsed.value()
        value = value.text if hasattr(value, "text") else value
        found[group] = {**found.get(group, {}), key: _plain(value)} if key else value
    return found


def loss_of(result: quantpipe.Result) -> float:
    """What the run loses on the samples of its search, by what it says itself: after recovery, where there was one."""
    steps = result.folder / "recover" / "steps.json"
    recovered = json.loads(steps.read_text(encoding="utf-8"))["metrics"] if steps.is_file() else {}
    metrics = recovered or result.report["search"]["metrics"]
    return float(metrics.get("loss", metrics["kl"]))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(getattr(k, "text", k)): _plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_plain(v) for v in value]
    return getattr(value, "text", value)
