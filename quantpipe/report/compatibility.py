"""The answer of `command=check` as tables for the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from quantpipe.report import text

SHOWN = 20
"""Rows per table; the machine-readable form has them all."""

_VERDICTS = {
    "fits": ("green", "the model fits"),
    "falls_back": ("yellow", "the model runs, parts of it in float"),
    "cannot_run": ("bold red", "the device cannot run this model in integers"),
}


def fit_tables(fit: Mapping[str, Any]) -> Group:
    """Return the tables of a fit; `fit` is `Fit.as_dict()`."""
    parts: list[Any] = [_summary(fit)]
    parts += [_refused(fit["refused"], fit["float_on"])] if fit["refused"] else []
    parts += [_islands(fit["islands"])] if fit["islands"] else []
    overflowing = [a for a in fit["accumulators"] if a["worst"] > a["limit"]]
    parts += [_accumulators(overflowing)] if overflowing else []
    parts += [_biases(fit["tight_biases"])] if fit["tight_biases"] else []
    parts += [_waste(fit["wasted"])] if fit["wasted"] else []
    parts += [_loads(fit["loads"])] if fit.get("loads") else []
    return Group(*parts)


def _summary(fit: Mapping[str, Any]) -> Table:
    tone, sentence = _VERDICTS[fit["verdict"]]
    table = Table(
        title=Text(f"{PurePath(fit['model']).name} on {fit['hardware']} · {fit['schema']}"), show_header=False
    )
    table.caption, table.caption_justify = Text(sentence, style=tone), "left"
    rows = (
        *([("device", chip_line(fit["device"]))] if fit["device"] else []),
        ("nodes in integers", f"{fit['integer_nodes']} of {fit['nodes']}"),
        ("nodes that compute shapes or indices", text.number(fit["arithmetic_on_shapes"])),
        ("multiply-accumulates in integers", text.percent(fit["mac_share"])),
        ("conversions at the model's ends", text.number(fit["conversions_at_ends"])),
        ("conversions between nodes", text.number(fit["conversions_inside"])),
        ("rescaled operands", text.number(fit["rescales"])),
        ("accumulators that could overflow", text.number(sum(a["worst"] > a["limit"] for a in fit["accumulators"]))),
        ("work added by channel alignment", text.percent(fit["alignment"] - 1)),
        ("device cycles per sample, at the most bits", text.count(fit["cycles"])),
        *([("seconds per sample at the device's clock", text.number(fit["seconds"]))] if fit["seconds"] else []),
        *([] if fit["loads"] else [("forms that its tool chain loads", "none known")]),
    )
    for row in rows:
        table.add_row(*row)
    return table


def chip_line(chip: Mapping[str, str]) -> str:
    """Return `device` of a hardware file in one line; the name alone where no provider makes it."""
    return chip["chip"] if chip["provider"] == "none" else f"{chip['chip']} ({chip['provider']}, {chip['type']})"


def _refused(refused: Sequence[Mapping[str, Any]], where: str) -> Table:
    rows = [(r["node"], r["op"], r["reason"], text.count(r["macs"])) for r in refused]
    title = "stays in float, and nothing runs it" if where == "none" else f"stays in float, on the {where}"
    return _table(title, ("node", "op", "why", "MACs"), rows)


def _islands(islands: Sequence[Mapping[str, Any]]) -> Table:
    rows = [
        (_list(i["nodes"]), text.number(len(i["nodes"])), i["place"], text.number(i["conversions"])) for i in islands
    ]
    return _table("float islands", ("nodes", "count", "place", "conversions"), rows)


def _accumulators(sums: Sequence[Mapping[str, Any]]) -> Table:
    rows = [(a["node"], text.count(a["worst"]), text.count(a["limit"])) for a in sums]
    return _table("accumulators that could overflow", ("node", "worst case", "limit"), rows)


def _biases(sums: Sequence[Mapping[str, Any]]) -> Table:
    rows = [(a["node"], text.number(a["bias_threshold"])) for a in sums]
    return _table("biases that fit only for large input ranges", ("node", "smallest input threshold"), rows)


def _waste(wasted: Sequence[Mapping[str, Any]]) -> Table:
    rows = [(w["node"], f"{w['factor']:.3g} x") for w in sorted(wasted, key=lambda w: -w["factor"])]
    return _table("padded channels", ("node", "work"), rows)


def _loads(forms: Sequence[Mapping[str, Any]]) -> Table:
    """Return the forms that the device's tool chain loads."""
    said = {True: "yes", False: "no", None: text.DASH}
    rows = [
        (f["form"], f"realize={f['form']}" if f["written"] else text.DASH, said[f["exact"]], f["why"] or "")
        for f in forms
    ]
    return _table("what its own tool chain loads", ("form", "written by", "exact", "why"), rows)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left")
    for name in head:
        table.add_column(name, overflow="fold")
    for row in rows[:SHOWN]:
        table.add_row(*(Text(cell) for cell in row))
    if len(rows) > SHOWN:
        table.caption = f"and {len(rows) - SHOWN} more; check.format=json lists them all"
    return table


def _list(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f", … {names[-1]}" if len(names) > 3 else "")
