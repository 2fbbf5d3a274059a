"""The answer of `command=lint` as a table for the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

SHOWN = 40
_TONES = {"refused": "bold red", "note": "yellow"}


def lint_table(found: Mapping[str, Any]) -> Group:
    """Return the table of findings; `found` is `Findings.as_dict()`."""
    head = Text(
        f"{PurePath(found['model']).name} on {found['hardware']}: {found['quantized_ops']} integer ops, "
        f"{found['real_ops']} in float"
    )
    findings = found["findings"]
    refused = sum(f["severity"] == "refused" for f in findings)
    if not found["quantized_ops"]:
        verdict = Text("there is no integer op in it: nothing to lint", style="bold red")
    elif refused:
        verdict = Text(f"{refused} findings that the device would reject", style="bold red")
    else:
        verdict = Text("nothing that the device would reject", style="green")
    if not findings:
        return Group(head, verdict)
    table = Table()
    for name in ("", "rule", "where", "what"):
        table.add_column(name, overflow="fold")
    for finding in findings[:SHOWN]:
        tone = _TONES[str(finding["severity"])]
        table.add_row(
            Text(str(finding["severity"]), style=tone),
            Text(finding["rule"]),
            Text(finding["where"]),
            Text(finding["message"]),
        )
    if len(findings) > SHOWN:
        table.caption = f"and {len(findings) - SHOWN} more; check.format=json lists them all"
    return Group(head, table, verdict)
