"""The report as one self-contained HTML page: no script, nothing from the network, readable in ten years."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from quantpipe.report import text
from quantpipe.report.plot import best_so_far, pareto_front
from quantpipe.types import (
    RunReport,
    by_model,
)

_SHOWN_ROWS = 40
_MODELS = ("float", "simulated", "realized")


def render_html(report: RunReport) -> str:
    """Return the page of a report.json dict.

    Keys may be missing and values None: the page then shows a dash.
    """
    tone, sentence = text.verdict(report.get("agreement"))
    metrics: Mapping[str, Any] = by_model(report["metrics"]) if report.get("metrics") else {}
    search = report.get("search") or {}
    by_cost = search.get("form") == "least_cost_within_tolerance" and search.get("trace_cost") is not None
    return _template().render(
        r=report,
        run={key: value for key, value in (report.get("run") or {}).items() if value is not None},
        metrics={name: metrics.get(name) or {} for name in _MODELS},
        labelled=any((metrics.get(name) or {}).get("top1") is not None for name in _MODELS),
        doubts=[str(said) for said in report.get("doubts") or ()],
        intervals=report.get("intervals") or {},
        squared_error=text.squared_error(report),
        outputs=[(row["output"], text.nearness(row)) for row in text.several_outputs(report.get("outputs"))],
        tone=tone,
        sentence=sentence,
        sessions=text.sessions(report.get("agreement")),
        plot=best_so_far(search.get("trace_cost" if by_cost else "trace")),
        plotted="Cost of the best candidate so far" if by_cost else "Best value found so far",
        front=pareto_front(search.get("front"), search.get("picked")),
        layers=sorted(_rows(report.get("layers")), key=_by_sqnr),
        precision=precision if (precision := report.get("precision") or {}).get("trials") else None,
        decided=text.precision(precision) if precision.get("trials") else None,
        recover=_rows(report.get("recover")),
        gained=text.recovery_gain(gain) if (gain := report.get("recovery")) else None,
        choices=_rows(report.get("choices")),
        float_nodes=_rows(report.get("float_nodes")),
        proved=text.proof(report.get("proof")),
        on_samples=_rows(report["proof"].get("on_samples") if report.get("proof") else None),
        without_kernel=_rows(report.get("without_kernel")),
        rescales=_rows(report.get("rescales")),
        raised=_rows(report.get("raised")),
        rectified=_rows(report.get("rectified")),
        rules=_rows(search.get("threshold_rules")),
        warnings=[str(w) for w in _warnings(report)],
        shown=_SHOWN_ROWS,
    )


@cache
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.ChainableUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "number": text.number,
        "power": text.power,
        "count": text.count,
        "percent": text.percent,
        "interval": text.interval,
        "decibel": text.decibel,
        "size": text.size,
        "seconds": text.seconds,
        "milliseconds": text.milliseconds,
        "yes": text.yes,
        "cell": _cell,
        "columns": _columns,
    }
    environment.globals["times"] = text.times
    return environment.get_template("report.html.j2")


def _warnings(report: Mapping[str, Any]) -> list[Any]:
    """What is not said above the rest."""
    found = (*(report.get("warnings") or ()), report.get("host"))
    return [w for w in found if w is not None and w not in (report.get("doubts") or ())]


def _rows(items: Any) -> list[dict[str, Any]]:
    """A list of mappings; what is no mapping becomes the one column `what`."""
    return [dict(item) if isinstance(item, Mapping) else {"what": item} for item in items or ()]


def _by_sqnr(layer: Mapping[str, Any]) -> tuple[bool, float]:
    """Worst first; what has no value last."""
    value = layer.get("sqnr_db")
    return (False, float(value)) if isinstance(value, int | float) else (True, 0.0)


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """The keys of all rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _cell(value: Any) -> str:
    """A value of unknown kind: numbers shortened, lists joined."""
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value[:8]) + (f", … ({len(value)})" if len(value) > 8 else "")
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_cell(item)}" for key, item in value.items())
    return text.number(value)
