"""Complete groups, options, keys and files for the tab key, from the files of conf/ alone.

Hydra's own answer composes the configuration, which takes seconds; here the files are read as plain YAML. What it knows
beyond that (options of plug-ins and of `--config-dir`) is typed by hand.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from quantpipe.app.files import folder_of

EXPERIMENT = ("experiment", "experiments")
VALUES = {
    "command": (
        "run", "replay", "check", "lint", "verify", "explain", "compare", "sync", "export_vectors", "identify",
    ),
    "verbosity": ("quiet", "normal", "verbose"),
    "verify": ("fail", "warn"),
}  # fmt: skip
"""Keys whose few legal values are completed, too."""


def asked() -> bool:
    """Return whether bash asks for completions, by Hydra's own convention."""
    return "COMP_LINE" in os.environ


def answer() -> str:
    """Return the words for the line that bash is at."""
    line = os.environ["COMP_LINE"][: int(os.environ.get("COMP_POINT", "0")) or None]
    return " ".join(completions(line))


def completions(line: str) -> list[str]:
    """Return the possible completions of the last word of a command line, up to the cursor."""
    words = line.split()
    begun = "" if not words or line[-1].isspace() else words[-1]
    plus = "+" if begun.startswith("+") else ""
    found = _values(begun.removeprefix(plus)) if "=" in begun else _names(words)
    return sorted({plus + word for word in found if (plus + word).startswith(begun)})


def _values(begun: str) -> Iterator[str]:
    key, _, value = begun.partition("=")
    before, comma, value = value.rpartition(",")  # the options of a sweep
    head = f"{key}={before}{comma}"
    if key in EXPERIMENT:
        yield from (f"{head}{name}" for name in _options(folder_of("experiments")))
    elif (folder := folder_of("conf") / key).is_dir():
        yield from (f"{head}{name}" for name in _options(folder))
    elif key in VALUES:
        yield from (f"{head}{name}" for name in VALUES[key])
    elif key.endswith(("path", "dir", "run", "file", "strategy", "load", "dump")):
        place = Path(value).expanduser()
        near = place if value.endswith("/") else place.parent
        yield from (
            f"{head}{value[: len(value) - len(Path(value).name)] if not value.endswith('/') else value}{entry.name}"
            f"{'/' if entry.is_dir() else ''}"
            for entry in (near.iterdir() if near.is_dir() else ())
        )


def _names(words: Sequence[str]) -> Iterator[str]:
    """Yield groups, and keys of the chosen options."""
    conf = folder_of("conf")
    top = _content(conf / "config.yaml")
    chosen = {group: name for entry in top["defaults"] if isinstance(entry, dict) for group, name in entry.items()}
    chosen |= dict(word.split("=", 1) for word in words if "=" in word and word.split("=")[0] in chosen)
    yield from (f"{name}=" for name in (*chosen, *EXPERIMENT))
    for group, option in chosen.items():
        yield from _keys({group: _content(conf / group / f"{option}.yaml")})
    yield from _keys({key: value for key, value in top.items() if key != "defaults"})


def _keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in node.items():
        if isinstance(value, dict) and value:
            yield from _keys(value, f"{prefix}{name}.")
        elif not str(name).startswith("_"):
            yield f"{prefix}{name}="


def _options(folder: Path) -> list[str]:
    return [path.stem for path in folder.glob("*.yaml")]


@cache
def _content(path: Path) -> dict[str, Any]:
    try:
        found = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (OSError, ValueError, yaml.YAMLError):
        return {}
    return found if isinstance(found, dict) else {}
