"""The JSON Schemas are what the types say: one truth, in two forms."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal, NotRequired, TypedDict, get_type_hints

import pytest
from jsonschema import Draft202012Validator

from quantpipe.pipeline import build_report
from quantpipe.types import DataPart
from quantpipe.types.run_files import SplitRecord
from website import schemas


@pytest.mark.parametrize("name", schemas.VERSIONS)
def test_the_file_is_what_the_types_say(name: str) -> None:
    path = schemas.FOLDER / f"{name}.schema.json"
    assert path.read_text("utf-8") == schemas.text_of(name), f"{path.name} is not up to date: python -m website.schemas"
    Draft202012Validator.check_schema(json.loads(path.read_text("utf-8")))


def test_there_is_no_other_file() -> None:
    assert {p.name for p in schemas.FOLDER.iterdir()} == {f"{name}.schema.json" for name in schemas.VERSIONS}


class Inner(TypedDict, total=False):
    """An inner one."""

    word: Literal["a", "b"]


class Outer(Inner):
    count: int
    real: float
    finite: Annotated[float, "finite"]
    either: int | str | None
    parts: NotRequired[dict[str, list[Inner]]]
    mixed: Inner | list[bool]


GOOD: dict[str, Any] = {"count": 1, "real": 0.5, "finite": 2, "either": None, "mixed": [True]}


@pytest.mark.parametrize(
    ("change", "legal"),
    [
        ({}, True),
        ({"real": None, "either": "x", "word": "a", "parts": {"p": [{"word": "b"}, {}]}, "mixed": {}}, True),
        ({"word": "c"}, False),
        ({"count": 1.5}, False),
        ({"count": None}, False),
        ({"finite": None}, False),
        ({"either": 1.5}, False),
        ({"parts": {"p": {}}}, False),
        ({"parts": {"p": [{"word": 1}]}}, False),
        ({"mixed": [1]}, False),
        ({"other": 1}, False),
    ],
)
def test_every_form_of_a_type(change: dict[str, Any], legal: bool) -> None:
    parts: dict[str, dict[str, Any]] = {}
    schema = {**schemas._schema(Outer, parts), "$defs": parts}
    assert Draft202012Validator(schema).is_valid({**GOOD, **change}) is legal
    assert parts["Outer"]["required"] == ["count", "real", "finite", "either", "mixed"]
    assert parts["Inner"]["description"] == "An inner one."


def test_a_type_that_json_has_not_is_refused() -> None:
    with pytest.raises(TypeError, match="no JSON Schema"):
        schemas._schema(set, {})


def test_a_split_with_every_key_fits_the_report() -> None:
    record: SplitRecord = {
        "samples": 9, "digest": "sha256:0", "source": "digits", "indices": [[0, 8]], "duplicates": [[9, 9]],
        "skipped": [{"index": 3, "name": "a.png", "reason": "cut short"}], "state": {"present": "past"},
        "sequences": 2, "drawn": ["noise"],
    }  # fmt: skip
    assert set(record) == set(get_type_hints(SplitRecord))
    parts: dict[str, dict[str, Any]] = {}
    schema = {**schemas._schema(DataPart, parts), "$defs": parts}
    Draft202012Validator(schema).validate(build_report._data(record))
