"""The report as one self-contained HTML page: no script, nothing from the network, readable in ten years.

The verdict comes first, then figures, then the numbers that support them.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from quantpipe.report import latency_text, text
from quantpipe.report.baseline import BASELINE, baseline_verdict
from quantpipe.report.diagnosed import gained, mostly, name_of
from quantpipe.report.effort_text import effort_rows, effort_sentence, left_out
from quantpipe.report.figures import drawn
from quantpipe.report.imported import imported_verdict
from quantpipe.types import RunReport, by_model
from quantpipe.types.figures import Figures

_SHOWN_ROWS = 40
_MOST_ROWS = 2000
"""Rows of a table; a browser is slow with many more, and report.json has all."""
_MODELS = ("float", "simulated", "realized")


def render_html(report: RunReport, figures: Figures | None = None) -> str:
    """Return the page of a report.json dict.

    Keys may be missing and values None: the page then shows a dash. `figures`: the data drawn in addition
    (evaluate/figures.json), where that is known.
    """
    tone, sentence = text.verdict(report.get("agreement"))
    metrics: Mapping[str, Any] = by_model(report["metrics"]) if report.get("metrics") else {}
    search = report.get("search") or {}
    return _template().render(
        r=report,
        run={key: value for key, value in (report.get("run") or {}).items() if value is not None},
        metrics={name: metrics.get(name) or {} for name in _MODELS},
        labelled=any((metrics.get(name) or {}).get("top1") is not None for name in _MODELS),
        doubts=[str(said) for said in report.get("doubts") or ()],
        intervals=report.get("intervals") or {},
        squared_error=text.squared_error(report),
        fitting=text.main_map(report),
        found=text.detections(report),
        outputs=[(row["output"], text.nearness(row)) for row in text.several_outputs(report.get("outputs"))],
        tone=tone,
        sentence=sentence,
        sessions=text.sessions(report.get("agreement"), decide=True),
        other_sessions=text.sessions(report.get("agreement"), decide=False),
        ratio=latency_text.latency_ratio(report.get("latency")),
        latency=latency_text.latency_conditions(report),
        how_to_run=text.how_to_run(report),
        drawn=drawn(report, figures),
        spent=effort_sentence(report.get("effort")),
        efforts=effort_rows(report.get("effort")),
        unmeasured=left_out(report.get("effort")),
        missed=search.get("shortfall") if isinstance(search.get("shortfall"), str) else None,
        judged="shortfall" in search,
        changed=list(figures["changed"]) if figures is not None else [],
        confused=figures["confusion"] if figures is not None else None,
        shares=figures.get("shares", {}) if figures is not None else {},
        hidden=text.groups(report.get("groups")),
        worst=list(figures.get("worst", ())) if figures is not None else [],
        layers=sorted(_rows(report.get("layers")), key=_by_sqnr),
        layer_samples=report.get("layer_samples"),
        precision=precision if (precision := report.get("precision") or {}).get("trials") else None,
        decided=text.precision(precision) if precision.get("trials") else None,
        recover=_rows(report.get("recover")),
        gained=text.recovery_gain(gain) if (gain := report.get("recovery")) else None,
        choices=_rows(report.get("choices")),
        float_nodes=_folded(_rows(report.get("float_nodes"))),
        in_float=len(report.get("float_nodes") or ()),
        baseline=f"{BASELINE}, {baseline_verdict(rival)}" if (rival := report.get("baseline")) else None,
        imported=imported_verdict(given) if (given := report.get("imported")) else None,
        replaced=_rows(given.get("changed") if given else None),
        proved=text.proof(report.get("proof")),
        on_samples=_folded(_rows(report["proof"].get("on_samples") if report.get("proof") else None)),
        without_kernel=_rows(report.get("without_kernel")),
        rescales=_rows(report.get("rescales")),
        raised=_rows(report.get("raised")),
        tables=_rows(report.get("tables")),
        rectified=_rows(report.get("rectified")),
        rules=_rows(search.get("threshold_rules")),
        contributions=_rows(search.get("contributions")),
        warnings=[str(w) for w in _warnings(report)],
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
        "capital": text.capital,
        "columns": _columns,
        "culprit": name_of,
        "mostly": mostly,
        "gained": gained,
        "pasted": shlex.join,
    }
    environment.globals |= {"times": text.times, "shown": _SHOWN_ROWS, "most": _MOST_ROWS}
    return environment.get_template("report.html.j2")


def _warnings(report: Mapping[str, Any]) -> list[Any]:
    """Return the warnings that are not already in the sections above."""
    found = (*(report.get("warnings") or ()), report.get("host"))
    said = (*(report.get("doubts") or ()), (report.get("search") or {}).get("shortfall"))
    return [w for w in found if w is not None and w not in said]


def _rows(items: Any) -> list[dict[str, Any]]:
    """Return a list of mappings; what is no mapping becomes the one column `what`."""
    return [dict(item) if isinstance(item, Mapping) else {"what": item} for item in items or ()]


def _folded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows with merged nodes: rows whose other columns are equal become one, which names all nodes."""
    found: dict[str, tuple[list[str], dict[str, Any]]] = {}
    for row in rows:
        rest = {key: value for key, value in row.items() if key != "node"}
        found.setdefault(repr(rest), ([], rest))[0].append(_cell(row.get("node")))
    return [{"nodes": len(names), **rest, "which": ", ".join(names)} for names, rest in found.values()]


def _by_sqnr(layer: Mapping[str, Any]) -> tuple[bool, float]:
    """Return the sort key: worst first; rows without a value last."""
    value = layer.get("sqnr_db")
    return (False, float(value)) if isinstance(value, int | float) else (True, 0.0)


def _columns(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys of all rows, in order of first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def _cell(value: Any) -> str:
    """Return a value of unknown kind: numbers shortened, lists joined."""
    if isinstance(value, list | tuple):
        return ", ".join(_cell(item) for item in value[:8]) + (f", … ({len(value)})" if len(value) > 8 else "")
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_cell(item)}" for key, item in value.items())
    return text.number(value)
