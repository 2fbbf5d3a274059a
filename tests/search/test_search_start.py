"""`search.start`: a search begins at another's strategy or log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from quantpipe.errors import ArtifactError
from quantpipe.pipeline.search_start import read_start
from quantpipe.search import JsonlLog
from quantpipe.types import Choice, ChoiceSpace, Score, Trial

SPACE = ChoiceSpace(
    (
        Choice("bits:a", "bits", (8, 6, 4), ("in->conv:0",)),
        Choice("bits:w", "bits", (8, 6, 4), ("w->conv:1",)),
        Choice("float:conv", "float", ("integer", "float"), graded=False),
    )
)


def strategy(folder: Path, bits: dict[str, object], **structure: str) -> Path:
    path = folder / "strategy.json"
    path.write_text(json.dumps({"strategy": {"bits": bits, "structure": structure}}))
    return path


def test_a_strategy_is_a_point(tmp_path: Path) -> None:
    path = strategy(tmp_path, {"in->conv:0": 6, "w->conv:1": 4}, **{"float:conv": "float"})
    found = read_start(path, tmp_path / "run", SPACE)
    assert found.points == ((1, 2, 1),) and found.misfit is None
    changed = read_start(strategy(tmp_path, {"in->conv:0": 6, "w->conv:1": 6}), tmp_path / "run", SPACE)
    assert changed.digest != found.digest


def test_what_does_not_fit_is_said_in_one_sentence(tmp_path: Path) -> None:
    path = strategy(tmp_path, {"in->conv:0": 5, "gone->conv:0": 8}, **{"float:conv": "float"})
    found = read_start(path, tmp_path / "run", SPACE)
    assert found.points == ((1, 0, 1),), "5 bits are not offered; 6 are, and lose less"
    assert found.misfit is not None and "bits:a from 5 to 6" in found.misfit and "gone->conv:0" in found.misfit
    assert "lacks 1 choices" in found.misfit and "bits:w" in found.misfit


def test_the_front_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    log = JsonlLog(path, {"any": "origin"}, SPACE)
    scores = {(0, 0, 0): (-0.1, 16.0), (1, 1, 0): (-0.2, 12.0), (2, 0, 0): (-0.5, 12.0), (2, 2, 0): (-0.9, 8.0)}
    for number, (point, (value, cost)) in enumerate(scores.items()):
        log.append(Trial(number, point, Score(value, cost), 0.1))
    assert set(read_start(path, tmp_path / "run", SPACE).points) == {(0, 0, 0), (1, 1, 0), (2, 2, 0)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{}", "neither a strategy.json nor a trials.jsonl"),
        ('{"strategy": {"bits": {"other->net:0": 8}}}', "names no choice of this search"),
        ('{"strategy": {"bits": {"in->conv:0": "many"}}}', "gives bits:a 'many' bits"),
    ],
)
def test_what_is_no_start_is_refused(tmp_path: Path, content: str, said: str) -> None:
    space = ChoiceSpace(SPACE.choices[:2])
    path = tmp_path / "file.json"
    path.write_text(content)
    with pytest.raises(ArtifactError, match=said):
        read_start(path, tmp_path / "run", space)
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_start(tmp_path / "none.json", tmp_path / "run", space)
    with pytest.raises(ArtifactError, match="is in the folder of this run"):
        read_start(path, tmp_path, space)
