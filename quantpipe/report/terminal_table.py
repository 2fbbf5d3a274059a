"""The report's headline as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quantpipe.report import latency_text, text
from quantpipe.report.baseline import BASELINE, baseline_verdict
from quantpipe.report.effort_text import left_out
from quantpipe.report.imported import imported_verdict
from quantpipe.types import PrecisionRecord, RecoveryGain, RunReport

_TONES = {"good": "green", "bad": "bold red", "open": "yellow"}


def summary_table(report: RunReport) -> Table | Group:
    """Return float, simulated and realized model side by side: accuracy, agreement, size, cost, latency.

    Below follow the steps of recovery, where there were any; above stands what speaks against the samples. Missing keys
    are left out.
    """
    doubts = [Text(f"warning: {said}\n", style="bold red") for said in report.get("doubts") or ()]
    steps = [step for step in report.get("recover") or () if isinstance(step, Mapping)]
    imported = report.get("imported")
    parts: list[Text | Table] = [
        *doubts,
        _models(report),
        *([_precision(decided)] if (decided := report.get("precision")) and decided.get("roles") else []),
        *([Text(f"imported: {imported_verdict(imported)}")] if imported is not None else []),
        *([Text(f"{BASELINE}: {baseline_verdict(rival)}")] if (rival := report.get("baseline")) is not None else []),
        *([_recovery(steps, report.get("recovery"))] if steps else []),
    ]
    return Group(*parts) if len(parts) > 1 else _models(report)


def _models(report: RunReport) -> Table:
    tone, sentence = text.verdict(report.get("agreement"))
    # Text, not str: names may hold what rich would read as markup.
    table = Table(title=Text(_title(report)), caption=_caption(report, sentence, tone), caption_justify="left")
    if (proved := text.proof(report.get("proof"))) is not None and isinstance(table.caption, Text):
        table.caption.append(f"\n{proved}", style="default")
    if (tables := text.tables(report.get("tables"))) is not None and isinstance(table.caption, Text):
        table.caption.append(f"\n{tables}", style="default")
    if (forms := text.forms(report.get("forms"))) is not None and isinstance(table.caption, Text):
        lines = [forms, *(text.form_line(row) for row in report.get("forms", ()))]
        table.caption.append("\n" + "\n".join(lines), style="default")
    table.add_column("")
    for name in ("float", "simulated", "realized"):
        table.add_column(name, justify="right")
    if few := _part(report, "run").get("realized_samples"):
        whole = text.number(report["run"].get("samples"))
        _add(table, "samples", whole, whole, text.number(few))
    metrics = [_part(report.get("metrics"), name) for name in ("float", "simulated", "realized")]
    if all(column.get("top1") is None for column in metrics):
        _add(table, "top-1 accuracy", "no labels", "", "")
    else:
        _add(table, "top-1 accuracy", *(text.percent(column.get("top1")) for column in metrics))
        intervals = report.get("intervals") or {}
        _add(table, "  95 % interval", *(text.interval(intervals.get(n)) for n in ("float", "simulated", "realized")))
    if (alone := _part(report.get("metrics"), "default_session")).get("top1") is not None:
        _add(table, "  in a default session", "", "", text.percent(alone["top1"]))
    if (fitting := text.main_map(report)) is not None:  # class numbers have no divergence
        _add(table, "output compared with float", "", "", fitting)
    elif (error := text.squared_error(report)) is not None:  # KL means nothing where there are no class scores
        _add(table, "squared error / variance", "", "", text.number(error))
    else:
        _add(table, "KL divergence to float", *(text.number(column.get("kl")) for column in metrics))
    _add(table, "SQNR to float", *(text.decibel(column.get("sqnr_db")) for column in metrics))
    _add(table, "cosine similarity to float", *(text.number(column.get("cosine")) for column in metrics))
    for label, cells in text.detections(report):
        _add(table, label, *cells)
    for row in text.several_outputs(report.get("outputs")):
        _add(table, f"  output {row['output']}", "", "", text.nearness(row))
    if free := _part(report, "free_running"):
        _add(table, "KL divergence, its own states carried", "", "", text.number(free.get("kl")))
    if (steps := _part(report, "steps")) and "reason" in steps:
        _add(table, "steps with the cache", "", "", f"not compared: {steps['reason']}")
    elif steps:
        named = (("", steps), (" of one token", steps.get("one_token")))
        for kind, part in ((kind, part) for kind, part in named if part is not None):
            elements = sum(row["elements"] for row in part["outputs"])
            name = f"{part['steps']} steps{kind} with the cache, other than in one run"
            _add(table, name, "", "", f"{part['differing']:,} of {elements:,}")
    if said := _part(report, "next_tokens"):
        perplexity = said["perplexity"]
        _add(table, "perplexity", text.number(perplexity["float"]), "", text.number(perplexity["realized"]))
        _add(table, "same greedy token as float", "", "", text.percent(said["agreement"]))
        if rows := said["continuations"]:
            equal, tokens = (sum(row[key] for row in rows) / len(rows) for key in ("equal", "tokens"))
            name = f"tokens until {len(rows)} continuations differ, mean"
            _add(table, name, "", "", f"{text.number(equal)} of {text.number(tokens)}")
    table.add_section()
    model, latency = _part(report, "model"), _part(report, "latency")
    _add(table, "size", text.size(model.get("float_bytes")), "", text.size(model.get("realized_bytes")))
    _add(table, "bits, weights / activations", "32 / 32", "", _bits(model))
    _add(table, "bit operations (BOPs)", "", "", text.count(model.get("bops")))
    _add(table, "nodes, integer / float", "", "", _nodes(model))
    search = _part(report, "search")
    if search.get("evaluations"):
        _add(table, "candidates / per second", "", _candidates(search), "")
    if latency:
        pair = (text.milliseconds(latency.get(key)) for key in ("float_ms", "realized_ms"))
        here = "latency, batch 1" if latency.get("of") != "reference" else "latency of reference, this host"
        _add(table, here, next(pair), "", next(pair))
        if (quartiles := latency_text.latency_quartiles(latency)) is not None:
            _add(table, "  times float's, quartiles", "", "", quartiles)
    return table


def _caption(report: RunReport, sentence: str, tone: str) -> Text:
    """Return the verdict, below it how the file is run, and the sessions that were compared."""
    found, agreement = Text(sentence, style=_TONES[tone]), report.get("agreement")
    if (how := text.how_to_run(report)) is not None:
        found.append(f"\n{how}", style="default")
    lines = [text.sessions(agreement, decide=decide) for decide in (True, False)]
    lines.append(left_out(report.get("effort")))
    return found.append("".join(f"\n{line}" for line in lines if line), style="dim")


def _candidates(search: Mapping[str, Any]) -> str:
    return f"{text.number(search['evaluations'])} / {text.number(search.get('evaluations_per_second'), 3)}"


def _precision(decided: PrecisionRecord) -> Table:
    """Return a row per role of nodes that stay in float: how many, which share of the multiplications, and why."""
    table = Table(title="precision, decided before the search", caption_justify="left")
    table.caption = Text(text.precision(decided))
    table.add_column("decided")
    table.add_column("nodes", justify="right")
    table.add_column("of the MACs", justify="right")
    table.add_column("why")
    for row in decided.get("roles") or ():
        _add(table, str(row["role"]), text.number(row["nodes"]), text.percent(row["share"]), str(row["why"]))
    return table


def _recovery(steps: Sequence[Mapping[str, Any]], gain: RecoveryGain | None) -> Table:
    """Return a table with a row per step of recovery that was tried.

    It shows the loss before and after, the gain, whether the step was kept, seconds, and what it changed. After it come
    the steps that could not be made, with their reasons in short (the page has all of it). The total cost and gain
    follow, where recovery ran for a missed objective.
    """
    table = Table(title="recovery, judged on samples that it was not fitted to", caption_justify="left")
    said = [
        f"{text.number(step.get('step'))}: {str(step['reason']).split(' (')[0]}"
        for step in steps
        if step.get("kl_after") is None and step.get("reason")
    ]
    said += [text.recovery_gain(gain)] if gain else []
    table.caption = Text("\n".join(said)) if said else None
    table.add_column("step")
    for name in ("before", "after", "gain", "kept", "time"):
        table.add_column(name, justify="right")
    table.add_column("on")
    for step in steps:
        losses = (text.number(step.get(key)) for key in ("kl_before", "kl_after", "gain"))
        _add(
            table,
            text.number(step.get("step")),
            *losses,
            text.yes(step.get("kept")),
            text.seconds(step.get("seconds")),
            str(step.get("on") or ""),
        )
    return table


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))


def _title(report: RunReport) -> str:
    run = _part(report, "run")
    keys = ("model", "output", "hardware", "schema", "threshold", "search")
    shown = [str(run[key]) for key in keys if run.get(key) is not None]
    return " · ".join(shown) or "quantpipe"


def _bits(model: Mapping[str, Any]) -> str:
    return f"{text.number(model.get('mean_weight_bits'), 3)} / {text.number(model.get('mean_activation_bits'), 3)}"


def _nodes(model: Mapping[str, Any]) -> str:
    return f"{text.number(model.get('integer_nodes'))} / {text.number(model.get('float_nodes'))}"


def _part(mapping: Any, key: str) -> Mapping[str, Any]:
    part = mapping.get(key) if isinstance(mapping, Mapping) else None
    return part if isinstance(part, Mapping) else {}
