"""Short forms of a hardware file, written out: several ops in one line, and types by names of their own.

`spread` takes the content of a file and gives it without them. A key `Reshape|Flatten` of `ops` becomes two, and a
signature with a name of `types` becomes one for each type that the name represents. The same name in a signature is the
same type.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from quantpipe.hardware.reader import STORABLE, Data, Reader, listed

TYPES = "types"
Wildcards = Mapping[str, Sequence[str]]


def spread(data: Data) -> dict[str, Any]:
    """Return the content of a file without short forms; `types` stays, since `kernels` reads it.

    Raises HardwareError for an op that two lines name, and for a name that represents no types.
    """
    reader = Reader(str(data.get("name", "?")))
    names = wildcards(data, reader)
    ops = data.get("ops")
    if not isinstance(ops, Mapping):
        return dict(data)
    found: dict[str, Any] = {}
    for key, rows in ops.items():
        for op in (part.strip() for part in str(key).split("|")):
            if op in found:
                raise reader.error(f"ops.{op}", "is named by two lines; legal is one, with a list of signatures")
            found[op] = _written_out(rows, names)
    return {**data, "ops": found}


def wildcards(data: Data, reader: Reader) -> dict[str, tuple[str, ...]]:
    """Return the types that each name of `types` represents.

    Raises HardwareError for names that are types themselves, and for anything but a list of types.
    """
    if data.get(TYPES) is None:
        return {}
    given = reader.mapping(data[TYPES], TYPES, "names and lists of types, such as {T: [int8, int16]}")
    found = {}
    for name, value in given.items():
        if str(name) in STORABLE:
            raise reader.error(f"{TYPES}.{name}", "is a type itself; legal is another name")
        found[str(name)] = tuple(reader.storable(d, f"{TYPES}.{name}").value for d in listed(value))
        if not found[str(name)]:
            raise reader.error(f"{TYPES}.{name}", "lists no type; legal is a list of types")
    return found


def choices(values: Sequence[object], names: Wildcards) -> Iterator[dict[str, str]]:
    """Yield every way to choose a type for the names among some values."""
    used = [name for name in names if name in {str(v) for v in values}]
    for types in itertools.product(*(names[name] for name in used)):
        yield dict(zip(used, types, strict=True))


def _written_out(rows: object, names: Wildcards) -> object:
    if isinstance(rows, Mapping):
        rows = [rows]
    if not names or not isinstance(rows, Sequence) or isinstance(rows, str):
        return rows
    found: list[object] = []
    for row in rows:
        if not isinstance(row, Mapping) or "in" not in row or "out" not in row:
            found.append(row)
            continue
        inputs, outputs = listed(row["in"]), listed(row["out"])
        for chosen in choices([*inputs, *outputs], names):
            types = {
                side: [chosen.get(str(d), d) for d in values] for side, values in (("in", inputs), ("out", outputs))
            }
            found.append({**row, **types})
    return found
