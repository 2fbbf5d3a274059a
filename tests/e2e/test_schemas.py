"""report.json and strategy.json are as their JSON Schemas say, and what is damaged is not."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from quantpipe.types import RunReport, StrategyFile
from tests.e2e.conftest import DefaultRun
from tests.e2e.program import NO_TRACKING, QUICK, Program, read
from tests.e2e.schemas import FILES, faults, faults_of_run

Place = tuple[str | int, ...]
ANYTHING = ("origin", "config")
"""The one part that a schema says nothing of: it is a slice of the configuration."""


def test_the_files_of_the_default_run_are_as_described(default_run: DefaultRun) -> None:
    assert all((default_run.result.folder / place).is_file() for place in FILES.values())
    assert faults_of_run(default_run.result.folder) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("search=greedy", "search.refine=true", "recover=default", "search.max_evaluations=6", "annotate.min_bits=6"),
        ("search=random", "objective.form=pareto", "search.max_evaluations=8"),
        ("search=random", "annotate.choices=[bits,float,add,granularity]", "search.max_evaluations=6"),
        ("hardware=vta", "evaluate.realized_samples=64"),
        ("hardware=hago_int16_acc", "search=greedy", "search.max_evaluations=6"),
        ("search=uniform", "annotate.min_bits=4", "recover=auto", "objective.tolerance=1e-9"),
        ("model=digits_vit_masked", "dataset=digits_columns", "annotate.skip_first=true"),
    ],
    ids=["finalists", "front", "choices", "vta", "int16", "missed", "masked"],
)
def test_the_files_of_other_runs_are_as_described(arguments: tuple[str, ...], program: Program) -> None:
    result = program.run(*arguments, NO_TRACKING, *QUICK)
    assert result.code == 0, result.err
    assert faults_of_run(result.folder) == []


def test_the_files_of_replays_are_as_described(program: Program) -> None:
    searched = program.run("search=random", "objective.cost=bits", "search.max_evaluations=3", NO_TRACKING, *QUICK)
    for number, given in enumerate((["strategy.json"], ["trials.jsonl", "replay.trial=1"])):
        strategy, *more = given
        file = searched.folder / "search" / strategy
        result = program.run("command=replay", f"strategy={file}", *more, NO_TRACKING, *QUICK, folder=f"replay{number}")
        assert result.code == 0, result.err
        assert faults_of_run(result.folder) == []


def places(content: Any, at: Place = ()) -> Iterator[Place]:
    """Every place in a file; of a list the first item stands for all."""
    yield at
    if at == ANYTHING:
        return
    if isinstance(content, dict):
        for key, value in content.items():
            yield from places(value, (*at, key))
    elif isinstance(content, list) and content:
        yield from places(content[0], (*at, 0))


def changed(content: Any, at: Place, value: Any) -> Any:
    """A copy with another value at a place."""
    found = copy.deepcopy(content)
    part = found
    for key in at[:-1]:
        part = part[key]
    part[at[-1]] = value
    return found


@pytest.mark.parametrize("name", FILES)
def test_damage_at_any_place_is_found(name: str, default_run: DefaultRun) -> None:
    """A value of another type, a key too many: whatever the place, the schema refuses it, and names the place."""
    content = read(default_run.result.folder / FILES[name])
    content["origin"]["config"] = {}
    kinds: dict[tuple[str, ...], Place] = {}
    for at in places(content):
        kinds.setdefault(tuple("*" if isinstance(k, str) and "." in k else str(k) for k in at), at)
    wrong: Any
    for at in kinds.values():
        if at and at != ANYTHING:
            value = _at(content, at)
            wrong = "damaged" if isinstance(value, dict | list) else ["damaged"]
            said = faults(name, changed(content, at, wrong))
            assert said, f"{at}: {wrong!r} in place of {value!r}"
        if at and isinstance(_at(content, at), dict) and at not in (ANYTHING, ("origin", "inputs")):
            said = faults(name, changed(content, (*at, "damaged key"), {"no": "such key"}))
            assert said, f"{at}: a key too many"


def _at(content: Any, at: Place) -> Any:
    for key in at:
        content = content[key]
    return content


@pytest.mark.parametrize(("name", "kind"), [("report", RunReport), ("strategy", StrategyFile)])
def test_a_lost_key_is_found(name: str, kind: Any, default_run: DefaultRun) -> None:
    content = json.loads((default_run.result.folder / FILES[name]).read_text())
    for key in kind.__required_keys__:
        lost = {k: v for k, v in content.items() if k != key}
        assert any(repr(key) in said for said in faults(name, lost)), key
    inner = {"report": ("agreement", "differing"), "strategy": ("strategy", "bits")}[name]
    del content[inner[0]][inner[1]]
    assert any(repr(inner[1]) in said for said in faults(name, content))
    section = content["search"] if name == "report" else content["results"]["search"]
    del section["evaluations"]
    assert len(faults(name, content)) == 2
