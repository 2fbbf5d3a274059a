"""The answers of `command=export_vectors` and `command=compare dump=…` for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

SHOWN = 12
"""Tensors of a set that are shown; check.format=json has all."""


def kit_table(kit: Mapping[str, Any]) -> Group:
    """Return a table of the exported files; `kit` is the content of kit.json."""
    table = Table(title=f"Vectors of {kit['model']} on {kit['hardware']}", title_justify="left")
    for name in ("set", "tensors", "samples", "what for"):
        table.add_column(name, justify="right" if name in ("tensors", "samples") else "left", overflow="fold")
    for row in kit["sets"]:
        table.add_row(Text(row["name"]), str(row["tensors"]), str(row["samples"]), Text(row["purpose"]))
    absent = [Text(f"without {name}: {why}", style="dim") for name, why in kit["left_out"].items()]
    return Group(table, *absent)


def dump_tables(report: Mapping[str, Any]) -> Group:
    """Return how a dump differs from the plan."""
    parts: list[RenderableType] = []
    for found in report["sets"]:
        parts += _set(found)
    return Group(*parts)


def _set(found: Mapping[str, Any]) -> list[RenderableType]:
    head = (
        f"{found['name']}: {found['differing']:,} of {found['elements']:,} elements differ, in {found['tensors']} "
        f"tensors on {found['samples']} samples"
    )
    parts: list[RenderableType] = [Text(head, style="bold")]
    if found["missing"]:
        names = ", ".join(found["missing"][:SHOWN]) + (", …" if len(found["missing"]) > SHOWN else "")
        parts.append(Text(f"  not in the dump, so not compared: {names}"))
    if found["first"] is None:
        return parts
    rows = [row for row in found["rows"] if row["differing"] or row["differing_own"]]
    table = Table()
    for name in ("tensor", "op", "differ", "by itself", "most", "steps: elements"):
        table.add_column(name, justify="right" if name in ("differ", "by itself", "most") else "left", overflow="fold")
    for row in rows[:SHOWN]:
        table.add_row(
            Text(row["tensor"]),
            Text(row["op"] or "input"),
            f"{row['differing']:,} of {row['elements']:,}",
            "?" if row["differing_own"] is None else f"{row['differing_own']:,}",
            str(row["max_lsb"]),
            Text(", ".join(f"{step}: {count}" for step, count in row["histogram"].items())),
        )
    more = f"; {len(rows) - SHOWN} more tensors with check.format=json" if len(rows) > SHOWN else ""
    table.caption = Text(
        "by itself: elements that differ from what the op gives on the device's own operands\n"
        f"steps: difference to the plan in units of the last place{more}",
        style="dim",
    )
    table.caption_justify = "left"
    first = next(row for row in rows if row["tensor"] == found["first"])
    where = "" if first["where"] is None else f", first at {first['where']}"
    parts += [Text(f"  the first tensor that differs: {found['first']}{where}"), table]
    for row in rows[:SHOWN]:
        parts += [Text(f"  {row['tensor']} would be explained by {_explanation(e)}") for e in row["explanations"]]
    return parts


def _explanation(row: Mapping[str, Any]) -> str:
    left = "all of it" if not row["left"] else f"all but {row['left']:,}"
    return f"{row['field']}: {row['value']} ({left})"


def identified_table(report: Mapping[str, Any]) -> Group:
    """Return a table of the values that the probes leave for each field."""
    table = Table(title=f"{report['hardware']}, by {len(report['probes'])} probes", title_justify="left")
    for name in ("field", "", "values that agree", "would decide"):
        table.add_column(name, overflow="fold")
    for row in report["fields"]:
        values = "\n".join(row["values"]) if row["state"] != "not tested" else f"any of {len(row['values'])}"
        table.add_row(Text(row["field"]), row["state"], Text(values), Text(", ".join(row["would_decide"])))
    wrong = [Text(f"no values explain the probe {name}", style="bold red") for name in report["unexplained"]]
    other = [Text(f"the device has {text}", style="bold") for text in report["overrides"]]
    return Group(table, *wrong, *other)


def times_table(report: Mapping[str, Any]) -> Group:
    """Return how well fitted figures predict layers that they were not fitted to, and the file that has them."""
    table = Table(title=f"{report['hardware']}, fitted to measured layers", title_justify="left")
    for name in ("quantity", "layers", "networks", "left out", "median error", "90 % within", "total"):
        table.add_column(name, justify="left" if name in ("quantity", "left out") else "right")
    for row in report["fits"]:
        errors = (f"{100 * row[key]:.1f} %" for key in ("median_error", "error_90", "total_error"))
        counts = str(row["layers"]), str(row["networks"]), row["left_out"]
        table.add_row(f"{row['quantity']} ({row['unit']})", *counts, *errors)
    ignored = report["ignored"]
    more = [Text(f"{len(ignored)} rows name no layer: {', '.join(ignored[:SHOWN])}", style="dim")] if ignored else []
    return Group(table, *more, Text(f"file    {report['file']}"))
