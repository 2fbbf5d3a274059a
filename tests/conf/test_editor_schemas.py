"""The schemas for editors are up to date, take every shipped file, and find mistakes."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from website import editor_schemas

ROOT = Path(__file__).resolve().parents[2]
MADE = {"hardware": editor_schemas.hardware, "config": editor_schemas.configuration}


def faults(name: str, content: Any) -> list[str]:
    return [error.message for error in Draft7Validator(MADE[name]()).iter_errors(content)]


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MADE)
def test_the_file_is_up_to_date(name: str) -> None:
    path = editor_schemas.FOLDER / f"{name}.schema.json"
    assert path.read_text("utf-8") == editor_schemas.text_of(MADE[name]()), "python -m website.editor_schemas"
    Draft7Validator.check_schema(json.loads(path.read_text("utf-8")))


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "hardware").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_hardware_file_is_taken(path: Path) -> None:
    assert faults("hardware", read(path)) == []


@pytest.mark.sliced(6)
@pytest.mark.parametrize("path", sorted((ROOT / "experiments").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_experiment_is_taken(path: Path) -> None:
    assert faults("config", read(path)) == []


def test_the_configuration_itself_is_taken_and_has_comments() -> None:
    assert faults("config", read(ROOT / "conf" / "config.yaml")) == []
    search = MADE["config"]()["properties"]["search"]["anyOf"][0]["properties"]
    assert "Default: " in search["max_evaluations"]["description"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scale": "power_of_two"}, "'scale' was unexpected"),
        ({"scales": "powers"}, "'powers' is not one of"),
        ({"isa": "sse"}, "'sse' is not one of"),
        ({"ops": {"Convolution": []}}, "'Convolution' does not match"),
        ({"ops": {"Conv": [{"in": ["int8"], "output": ["int8"]}]}}, "is not valid under any"),
        ({"accumulator": "int33"}, "is not valid under any"),
        ({"source": ""}, ""),
    ],
)
def test_a_mistake_in_a_hardware_file_is_found(change: dict[str, Any], said: str) -> None:
    content = copy.deepcopy(read(ROOT / "conf" / "hardware" / "vta.yaml")) | change
    assert any(said in fault for fault in faults("hardware", content))


def test_a_missing_field_and_an_unknown_key_are_found() -> None:
    assert faults("hardware", {"like": "vta", "name": "mine", "source": "me"}) == []
    assert faults("hardware", {"like": "vta", "name": "mine"})
    assert faults("config", {"serch": {}})
