"""Merge a hardware file with `like: NAME` and its differences into the file of that name, field by field.

`taken_over` takes the content of such a file and a function that gives the content of others by name. It gives the
whole content, without `like`, so that the record of a run needs no second file. The rules are in docs/hardware.md:
sections are merged field by field, `ops` and `functions` entry by entry (null removes an entry), everything else is
replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from quantpipe.hardware.reader import Data, Reader
from quantpipe.hardware.shorthand import spread

LIKE = "like"
MAIN_FIELD = {
    "requantize": "kind",
    "accumulator": "dtype",
    "bias": "dtype",
    "pad": "value",
    "align": "channels",
    "cache": "keys",
}
"""Sections that may be written as the value of one field, and that field."""
SECTIONS = (*MAIN_FIELD, "weights", "activations", "skip", "cost")
"""Merged field by field."""
ENTRIES = ("ops", "functions", "kernels", "types")
"""Merged entry by entry; null takes an entry of the other file away."""
OWN = ("name", "source")
"""What a file says of itself, whatever it is like."""

Read = Callable[[str], Data]


def taken_over(data: Data, read: Read, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return the whole content of a file that is `like` another one, without `like`; other files unchanged.

    `read` returns the content of a named file and raises a QuantpipeError for an unknown name. `names` are the files on
    the way to this one, each `like` the next. Raises HardwareError for a file that is like itself, directly or through
    others, and for a difference that changes nothing.
    """
    if data.get(LIKE) is None:
        return {key: value for key, value in data.items() if key != LIKE}
    reader = Reader(str(data.get("name", "?")))
    base_name = data[LIKE]
    if not isinstance(base_name, str):
        raise reader.error(LIKE, f"is {base_name!r}; legal is the name of one hardware file, such as tflite_int8")
    for key in OWN:
        if not str(data.get(key) or "").strip():
            said = "its own name" if key == "name" else "the source of the differences"
            raise reader.error(key, f"is missing; a file that is like {base_name} needs {said}")
    way = (*names, str(data["name"]))
    if base_name in way:
        raise reader.error(LIKE, f"leads back to itself: {' -> '.join((*way, base_name))}; legal is a file that ends")
    base = spread(taken_over(_named(read(base_name), base_name), read, way))
    return _laid_over(base, data, base_name, reader)


def _named(data: Data, name: str) -> Data:
    """Return the file under the name by which it was requested, which reveals circles."""
    return {**data, "name": name}


def _laid_over(base: Data, data: Data, base_name: str, reader: Reader) -> dict[str, Any]:
    found = {key: value for key, value in base.items() if key != "device"}
    gone: set[str] = set()
    for key, value in spread(data).items():
        if key == LIKE:
            continue
        if value is None:
            found.pop(key, None)
        elif key in ENTRIES and isinstance(value, Mapping):
            found[key], away = _entries(base, data, key, reader=reader)
            gone |= away if key == "ops" else set()
        elif key in SECTIONS:
            found[key] = _section(base.get(key), value, key)
        else:
            found[key] = value
    found["source"] = f"{data['source']}; the rest as {base_name}: {base.get('source')}"
    return _without(found, gone, data)


def _entries(base: Data, data: Data, field: str, *, reader: Reader) -> tuple[dict[str, Any], set[str]]:
    """Return the entries of both files, and the names of those that were taken away."""
    there, given = base.get(field), spread(data)[field]
    found = dict(there) if isinstance(there, Mapping) else {}
    away = {str(op) for op, value in given.items() if value is None}
    for op in away:
        if op not in found:
            raise reader.error(f"{field}.{op}", f"is null, but {data[LIKE]} has no such entry; legal is an entry")
    return {op: value for op, value in (found | dict(given)).items() if op not in away}, away


def _section(there: object, given: object, field: str) -> object:
    """Return one section over another; a bare value, or another kind of `requantize`, uses its own defaults."""
    if not isinstance(given, Mapping) or "kind" in given:
        return given
    if there is not None and not isinstance(there, Mapping):
        there = {MAIN_FIELD[field]: there} if field in MAIN_FIELD else {}
    merged = {**(there or {}), **given}
    rates = [part.get("macs_per_cycle") for part in (there or {}, given)]
    if all(isinstance(rate, Mapping) for rate in rates):
        merged["macs_per_cycle"] = {**rates[0], **rates[1]}  # type: ignore[dict-item]
    return merged


def _without(found: dict[str, Any], gone: set[str], data: Data) -> dict[str, Any]:
    """Remove the other file's entries about removed ops, too: functions, chains of `fuse`."""
    if not gone:
        return found
    if isinstance(found.get("functions"), Mapping):
        own = data.get("functions") or {}
        found["functions"] = {op: kind for op, kind in found["functions"].items() if op not in gone or op in own}
    if "fuse" not in data and isinstance(found.get("fuse"), list):
        found["fuse"] = [chain for chain in found["fuse"] if not gone & set(chain[:-1])]
    return found
