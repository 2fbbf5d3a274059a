"""The JSON Schemas of report.json, strategy.json and what dumps say of a device, made from their types.

python -m website.schemas      writes quantpipe/artifacts/schemas/*.json; a test compares the files with what this makes
"""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from quantpipe.types import DumpReport, IdentifyReport, RunReport, StrategyFile
from website.artifact_tables import rows
from website.pages import ROOT

FOLDER = ROOT / "quantpipe" / "artifacts" / "schemas"

VERSIONS: Mapping[str, tuple[type, int]] = {
    "report": (RunReport, 1),
    "strategy": (StrategyFile, 1),
    "dump": (DumpReport, 1),
    "identify": (IdentifyReport, 1),
}
"""Artifact -> what it holds, and the version of its schema, which grows when a key goes or means something else."""

ANSWERS = ("dump", "identify")
"""Those that a command gives and no file holds: `compare dump=…` and `identify` with `check.format=json`."""

ORIGIN: Mapping[str, Any] = {
    "type": "object",
    "description": "What the file was made from.",
    "properties": {
        "format": {"type": "integer"},
        "kind": {"type": "string"},
        "content": {"type": "string", "pattern": "^sha256:"},
        "digest": {"type": "string", "pattern": "^sha256:"},
        "inputs": {"type": "object", "additionalProperties": {"type": "string"}},
        "config": {"type": "object"},
    },
    "required": ["format", "kind", "digest", "inputs", "config"],
    "additionalProperties": False,
}
"""What every JSON artifact has beside its content (`artifacts/origin.py`); `content` is left out of one that was edited
by hand."""

PLAIN: Mapping[Any, str] = {str: "string", bool: "boolean", int: "integer", type(None): "null"}


def main() -> None:
    """Write every schema."""
    FOLDER.mkdir(exist_ok=True)
    for name in VERSIONS:
        (FOLDER / f"{name}.schema.json").write_text(text_of(name), encoding="utf-8")


def text_of(name: str) -> str:
    """The file of an artifact's schema."""
    return json.dumps(schema_of(name), indent=1) + "\n"


def schema_of(name: str) -> dict[str, Any]:
    """The schema of an artifact, draft 2020-12: objects are closed, so that a key which is not described is found."""
    kind, version = VERSIONS[name]
    parts: dict[str, dict[str, Any]] = {}
    reference = _schema(kind, parts)["$ref"].rsplit("/", 1)[-1]
    root = parts.pop(reference)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:quantpipe:{name}:{version}",
        "title": f"{name}.json of quantpipe, version {version}",
        **root,
        "properties": {**({} if name in ANSWERS else {"origin": {"$ref": "#/$defs/Origin"}}), **root["properties"]},
        "$defs": {**({} if name in ANSWERS else {"Origin": ORIGIN}), **{part: parts[part] for part in sorted(parts)}},
    }


def _schema(kind: Any, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The schema of a type; objects with names go into `parts`. TypeError for a type that JSON has not."""
    origin, given = get_origin(kind), get_args(kind)
    if is_typeddict(kind):
        if kind.__name__ not in parts:
            parts[kind.__name__] = {}  # a type may hold itself
            parts[kind.__name__] |= _object(kind, parts)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    if origin is NotRequired:
        return _schema(given[0], parts)
    if origin is Annotated:
        return {"type": "number"}  # `Finite`, the one annotation there is
    if kind is float:
        return {"type": ["number", "null"]}  # files have null for what is not finite
    if kind in PLAIN:
        return {"type": PLAIN[kind]}
    if origin is Literal:
        return {"enum": list(given)}
    if origin is list:
        return {"type": "array", "items": _schema(given[0], parts)}
    if origin is dict and given[0] is str:
        return {"type": "object", "additionalProperties": _schema(given[1], parts)}
    if origin in (Union, types.UnionType):
        return _any_of([_schema(part, parts) for part in given])
    raise TypeError(f"{kind} has no JSON Schema here")


def _object(kind: Any, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    hints = get_type_hints(kind, include_extras=True)
    # Annotations are text until here, so `__required_keys__` knows of `total`, and nothing of NotRequired.
    optional = {key for key, hint in hints.items() if get_origin(hint) is NotRequired}
    described = (kind.__doc__ or "").strip()
    return {
        "type": "object",
        **({"description": " ".join(described.split())} if described else {}),
        "properties": {key: {**_schema(hint, parts), **_meaning(kind, key)} for key, hint in hints.items()},
        "required": [key for key in hints if key in kind.__required_keys__ - optional],
        "additionalProperties": False,
    }


def _meaning(kind: Any, key: str) -> dict[str, str]:
    """Return the description of a key: the comment in its type, without links."""
    texts = [text for keys, text in rows(kind) if key in keys and text]
    return {"description": re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", texts[0])} if texts else {}


def _any_of(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Several types: by their names where that says all, else one after the other."""
    if all(list(part) == ["type"] for part in found):
        names = [n for part in found for n in (part["type"] if isinstance(part["type"], list) else [part["type"]])]
        return {"type": list(dict.fromkeys(names))}
    return {"anyOf": found}


if __name__ == "__main__":
    main()
