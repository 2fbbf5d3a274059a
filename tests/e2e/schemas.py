"""The files that a run leaves, held against the JSON Schemas that come with the package."""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

FILES = {"report": "evaluate/report.json", "strategy": "search/strategy.json"}


@cache
def validator(name: str) -> Draft202012Validator:
    """Of the schema as it is installed."""
    schema = json.loads((files("quantpipe.artifacts") / "schemas" / f"{name}.schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def faults(name: str, content: Any) -> list[str]:
    """What of a file's content is not as its schema says: place and sentence each."""
    return [f"{error.json_path}: {error.message[:200]}" for error in validator(name).iter_errors(content)]


def faults_of_run(folder: Path) -> list[str]:
    """The same of all that a run folder holds of these files, the points of a Pareto front included."""
    paths = [(name, folder / place) for name, place in FILES.items()]
    paths += [("strategy", path) for path in sorted((folder / "search" / "front").glob("*.json"))]
    return [
        f"{path.name} {said}"
        for name, path in paths
        if path.is_file()
        for said in faults(name, json.loads(path.read_text()))
    ]
