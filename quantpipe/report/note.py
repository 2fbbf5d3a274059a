"""A run in a few lines of Markdown: what MLflow shows as its description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from quantpipe.report import text
from quantpipe.types import RunReport, by_model

ROWS = (
    ("top1", "top-1 accuracy", text.percent),
    ("kl", "KL divergence to float", text.number),
    ("sqnr_db", "SQNR to float", text.decibel),
    *((key, name, text.percent) for key, name in text.FOUND),
)


def run_note(report: RunReport) -> str:
    """Return a run's summary: whether it holds, whether its objective is met, and the figures next to float's."""
    _, sentence = text.verdict(report.get("agreement"))
    missed = str((report.get("search") or {}).get("shortfall") or "")
    models: Mapping[str, Mapping[str, Any]] = by_model(report["metrics"])
    lines = [
        f"**{'Objective missed' if missed else 'Objective met'}.** {escaped(missed or '')}".strip(),
        "",
        sentence + ".",
    ]
    lines += [f"- {escaped(said)}" for said in report.get("doubts") or ()]
    lines += ["", "| | float | realized |", "|---|---|---|"]
    for key, name, shown in ROWS:
        own, found = models["float"].get(key), models["realized"].get(key)
        if found is not None:
            lines.append(f"| {name} | {shown(own)} | {shown(found)} |")
    model = report["model"]
    sizes = text.size(model["float_bytes"]), text.size(model["realized_bytes"])
    lines.append(f"| size | {sizes[0]} | {sizes[1]} |")
    bits = f"{text.number(model['mean_weight_bits'], 3)} / {text.number(model['mean_activation_bits'], 3)}"
    lines.append(f"| mean bits, weights / activations | 32 / 32 | {bits} |")
    return "\n".join([*lines, "", "The whole report: artifact `evaluate/report.html`."])


def escaped(said: str) -> str:
    """Return a text whose characters mean nothing to Markdown and HTML."""
    for sign in "\\`*_[]<>|":
        said = said.replace(sign, f"\\{sign}")
    return said
