"""The list of shipped hardware files, made from the files: what each device is, and its file as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from quantpipe.app.compose import option
from quantpipe.hardware.shorthand import spread
from quantpipe.report.compatibility import chip_line
from website.configuration import CONF


def page() -> str:
    """The whole page, as Markdown."""
    files = sorted((CONF / "hardware").glob("*.yaml"))
    content = {
        path.stem: spread(option("hardware", path.stem)) for path in files
    }  # what a file is like is laid under it
    rows = [_row(name, one) for name, one in content.items()]
    table = [
        "| option | device | description | requantizes by | scales | weights | form | schema | ops in integers |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    return "\n".join(
        [
            "# Shipped hardware files\n",
            "Made from `conf/hardware`. What each field means: [Hardware files](../hardware.md). Which op runs in "
            "integers on which device: [Op coverage](ops.md).\n",
            *table,
            "",
            *(_file(path, content[path.stem]) for path in files),
        ]
    )


def _row(name: str, content: dict[str, Any]) -> str:
    requantize = content["requantize"]
    kind = requantize if isinstance(requantize, str) else requantize["kind"]
    weights = content.get("weights", {})
    grain = ", ".join(weights.get("granularity", []))
    cells = [
        f"[`{name}`](#{name})",
        chip_line(content["device"]),
        content["description"],
        f"`{kind}`",
        f"`{content['scales']}`",
        f"{weights.get('bits', 8)} bits, {grain}",
        f"`{content.get('realize', 'derived')}`",
        f"`{content['preferred_schema']}`",
        str(sum(_in_integers(signatures) for signatures in content["ops"].values())),
    ]
    return "| " + " | ".join(cells) + " |"


def _in_integers(signatures: Any) -> bool:
    """Whether an op has a signature other than of real numbers."""
    given = signatures if isinstance(signatures, list) else [signatures]
    return any("float32" not in one["in"] for one in given)


def _file(path: Path, content: dict[str, Any]) -> str:
    text = path.read_text(encoding="utf-8").rstrip()
    return (
        f"## {path.stem} {{ #{path.stem} }}\n\n{content['description']}. Source: {content['source']}.\n\n"
        f"```yaml\n{text}\n```\n"
    )
