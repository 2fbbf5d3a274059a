"""Add the place of an error in a hardware file to its message: the file and the line.

`load_located` takes the composed content and the file that it came from. An error that names a field gets the place of
that field in the file, or in the one that the file is `like`. Fields given on the command line have no place in a file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from quantpipe.app.compose import HARDWARE, hardware_file
from quantpipe.errors import HardwareError
from quantpipe.hardware.like import LIKE
from quantpipe.hardware.load import load_hardware
from quantpipe.types import HardwareSpec


def load_located(content: Mapping[str, Any], file: Path | None, given: Collection[str] = ()) -> HardwareSpec:
    """Return the device of a hardware file, whose `content` includes inherited parts.

    `given` are keys given on the command line, such as `hardware` and `hardware.weights.bits`. Raises HardwareError as
    `load_hardware` does, with file and line if they are known.
    """
    try:
        return _placed(load_hardware(content), file)
    except HardwareError as error:
        key = f"{HARDWARE}.{error.field}"
        fields = [name for name in given if name != HARDWARE]  # which file it is says nothing of its fields
        if file is None or error.field is None or any(f"{key}.".startswith(f"{name}.") for name in fields):
            raise
        place = place_of(error.field, file)
        if place is None:
            raise
        raise HardwareError(f"{error} ({place})", field=error.field) from error


def _placed(spec: HardwareSpec, file: Path | None) -> HardwareSpec:
    """Return the device with the places of its patterns: where two of them meet is known with the model only."""
    if file is None or not any(k.is_typed for k in spec.kernels):
        return spec
    places = {k.name: place_of(f"kernels.{k.name}.pattern", file) or "" for k in spec.kernels if k.is_typed}
    return replace(spec, kernels=tuple(replace(k, place=places.get(k.name, "")) for k in spec.kernels))


def place_of(field: str, file: Path) -> str | None:
    """Return `FILE, line N` of a field of a hardware file, or of the nearest section around it; None without any."""
    best: tuple[int, Path, int] | None = None
    for path in _chain(file):
        depth, line = _line(yaml.compose(path.read_text(encoding="utf-8")), field)
        if best is None or depth > best[0]:
            best = depth, path, line
    return f"{best[1]}, line {best[2]}" if best is not None and best[0] else None


def _chain(file: Path | None) -> Iterator[Path]:
    """Yield the file, and those that it takes fields from."""
    seen: list[Path] = []
    while file is not None and file.is_file() and file not in seen:
        seen.append(file)
        yield file
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
        name = content.get(LIKE) if isinstance(content, Mapping) else None
        file = hardware_file(str(name), file.parent) if name is not None else None


def _line(node: yaml.Node | None, field: str) -> tuple[int, int]:
    """Return (how much of the field's name was found, the line), searched below a node."""
    if isinstance(node, yaml.SequenceNode):
        return max((_line(item, field) for item in node.value), default=(0, 0), key=lambda found: found[0])
    if not isinstance(node, yaml.MappingNode):
        return 0, 0
    for key, value in node.value:
        written = str(key.value)
        names = [written, *(part.strip() for part in written.split("|"))]
        if field in names:
            return len(field), int(key.start_mark.line) + 1
        name = next((n for n in names if field.startswith(f"{n}.")), None)
        if name is not None:
            depth, line = _line(value, field[len(name) + 1 :])
            return (len(name) + 1 + depth, line) if depth else (len(name), int(key.start_mark.line) + 1)
    return 0, 0
