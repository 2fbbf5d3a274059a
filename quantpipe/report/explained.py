"""The answer of `command=explain` for the terminal: the largest losses and their remedies."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quantpipe.report import text
from quantpipe.report.diagnosed import WORTH, best_of_places, gained, mostly

SHOWN = 10
"""Rows of the table, and places that are mended; explain.json has all."""


def explained(report: Mapping[str, Any]) -> Group:
    """Return the text of an answer; `report` is what explain.json holds."""
    doubts = [Text(f"warning: {said}\n", style="bold red") for said in report["doubts"]]
    return Group(*doubts, _head(report), _causes(report), *_advice(report))


def _head(report: Mapping[str, Any]) -> Text:
    accuracy = report["accuracy"]
    right = ""
    if accuracy["run"] is not None:
        right = f", accuracy {text.percent(accuracy['run'])} of {text.percent(accuracy['float'])} in float"
    name, loss, before = PurePath(report["model"]).name, text.number(report["loss"]), report["loss_before_recovery"]
    if (file := report.get("file")) is not None:
        alone = text.number(report["loss_by_scales"])
        return Text(
            f"{PurePath(file).name} ({report['hardware']}) compared with {name}: loss {loss}{right}\n"
            f"Its scales and integers in the float model: loss {alone}; all below is about these.\n"
        )
    said = f"{name} on {report['hardware']}: loss {loss}{right}\n"
    said += "It meets its objective.\n" if report["shortfall"] is None else f"{report['shortfall']}\n"
    if before is not None:
        said += f"Recovery brought the loss from {text.number(before)} to {loss}; all below is without recovery.\n"
    return Text(said)


def _causes(report: Mapping[str, Any]) -> Table:
    rows = report["causes"]
    table = Table(title="What costs most", title_justify="left")
    table.add_column("", overflow="fold")
    for name in ("bits", "alone", "SQNR", "so far", "mostly"):
        table.add_column(name, justify="left" if name == "mostly" else "right")
    for row in rows[:SHOWN]:
        # Text, not str: names may hold what rich would read as markup.
        name = row["tensor"] if row["kind"] == "tensor" else f"{row['tensor']} ({row['kind']})"
        figures = (str(row["bits"]), text.number(row["alone"], 3), _worst(row["outputs"]))
        table.add_row(Text(name), *figures, text.decibel(row["accumulated"]), mostly(row) or text.DASH)
    more = f"; {len(rows) - SHOWN} more in explain.json" if len(rows) > SHOWN else ""
    table.caption = Text(
        "alone: loss if only this tensor is quantized; SQNR: output SQNR then;\n"
        f"so far: SQNR of the tensor itself in this run{more}",
        style="dim",
    )
    table.caption_justify = "left"
    return table


def _worst(outputs: Sequence[Mapping[str, Any]]) -> str:
    known = [row["sqnr_db"] for row in outputs if row["sqnr_db"] is not None]
    return text.decibel(min(known)) if known else text.DASH


def _advice(report: Mapping[str, Any]) -> list[Text]:
    best = best_of_places([row for row in report["advice"] if row["advised"]])
    if not best:
        return [Text(f"\nNone of the {len(report['advice'])} measured changes gains anything significant.")]
    first = best[0]
    head = "What would fix it" if first["gain"] >= WORTH else "What it could do without"
    said = [Text(f"\n{head} (from a loss of {text.number(first['loss_before'])}):")]
    for number, row in enumerate(best[:SHOWN], 1):
        said.append(Text(f"\n{number:2}. {row['role']}: {row['change']}", style="bold"))
        said += [Text(f"    {row['reason']}")] if row.get("reason") else []
        said.append(Text(f"    {gained(row)}"))
        said += [Text(f"    {shlex.join(row['overrides'])}", style="green")] if row["overrides"] else []
    return said
