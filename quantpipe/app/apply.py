"""`explain.apply=N`: the best of what was advised as an experiment file, and the run that follows it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString

from quantpipe.app.command_line import program
from quantpipe.artifacts import write_bytes
from quantpipe.errors import ConfigError
from quantpipe.explain.override_text import override

NAME = "explained"
LEAST_GAIN = 0.0
"""Of the loss: what gains no more than this is not applied."""


def best(advice: Sequence[Mapping[str, Any]], count: int) -> tuple[list[Mapping[str, Any]], dict[str, Any]]:
    """Return the best rows of advice that can be followed at once, and the changes that they come to, by key.

    Of the same place only its best change is taken. Lists and mappings of several rows are joined; a row that asks for
    another value of a key that is taken is passed over.
    """
    taken: list[Mapping[str, Any]] = []
    changes: dict[str, Any] = {}
    places: set[tuple[str, ...]] = set()
    for row in advice:
        place = (row["role"], *row["members"])
        joined = _joined(changes, changes_of(row["overrides"]))
        if not (row["gain"] > LEAST_GAIN or row["advised"]) or joined is None or (row["members"] and place in places):
            continue
        taken.append(row)
        places.add(place)
        changes = joined
        if len(taken) == count:
            break
    return taken, changes


def changes_of(overrides: Sequence[str]) -> dict[str, Any]:
    """Return overrides as plain values by key."""
    parser = OverridesParser.create()
    parsed = (parser.parse_override(text) for text in overrides)
    return {one.key_or_group: _plain(one.value()) for one in parsed}


def _joined(before: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return both together; None where they contradict each other."""
    found = dict(before)
    for key, value in more.items():
        known = found.get(key)
        if isinstance(known, list) and isinstance(value, list):
            found[key] = list(dict.fromkeys([*known, *value]))
        elif isinstance(known, dict) and isinstance(value, dict):
            if any(known[name] != value[name] for name in known.keys() & value.keys()):
                return None
            found[key] = {**known, **value}
        elif key in found and known != value:
            return None
        else:
            found[key] = value
    return found


def write(folder: Path, taken: Sequence[Mapping[str, Any]], changes: Mapping[str, Any]) -> Path:
    """Write the changes as an experiment into the folder of the run that was explained, and return its file."""
    path = folder / NAME / "experiments" / f"{NAME}.yaml"
    groups = {key: value for key, value in changes.items() if "." not in key}
    tree: dict[str, Any] = {}
    if groups:
        tree["defaults"] = [{f"override /{key}": value} for key, value in groups.items()]
    for key, value in changes.items():
        *parents, last = key.split(".")
        node = tree
        for name in parents:
            node = node.setdefault(name, {})
        if parents:
            node[last] = value
    head = "# @package _global_\n# What command=explain advised:\n"
    for row in taken:
        alone = f"alone: loss {row['loss_before']:.4g} to {row['loss_after']:.4g}"
        head += f"#   {row['role']}: {row['change']} ({alone})\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, (head + yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)).encode())
    return path


def command(folder: Path, changes: Mapping[str, Any]) -> list[str]:
    """Return the command line that repeats a run with some changes.

    Raises ConfigError for a run that was not made by the command line.
    """
    path = folder / ".hydra" / "overrides.yaml"
    try:
        given = [str(text) for text in yaml.safe_load(path.read_text(encoding="utf-8")) or ()]
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(
            f"needs a run of the command line, whose overrides are in {path} ({error}); from Python, give the "
            "overrides of the advice to quantpipe.quantize",
            where="explain.apply",
        ) from error
    changed = set(changes)
    pairs = [(text, *text.lstrip("+").partition("=")[::2]) for text in given]
    kept = [text for text, key, _ in pairs if key not in (*changed, "experiments")]
    before = [value.strip("[]") for _, key, value in pairs if key == "experiments"]
    experiment = f"[{','.join([*before, NAME])}]" if before else NAME
    place = override("hydra.run.dir", str(folder / NAME / "run"))
    return [*program(), "--config-dir", str(folder / NAME), *kept, f"experiments={experiment}", place]


def run(arguments: Sequence[str]) -> int:
    """Run the command, and return its exit code; what it prints goes where ours goes."""
    sys.stdout.flush()
    return subprocess.run(list(arguments), check=False).returncode


def _plain(value: Any) -> Any:
    if isinstance(value, QuotedString):
        return value.text
    if isinstance(value, Mapping):
        return {str(_plain(key)): _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
