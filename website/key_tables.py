"""Tables of the options of a group in docs/configuration.md, made from the files of conf/ and their comments.

    python -m website.key_tables        # writes them into the page

A table is between `<!-- options: GROUP -->` and `<!-- end -->`. It has the keys that differ among the options.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from website.configuration import CONF, Key, cell, defaults, head, keys, linked
from website.pages import ROOT

PAGE = ROOT / "docs" / "configuration.md"
_BLOCK = re.compile(r"(<!-- options: (\w+) -->\n).*?(<!-- end -->)", re.S)


def filled(text: str) -> str:
    """Return a page with its tables as conf/ has them now."""
    return _BLOCK.sub(lambda block: f"{block[1]}{_options(block[2])}{block[3]}", text)


def _options(group: str) -> str:
    """Return a table of a group's options: the head of each file, and the keys that not all of them have."""
    found = {path.stem: _of(group, path.stem) for path in sorted((CONF / group).glob("*.yaml"))}
    shared = {
        n for n in set.intersection(*map(set, found.values())) if len({o[n].default for o in found.values()}) == 1
    }
    lines = ["| option | meaning | keys of its own |", "|---|---|---|"]
    for option, own in sorted(found.items(), key=lambda entry: (entry[0] != defaults()[group], entry[0])):
        listed = ", ".join(f"`{name}` {_default(key)}" for name, key in own.items() if name not in shared)
        default = " (default)" if option == defaults()[group] else ""
        row = (f"`{option}`{default}", linked(_first(head(CONF / group / f"{option}.yaml")), ""), listed)
        lines.append(f"| {' | '.join(map(cell, row))} |")
    return "\n".join(lines) + "\n"


def _first(text: str) -> str:
    """Return the first sentence of a comment, without its period."""
    return re.split(r"\.(?:\s+(?=[A-Z`])|$)", text)[0]


@cache
def _of(group: str, option: str) -> dict[str, Key]:
    """Return the keys of an option by name."""
    return {key.name: key for key in keys(CONF / group / f"{option}.yaml", (group,)) if key.path[-1] != "name"}


def _default(key: Key) -> str:
    return "null" if key.default == "null" else f"`{key.default}`"


def main() -> None:
    """Write the tables into the page."""
    Path(PAGE).write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
