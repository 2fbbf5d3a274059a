"""Tables of keys in docs/artifacts.md, made from the types of the files; the page keeps the meanings.

    python -m website.artifact_tables        # removes keys that a type lost, and adds rows for its new ones

A table is between `<!-- keys: TYPE -->` and `<!-- end -->`. A test fails where keys differ or have no meaning.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterator
from functools import cache
from typing import Any, get_args, get_type_hints, is_typeddict

from quantpipe.types import CompareReport, ExplainReport, RunReport, StrategyFile
from quantpipe.types.figures import Figures
from website.pages import ROOT

PAGE = ROOT / "docs" / "artifacts.md"
_BLOCK = re.compile(r"(<!-- keys: (\w+) -->\n\|[^\n]*\n\|[^\n]*\n)(.*?)(<!-- end -->)", re.S)
_KEY = re.compile(r"`(\w+)`")
_FILES = (RunReport, StrategyFile, ExplainReport, CompareReport, Figures)


def filled(text: str) -> str:
    """Return the page with the keys that the types have now: a new key gets a row without a meaning."""

    def block(match: re.Match[str]) -> str:
        keys = get_type_hints(_types()[match[2]])
        rows = [([key for key in names if key in keys], meaning) for names, meaning in _rows(match[3])]
        named = {key for names, _ in rows for key in names}
        rows += [([key], " ") for key in keys if key not in named]
        lines = [f"| {', '.join(f'`{key}`' for key in names)} |{meaning}|\n" for names, meaning in rows if names]
        return f"{match[1]}{''.join(lines)}{match[4]}"

    return _BLOCK.sub(block, text)


def undescribed(text: str) -> list[str]:
    """Return the keys without a meaning: of a table, or of a part without a table that no row names in full."""
    blocks = {match[2]: match[3] for match in _BLOCK.finditer(text)}
    missing: list[str] = []
    unnamed: dict[str, list[str]] = {}
    for name, body in blocks.items():
        hints = get_type_hints(_types()[name])
        for names, meaning in _rows(body):
            missing += [f"{name}.{key}" for key in names if not meaning.strip()]
            for part in (part for key in names for part in _inside(hints[key], blocks)):
                lost = [key for key in get_type_hints(part) if key not in _KEY.findall(meaning)]
                unnamed[part.__name__] = min(unnamed.get(part.__name__, lost), lost, key=len)
    return missing + [f"{part}.{key}" for part, keys in unnamed.items() for key in keys]


def _rows(body: str) -> Iterator[tuple[list[str], str]]:
    """Yield the keys and the meaning of each row."""
    for line in body.splitlines():
        cell, meaning = line.removeprefix("|").removesuffix("|").split("|", 1)
        yield _KEY.findall(cell), meaning


def _inside(hint: Any, tables: Container[str]) -> Iterator[Any]:
    """Yield the parts inside a type that have no table, and their own parts."""
    for part in _parts(hint):
        if part.__name__ not in tables:
            yield part
            for inner in get_type_hints(part).values():
                yield from _inside(inner, tables)


@cache
def _types() -> dict[str, Any]:
    """Return the types of the files and of their parts, by name."""
    found: dict[str, Any] = {}
    left: list[Any] = list(_FILES)
    while left:
        kind = left.pop()
        if kind.__name__ not in found:
            found[kind.__name__] = kind
            left += [part for hint in get_type_hints(kind).values() for part in _parts(hint)]
    return found


def _parts(hint: Any) -> Iterator[Any]:
    """Yield the types of mappings inside a type."""
    if is_typeddict(hint):
        yield hint
    for inner in get_args(hint):
        yield from _parts(inner)


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
