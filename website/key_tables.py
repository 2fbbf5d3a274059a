"""Tables of docs/configuration.md, made from the files of conf/ and their comments.

    python -m website.key_tables        # writes them into the page

A table is between two comments of the page, of which the first names its sources:

- `<!-- keys: config:annotate -->`: sections and keys of conf/config.yaml
- `<!-- keys: effort/quick effort/default -->`: keys of options, with a column of defaults for each
- `<!-- keys: dataset/table not-in dataset/npz -->`: keys that another option has not; `in`: that both have
- `<!-- options: search -->`: the options of a group, with the keys that differ among them
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from website.configuration import CONF, Key, cell, defaults, head, keys, linked
from website.pages import ROOT

PAGE = ROOT / "docs" / "configuration.md"
_BLOCK = re.compile(r"(<!-- (keys|options): ([^>]+) -->\n).*?(<!-- end -->)", re.S)


def filled(text: str) -> str:
    """Return a page with its tables as conf/ has them now."""
    return _BLOCK.sub(lambda block: f"{block[1]}{_TABLES[block[2]](block[3].split())}{block[4]}", text)


def _keys(words: list[str]) -> str:
    """Return a table of keys: of the sources before `in` or `not-in`, limited by the option after it."""
    limit = next((n for n, word in enumerate(words) if word in ("in", "not-in")), len(words))
    sources = [_of(source) for source in words[:limit]]
    found = {name: key for source in reversed(sources) for name, key in source.items()}
    order = [name for source in sources for name in source]
    if words[limit:]:
        other = _of(words[limit + 1])
        order = [name for name in order if (name in other) == (words[limit] == "in")]
    columns = [w.partition("/")[2] for w in words[:limit]] if limit > 1 and ":" not in words[0] else []
    rows = [
        (
            f"`{name}`",
            *(_default(source.get(name)) for source in (sources if columns else [found])),
            linked(found[name].comment, ""),
        )
        for name in dict.fromkeys(order)
    ]
    return _table(("key", *(tuple(f"`{c}`" for c in columns) or ("default",)), "meaning"), rows)


def _options(words: list[str]) -> str:
    """Return a table of a group's options: the head of each file, and the keys that not all of them have."""
    (group,) = words
    found = {path.stem: _of(f"{group}/{path.stem}") for path in sorted((CONF / group).glob("*.yaml"))}
    shared = {
        n for n in set.intersection(*map(set, found.values())) if len({o[n].default for o in found.values()}) == 1
    }
    rows = []
    for option, own in sorted(found.items(), key=lambda entry: (entry[0] != defaults()[group], entry[0])):
        listed = ", ".join(f"`{name}` {_default(key)}" for name, key in own.items() if name not in shared)
        default = " (default)" if option == defaults()[group] else ""
        rows.append((f"`{option}`{default}", linked(_first(head(CONF / group / f"{option}.yaml")), ""), listed))
    return _table(("option", "meaning", "keys of its own"), rows)


def _first(text: str) -> str:
    """Return the first sentence of a comment, without its period."""
    return re.split(r"\.(?:\s+(?=[A-Z`])|$)", text)[0]


_TABLES = {"keys": _keys, "options": _options}


@cache
def _of(source: str) -> dict[str, Key]:
    """Return the keys of a source by name."""
    if source.startswith("config:"):
        wanted = source.removeprefix("config:").split(",")
        return {key.name: key for key in _config() if key.name in wanted or key.path[0] in wanted}
    group, _, option = source.partition("/")
    return {key.name: key for key in keys(CONF / group / f"{option}.yaml", (group,)) if key.path[-1] != "name"}


@cache
def _config() -> tuple[Key, ...]:
    return tuple(keys(CONF / "config.yaml"))


def _default(key: Key | None) -> str:
    return "-" if key is None else "null" if key.default == "null" else f"`{key.default}`"


def _table(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [names, ("---",) * len(names), *(tuple(map(cell, row)) for row in rows)]
    return "".join(f"|{'|'.join(line)}|\n" if line[0] == "---" else f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    """Write the tables into the page."""
    Path(PAGE).write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
