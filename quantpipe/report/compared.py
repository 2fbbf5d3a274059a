"""The answer of `command=compare` for the terminal, the page, and MLflow's description of a sweep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from rich.console import Group
from rich.table import Table
from rich.text import Text

from quantpipe.metrics.paired import CHANCE
from quantpipe.report import text
from quantpipe.report.figures import course
from quantpipe.report.note import escaped
from quantpipe.types import ComparedRun, CompareReport

SHOWN_TENSORS = 2000
"""Rows of tensors on the page; compare.json has all."""
FIGURES: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "top1": ("top-1 accuracy", text.percent),
    "float_top1": ("float accuracy", text.percent),
    "kl": ("KL divergence to float", text.number),
    "sqnr_db": ("SQNR to float", text.decibel),
    "realized_bytes": ("size", text.size),
    "mean_weight_bits": ("mean bits of weights", lambda value: text.number(value, 3)),
    "mean_activation_bits": ("mean bits of activations", lambda value: text.number(value, 3)),
    "bops": ("bit operations", text.count),
    "cycles": ("cycles, by the hardware file", text.count),
    "float_nodes": ("nodes in float", text.number),
    "latency_ms": ("latency, batch 1", text.milliseconds),
    "latency_ratio": ("latency, of float's", lambda value: text.number(value, 3)),
    "latency_ratio_low": ("  lower quartile of the pairs", lambda value: text.number(value, 3)),
    "latency_ratio_high": ("  upper quartile of the pairs", lambda value: text.number(value, 3)),
    "differing": ("elements that differ", text.number),
    "evaluations": ("candidates tried", text.number),
    "search_seconds": ("search", text.seconds),
}
"""Figure of a run -> what it is, and how it is shown."""


def compared(report: Mapping[str, Any]) -> Group:
    """Return the tables for the terminal; `report` is a `CompareReport`."""
    labelled = any(run["figures"].get("top1") is not None for run in report["runs"])
    shown = ("top1" if labelled else "kl", "realized_bytes", "mean_weight_bits", "latency_ms")
    table = Table(title="Comparison", title_justify="left")
    table.add_column("", no_wrap=True)
    table.add_column("what differs", overflow="fold")
    for key in shown:
        table.add_column(HEADS[key], justify="right", no_wrap=True)
    table.add_column("vs best", justify="right", no_wrap=True)
    table.add_column("p", justify="right", no_wrap=True)
    paired = deciding(report)
    for run in report["runs"]:
        best = run["label"] == report["best"]
        cells = [FIGURES[key][1](run["figures"].get(key)) for key in shown]
        row = paired.get(run["label"])
        verdict = "no result" if run["problem"] else _crown(report) if best else _short(row) if row else text.DASH
        label = run["label"] + (MISSES if run["meets"] is False else "")
        p = _p(row["p_holm"]) if row else ""
        table.add_row(label, Text(run["name"]), *cells, verdict, p, style="bold" if best else None)
    return Group(table, *(Text(line, style="dim") for line in _below(report)))


def deciding(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the compared pairs by label, by what decides between the runs: where the loss does, by the loss alone."""
    rows: list[Mapping[str, Any]] = report["paired"]
    if "loss" in (report["by"] or ""):
        of_loss = {"test": "Wilcoxon", "only_best": None, "only_this": None}
        rows = [{**row, **of_loss, "difference": row["loss_difference"], "p_holm": row["loss_p"]} for row in rows]
    return {row["label"]: row for row in rows}


def _crown(report: Mapping[str, Any]) -> str:
    return "tie" if report["tied"] else "best"


HEADS = {
    "top1": "accuracy",
    "kl": "KL",
    "realized_bytes": "size",
    "mean_weight_bits": "bits",
    "latency_ms": "latency",
}
"""Figures of the short tables, in a word."""
MISSES = "*"
"""Behind the label of a run that misses its objective."""


def _short(row: Mapping[str, Any]) -> str:
    return f"{row['difference']:+.3g}" if row["only_best"] is None else f"{100 * row['difference']:+.2f}"


def _difference(row: Mapping[str, Any]) -> str:
    if row["only_best"] is None:
        return f"loss {row['difference']:+.3g}"
    return f"{100 * row['difference']:+.2f} points"


def beside(row: Mapping[str, Any] | None) -> str:
    """Return the comparison of a run with the best one, in words."""
    if row is None:
        return text.DASH
    return f"{_difference(row)}, {'p ' + _p(row['p_holm'])}{'' if row['p_holm'] < CHANCE else ' (may be chance)'}"


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _below(report: Mapping[str, Any]) -> list[str]:
    lines = [report["verdict"]] if report["verdict"] else []
    lines += [f"{run['label']}  {run['where']}" for run in report["runs"]]
    lines += [f"{run['label']}: {run['problem']}" for run in report["runs"] if run["problem"]]
    if any(run["meets"] is False for run in report["runs"]):
        lines.append(f"{MISSES} misses its objective")
    if paired := list(deciding(report).values()):
        unit = "mean loss" if paired[0]["only_best"] is None else "points of accuracy"
        lines.append(f"vs best: {unit}")
        samples = f"on the same {paired[0]['samples']} samples, adjusted (Holm)"
        lines.append(f"p: {tests_of(report)} {samples}; {CHANCE:g} and more may be chance")
    differing, same = len(report["strategy"]), report["same_tensors"]
    if differing:
        lines.append(f"{differing} of {differing + same} choices (bits, structure) differ; the page has them")
    return [*lines, *report["notes"]]


def tests_of(report: Mapping[str, Any]) -> str:
    """Return the names of the tests that gave the p values."""
    names = {"McNemar": "McNemar's exact test", "Wilcoxon": "Wilcoxon's signed-rank test"}
    return " and ".join(dict.fromkeys(names[row["test"]] for row in deciding(report).values()))


def compare_page(report: CompareReport) -> str:
    """Return the comparison as one page without scripts or outside files."""
    runs: list[ComparedRun] = report["runs"]
    rows = [
        (
            name,
            [shown(run["figures"].get(key)) for run in runs],
            [run["interval"] for run in runs] if key == "top1" else [],
        )
        for key, (name, shown) in FIGURES.items()
        if any(run["figures"].get(key) is not None for run in runs)
    ]
    paired = deciding(report)
    shown = (
        "top1" if any(run["interval"] for run in runs) else "kl",
        "realized_bytes",
        "mean_weight_bits",
        "latency_ms",
    )
    return _template().render(
        report=report,
        main=[(HEADS[key], {run["label"]: FIGURES[key][1](run["figures"].get(key)) for run in runs}) for key in shown],
        pointed=not paired or next(iter(paired.values()))["only_best"] is not None,
        rows=rows,
        crown=_crown(report),
        paired=paired,
        tests=tests_of(report),
        searches=_searches(runs),
        tensors=report["strategy"][:SHOWN_TENSORS],
        more=max(0, len(report["strategy"]) - SHOWN_TENSORS),
    )


def _searches(runs: Sequence[ComparedRun]) -> list[tuple[str, str]]:
    """Return (name, figure) of the searches of runs: one per metric, and one of costs where a search changed them."""
    metrics = dict.fromkeys(run["metric"] for run in runs if run["metric"])
    drawn = {m: course.curves({r["label"]: r["trace"] for r in runs if r["metric"] == m}, m) for m in metrics}
    costs = {run["label"]: run["trace_cost"] for run in runs}
    if any(len({cost for _, cost in trace}) > 1 for trace in costs.values()):
        drawn["cost"] = course.curves(costs, "cost")
    return [(name, figure) for name, figure in drawn.items() if figure is not None]


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"interval": text.interval, "difference": _short, "p": _p, "number": text.number}
    return environment.get_template("compare.html.j2")


def compare_note(report: CompareReport) -> str:
    """Return the comparison in a few lines of Markdown: what MLflow shows as the description of a sweep."""
    labelled = any(run["figures"].get("top1") is not None for run in report["runs"])
    key, head = ("top1", "accuracy") if labelled else ("kl", "KL")
    lines = [f"| | what differs | {head} | size | bits of weights | vs best |", "|---|---|---|---|---|---|"]
    paired = deciding(report)
    for run in report["runs"]:
        best = run["label"] == report["best"]
        cells = [FIGURES[name][1](run["figures"].get(name)) for name in (key, "realized_bytes", "mean_weight_bits")]
        said = run["problem"] or (f"**{_crown(report)}**" if best else beside(paired.get(run["label"])))
        said = escaped(said) if run["problem"] else said
        lines.append("| " + " | ".join([run["label"], escaped(run["name"]), *cells, said]) + " |")
    notes = [*([report["verdict"]] if report["verdict"] else []), *report["notes"]]
    return "\n".join([*lines, "", *map(escaped, notes), "", "The whole comparison: artifact `compare.html`."])
