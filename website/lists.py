"""Lists as mkdocs reads them.

Documents are written for repositories: what belongs to an item of a list is indented as far as the item's text, by two
or three spaces. mkdocs' Markdown wants four, and takes a code block of an item for a paragraph otherwise; and it wants
an empty line before a list, and behind an item of several paragraphs.
"""

from __future__ import annotations

import re

_ITEM = re.compile(r"(?:\d+\.|[-*]) +(?=\S)")


def indented_by_four(text: str) -> str:
    """The text with everything that belongs to an item indented by four spaces, at any depth."""
    return "\n".join(_lines(text.split("\n"), within=False))


def _lines(lines: list[str], *, within: bool) -> list[str]:
    out: list[str] = []
    place, listed, long = 0, False, False
    while place < len(lines):
        line = lines[place]
        item = _ITEM.match(line)
        if line.startswith("```"):
            end = next((n for n in range(place + 1, len(lines)) if lines[n].startswith("```")), len(lines) - 1)
            out += lines[place : end + 1]
            place, listed = end + 1, False
        elif item is not None:
            if out and out[-1].strip() and (long or not (listed or within)):
                out.append("")
            end = _end(lines, place, len(item[0]))
            body = _lines([row[len(item[0]) :] for row in lines[place:end]], within=True)
            out.append(item[0].rstrip() + " " + body[0])
            out += ["    " + row if row.strip() else "" for row in body[1:]]
            place, listed, long = end, True, any(not row.strip() for row in body)
        else:
            out.append(line)
            place, listed = place + 1, listed and not line.strip()
    return out


def _end(lines: list[str], place: int, indent: int) -> int:
    """Where the item that begins at `place` ends: at the first line that is neither empty nor indented as its text."""
    end = place + 1
    for number in range(place + 1, len(lines)):
        if lines[number].startswith(" " * indent) and lines[number].strip():
            end = number + 1
        elif lines[number].strip():
            break
    return end
