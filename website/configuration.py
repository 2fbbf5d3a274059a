"""The configuration reference, made from the comments of conf/ and the types of the settings.

Every file of `conf/` is a part of the page: what its head says, and a row per key with the type, the default and the
comment. A key's comment stands behind it on its line, or in the lines right above it; else its section's counts.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from website.pages import ROOT

CONF = ROOT / "conf"
SKIPPED = ("defaults", "hydra", "_target_", "_convert_")
"""Keys that are about Hydra, or say which class reads a file."""
_PARTS = {"choices": "limits"}
"""Parts of the configuration whose field of Settings has another name."""


_Entry = tuple[yaml.Node, yaml.Node]
"""A key and its value."""


@dataclass(frozen=True)
class Key:
    """One key of a file: its place, its default as written, and its comment."""

    path: tuple[str, ...]
    default: str
    comment: str
    kind: str

    @property
    def name(self) -> str:
        return ".".join(self.path)


def page() -> str:
    """The whole page, as Markdown."""
    parts = [
        "# Configuration keys\n\nMade from the files of `conf/` and the types of the settings. How keys are set, and "
        "what they mean together: [Configuration](../configuration.md). A group option is chosen as `GROUP=OPTION`, a "
        "key is changed as `KEY=VALUE`.\n",
        "## Top level\n\n`conf/config.yaml`: keys that stand outside groups.\n\n" + _table(_top_keys()),
    ]
    default = defaults()
    for group in sorted(default):
        parts.append(f"## Group {group} {{ #group-{group} }}\n\nDefault: `{group}={default[group]}`.\n")
        if group == "hardware":
            parts.append("Fields: [Hardware files](../hardware.md). Options: [shipped files](hardware_files.md).\n")
            continue
        if group == "schema":
            parts.append("Fields and legal values: [Configuration](../configuration.md#group-schema).\n")
        parts += [_option(group, path) for path in sorted((CONF / group).glob("*.yaml"))]
    return "\n".join(parts)


@functools.cache
def defaults() -> dict[str, str]:
    """Group -> the option that is taken when nothing is said."""
    entries = yaml.safe_load((CONF / "config.yaml").read_text())["defaults"]
    return {group: name for entry in entries if isinstance(entry, dict) for group, name in entry.items()}


def keys(
    path: Path, prefix: tuple[str, ...] = (), types: Mapping[str, str] | None = None, *, common: bool = True
) -> Iterator[Key]:
    """Every key of a YAML file that holds a value, in its order, below `prefix`.

    With `common`, keys without a comment have the comment of the group's default option.
    """
    own = _comments(path, prefix)
    usual = _comments(path.with_stem(defaults()[prefix[0]]), prefix) if prefix and common else {}
    lines, node = _read(path)
    for entries in _leaves(node):
        name = (*prefix, *(key.value for key, _ in entries))
        above = [name[:size] for size in range(len(name), len(prefix), -1)]  # its own comment, else its section's
        said = (known.get(place, "") for known in (own, usual) for place in above)
        kind = (types or {}).get(".".join(name)) or _kind_of(entries[-1][1])
        yield Key(name, _default(entries[-1][1], lines), next(filter(None, said), ""), kind)


def _read(path: Path) -> tuple[list[str], yaml.Node | None]:
    text = path.read_text(encoding="utf-8")
    return text.splitlines(), yaml.compose(text)


def _comments(path: Path, prefix: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """The comment of every key and section of a file."""
    lines, node = _read(path)
    found = {}
    for entries in _leaves(node):
        for size, entry in enumerate(entries, 1):
            name = (*prefix, *(key.value for key, _ in entries[:size]))
            found[name] = _comment(lines, entry, node.start_mark.line if node else 0)
    return found


def head(path: Path) -> str:
    """What the comment at the head of a file says, as one paragraph."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return " ".join(lines)


def _option(group: str, path: Path) -> str:
    rows = [key for key in keys(path, (group,), _types_of_targets(path, group)) if key.path[-1] != "name"]
    if group == "search":
        common = {key.name: key for key in _top_keys() if key.path[0] == "search"}
        rows = [key for key in rows if key.name not in common]
    text = f"### {group}={path.stem} {{ #{group}-{path.stem} }}\n\n{linked(head(path))}\n\n"
    return text + (_table(rows) if rows else "")


def _top_keys() -> list[Key]:
    types = dict(_types_of_settings())
    return [key for key in keys(CONF / "config.yaml", types=types) if key.path[0] not in SKIPPED]


def _types_of_settings() -> Iterator[tuple[str, str]]:
    """Key -> type, from the dataclasses that hold parts of the configuration."""
    owner = _settings()
    hints = get_type_hints(owner)
    parts = yaml.safe_load((CONF / "config.yaml").read_text())
    for part, value in parts.items():
        field = _PARTS.get(part, part)
        if isinstance(value, dict) and dataclasses.is_dataclass(hints.get(field)):
            yield from ((f"{part}.{name}", text) for name, text in _fields(hints[field]))
        elif field in hints and not isinstance(value, dict):
            yield part, _said(owner.__dataclass_fields__[field].type)


def _settings() -> Any:
    """The dataclass that a configuration becomes."""
    from quantpipe.app.settings import settings_of

    return get_type_hints(settings_of)["return"]


def _types_of_targets(path: Path, group: str) -> dict[str, str]:
    """Key -> type, from the classes that `_target_` names in a file."""
    found: dict[str, str] = {}

    def visit(content: Any, place: tuple[str, ...]) -> None:
        if not isinstance(content, dict):
            return
        if "_target_" in content:
            module, _, name = content["_target_"].rpartition(".")
            target = getattr(importlib.import_module(module), name)
            if dataclasses.is_dataclass(target):
                found.update({".".join((*place, key)): text for key, text in _fields(target)})
        for key, value in content.items():
            visit(value, (*place, str(key)))

    visit(yaml.safe_load(path.read_text()), (group,))
    if group in ("search", "recover", "objective"):
        found = {**dict(_types_of_group(group)), **found}
    return found


def _types_of_group(group: str) -> Iterator[tuple[str, str]]:
    target = get_type_hints(_settings()).get(group)
    if dataclasses.is_dataclass(target):
        yield from ((f"{group}.{name}", text) for name, text in _fields(target))


def _fields(target: Any) -> list[tuple[str, str]]:
    return [(field.name, _said(field.type)) for field in dataclasses.fields(target)]


def _said(kind: Any) -> str:
    """A type in the words of a configuration file."""
    text = kind if isinstance(kind, str) else getattr(kind, "__name__", str(kind))
    for old, new in (("None", "null"), (", ...", ""), ("tuple[", "list["), ("Sequence[", "list[")):
        text = text.replace(old, new)
    return re.sub(r"\b(?:typing|collections\.abc)\.", "", text)


def _leaves(node: yaml.Node | None, above: tuple[_Entry, ...] = ()) -> Iterator[tuple[_Entry, ...]]:
    """Every key whose value is no mapping of others, behind the keys of the sections that it stands in."""
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        if key.value in SKIPPED:
            continue
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _leaves(value, (*above, (key, value)))
        else:
            yield (*above, (key, value))


def _default(value: yaml.Node, lines: list[str]) -> str:
    start, end = value.start_mark, value.end_mark
    if start.line == end.line:
        return lines[start.line][start.column : end.column]
    return yaml.safe_dump(yaml.safe_load(yaml.serialize(value)), default_flow_style=True, width=10**6).strip()


def _comment(lines: list[str], entry: _Entry, first: int) -> str:
    """The comment behind a key, else that of the lines right above it (which is not the head of the file)."""
    key, value = entry
    sections = isinstance(value, yaml.MappingNode) and not value.flow_style and value.value
    end = key.end_mark if sections else value.end_mark
    behind = lines[end.line][end.column :].partition("#")[2].strip() if end.line < len(lines) else ""
    if behind:
        return behind
    above: list[str] = []
    for line in reversed(lines[first : key.start_mark.line]):
        if not line.strip().startswith("#"):
            break
        above.insert(0, line.strip().lstrip("# "))
    return " ".join(above)


def _kind_of(value: yaml.Node) -> str:
    """The type of a default, for keys that no class declares; nothing for null, which says nothing of it."""
    found = yaml.safe_load(yaml.serialize(value))
    return "" if found is None else type(found).__name__


def _table(rows: list[Key]) -> str:
    typed = any(key.kind for key in rows)
    lines = ["| key | type | default | meaning |", "|---|---|---|---|"]
    if not typed:
        lines = ["| key | default | meaning |", "|---|---|---|"]
    for key in rows:
        cells = [f"`{key.name}`", f"`{key.kind}`" if key.kind else "", f"`{key.default}`", linked(key.comment)]
        lines.append("| " + " | ".join(cell(c) for c in cells[:1] + cells[1 if typed else 2 :]) + " |")
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """With its bars escaped: outside code, where a bar needs none."""
    return "".join(part if part.startswith("`") else part.replace("|", "\\|") for part in re.split(r"(`[^`]*`)", text))


def linked(text: str, up: str = "../") -> str:
    """With the names of pages as links to them from `up` below docs/, and brackets as they stand."""
    text = re.sub(r"(?<![`\w])([\[{<])", r"\\\1", text)
    return re.sub(r"docs/((?:\w+/)*(\w+)\.md(?:#[\w-]+)?)", rf"[\2]({up}\1)", text)
