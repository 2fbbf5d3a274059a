"""Tables of keys for docs/artifacts.md on the site, made from the types of the files and the comments of their keys.

A line `Keys of …: [TYPE](its file)` of the page becomes the table of this type. The comment above a key is its meaning;
a comment that begins with several keys (`a`, `b`: …) is the meaning of these. Links in comments are relative to docs/.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from typing import Any, get_args, get_type_hints, is_typeddict

from quantpipe.types import CompareReport, ExplainReport, RunReport, StrategyFile
from quantpipe.types.certificate_file import CertificateFile
from quantpipe.types.figures import Figures
from quantpipe.types.plan_file import PlanFile
from quantpipe.types.run_files import ChoicesFile, ParetoFile, SplitRecord, TopologyFile
from website.pages import ROOT

PAGE = ROOT / "docs" / "artifacts.md"
_LINE = re.compile(r"^(Keys[^\n]*?): \[`(\w+)`\]\([^\n)]*\)$", re.M)
_KEY = re.compile(r"`(\w+)`")
_SEVERAL = re.compile(r"((?:`\w+`, )+`\w+`): (.*)")
_FILES = (RunReport, StrategyFile, ExplainReport, CompareReport, Figures, PlanFile, CertificateFile)
_FILES_OF_STAGES = (TopologyFile, ChoicesFile, ParetoFile, SplitRecord)
Row = tuple[list[str], str]
"""Keys with one meaning, and this meaning."""


def filled(text: str) -> str:
    """Return the page with a table in the place of each line that names a type."""
    places = {match[2]: _anchor(text[: match.start()]) for match in _LINE.finditer(text)}

    def table(match: re.Match[str]) -> str:
        kind = _types()[match[2]]
        lines = [f"{match[1]}:", "", "| key | meaning |", "|---|---|"]
        for keys, meaning in rows(kind):
            inner = [part.__name__ for key in keys for part in _parts(get_type_hints(kind)[key])]
            where = {places[name] for name in inner if name in places} - {places[match[2]]}
            more = "".join(f" ([keys](#{anchor}))" for anchor in sorted(where))
            lines.append(f"| {', '.join(f'`{key}`' for key in keys)} | {meaning}{more} |")
        return "\n".join(lines)

    return _LINE.sub(table, text)


def undescribed(text: str) -> list[str]:
    """Return the keys without a meaning: of a type with a table, or of a part without one that no row names in full."""
    tables = {match[2] for match in _LINE.finditer(text)}
    missing: list[str] = []
    unnamed: dict[str, list[str]] = {}
    for name in tables:
        hints = get_type_hints(_types()[name])
        described = rows(_types()[name])
        missing += [f"{name}.{key}" for key in hints if not any(key in keys and said for keys, said in described)]
        for keys, meaning in described:
            for part in (part for key in keys for part in _inside(hints[key], tables)):
                lost = [key for key in get_type_hints(part) if key not in _KEY.findall(meaning)]
                unnamed[part.__name__] = min(unnamed.get(part.__name__, lost), lost, key=len)
    return missing + [f"{part}.{key}" for part, keys in unnamed.items() for key in keys]


@cache
def rows(kind: Any) -> list[Row]:
    """Return the keys of a type with their meanings, after those of its bases."""
    module = sys.modules[kind.__module__]
    source = inspect.getsource(module)
    bases = [getattr(module, base.id) for base in _class(source, kind.__name__).bases if isinstance(base, ast.Name)]
    return [row for base in bases if is_typeddict(base) for row in rows(base)] + rows_of(source, kind.__name__)


def rows_of(source: str, name: str) -> list[Row]:
    """Return the keys of the class `name` in a module with their meanings; without a comment the meaning is empty."""
    lines = source.splitlines()
    found: list[Row] = []
    for node in _class(source, name).body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            begin = node.lineno - 1
            while lines[begin - 1].strip().startswith("#"):
                begin -= 1
            meaning = " ".join(line.strip(" #") for line in lines[begin : node.lineno - 1])
            several = _SEVERAL.fullmatch(meaning)
            if several:
                found.append((_KEY.findall(several[1]), several[2]))
            elif meaning or not any(node.target.id in keys for keys, _ in found):
                found.append(([node.target.id], meaning))
    return found


def _class(source: str, name: str) -> ast.ClassDef:
    """Return a class of a module; one without a body for a type that is made by a call."""
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name]
    return nodes[0] if nodes else ast.ClassDef(name, [], [], [], [])


def _anchor(before: str) -> str:
    """Return the anchor of the last heading of a text."""
    return re.sub(r"[^\w\s-]", "", re.findall(r"^#+ (.*)$", before, re.M)[-1]).strip().lower().replace(" ", "-")


def _inside(hint: Any, tables: set[str], around: tuple[Any, ...] = ()) -> Iterator[Any]:
    """Yield the parts inside a type that have no table, and their own parts; a part may hold others of its kind."""
    for part in _parts(hint):
        if part.__name__ not in tables and part not in around:
            yield part
            for inner in get_type_hints(part).values():
                yield from _inside(inner, tables, (*around, part))


@cache
def _types() -> dict[str, Any]:
    """Return the types of the files and of their parts, by name."""
    found: dict[str, Any] = {}
    left: list[Any] = [*_FILES, *_FILES_OF_STAGES]
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
