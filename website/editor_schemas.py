"""JSON Schemas by which an editor completes hardware files and configurations, made from the code and from `conf/`.

python -m website.editor_schemas      writes quantpipe/assets/{hardware,config}.schema.json; a test compares them
"""

from __future__ import annotations

import json
from typing import Any

from quantpipe.graph.op_tables import RECURRENT
from quantpipe.hardware.load import FIELDS, LOADED, OPTIONAL
from quantpipe.hardware.reader import SIGNATURE
from quantpipe.oprules import OP_RULES
from quantpipe.types import BiasScale, DType, FloatOn, Isa, Overflow, RequantizeKind, Scales, Unify
from website.configuration import CONF, Key, defaults, keys
from website.pages import ROOT

FOLDER = ROOT / "quantpipe" / "assets"
DRAFT = "http://json-schema.org/draft-07/schema#"
"""The draft that yaml-language-server reads."""


def main() -> None:
    """Write both."""
    for name, made in (("hardware", hardware()), ("config", configuration())):
        (FOLDER / f"{name}.schema.json").write_text(text_of(made), encoding="utf-8")


def text_of(schema: dict[str, Any]) -> str:
    """The file of a schema."""
    return json.dumps(schema, indent=1) + "\n"


def hardware() -> dict[str, Any]:
    """The schema of a hardware file: its fields, ops and types. A file that is `like` another needs name and source."""
    properties: dict[str, Any] = {key: {"description": f"Legal: {legal}"} for key, legal in FIELDS.items()}
    properties |= {key: {} for key in OPTIONAL} | {"like": {"enum": _names("hardware")}}
    for key, kind in (("scales", Scales), ("unify", Unify), ("isa", Isa), ("float_on", FloatOn)):
        properties[key] |= {"enum": [str(option.value) for option in kind]}
    for key in ("name", "description", "source"):
        properties[key] |= {"type": "string", "minLength": 1}
    properties["preferred_schema"] |= {"enum": _names("schema")}
    properties["loads"] |= {"type": ["array", "null"], "items": {"enum": list(LOADED)}}
    one = f"({'|'.join(_ops())})"
    joined = {f"^{one}(\\|{one})+$": _OPS}
    properties["ops"] |= {
        "type": "object",
        "additionalProperties": False,
        "properties": dict.fromkeys(_ops(), _OPS),
        "patternProperties": joined,
    }
    properties["requantize"] |= _short(RequantizeKind, "kind")
    properties["accumulator"] |= _short(DType, "dtype", {"overflow": _enum(Overflow), "bits": {"type": "integer"}})
    properties["bias"] |= _short(DType, "dtype", {"scale": _enum(BiasScale)})
    return {
        "$schema": DRAFT,
        "title": "quantpipe hardware file",
        "description": "docs/hardware.md describes every field.",
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
        "anyOf": [{"required": ["like", "name", "source"]}, {"required": list(FIELDS)}],
        "definitions": {
            "signature": {
                "type": "object",
                "properties": {key: {} for key in SIGNATURE} | {"in": _TYPES, "out": _TYPES},
                "additionalProperties": False,
            }
        },
    }


_TYPES: dict[str, Any] = {"type": ["array", "string"]}
"""One type or several; names of `types` are legal, too."""
_SIGNATURE = {"$ref": "#/definitions/signature"}
_OPS = {"anyOf": [_SIGNATURE, {"type": "array", "items": _SIGNATURE}, {"type": "null"}]}


def _ops() -> list[str]:
    """Every op that a file may name: several joined by | share their signatures."""
    return sorted({*OP_RULES, *RECURRENT})


def _enum(kind: Any) -> dict[str, Any]:
    return {"enum": [str(option.value) for option in kind]}


def _short(kind: Any, field: str, more: dict[str, Any] | None = None) -> dict[str, Any]:
    """A part that may be written by the value of its main field alone."""
    whole = {"type": "object", "properties": {field: _enum(kind), **(more or {})}}
    return {"anyOf": [_enum(kind), whole]}


def configuration() -> dict[str, Any]:
    """The schema of a configuration, such as a file of experiments/: every key with its comment and its default."""
    root: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    found = [key for key in keys(CONF / "config.yaml") if key.path[0] != "defaults"]
    for group in sorted(defaults()):
        for path in sorted((CONF / group).glob("*.yaml")) if group != "hardware" else ():
            found += keys(path, (group,))
    for key in found:
        _insert(root, key)
    for group in defaults():
        options = {"enum": _names(group), "description": f"Option of the group, as `override /{group}` in defaults"}
        part = root["properties"].get(group, {"type": "object"})
        root["properties"][group] = {"anyOf": [{**part, "additionalProperties": True}, options]}
    for name in ("defaults", "hydra", "hardware", "experiments"):
        root["properties"].setdefault(name, {})
    root["properties"]["defaults"] = {"type": "array"}
    return {"$schema": DRAFT, "title": "quantpipe configuration", **root}


def _insert(node: dict[str, Any], key: Key) -> None:
    """Add a key to the tree of objects."""
    for name in key.path[:-1]:
        node = node["properties"].setdefault(name, {"type": "object", "properties": {}})
        node.setdefault("properties", {})
    text = " ".join(part for part in (key.comment, f"Default: {key.default}" if key.default else "") if part)
    node["properties"].setdefault(key.path[-1], {"description": text})


def _names(group: str) -> list[str]:
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


if __name__ == "__main__":
    main()
