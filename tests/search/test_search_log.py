"""The file of trials: what a line holds, exactness, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from search_toys import TOYS, make_space

from quantpipe.errors import ArtifactError, StorageError
from quantpipe.search import JsonlLog, find_trial, search_origin
from quantpipe.search.log import _line, _number
from quantpipe.types import Choice, ChoiceSpace, Score, Trial

TOY = TOYS["interaction"]
ORIGIN = search_origin(TOY.space, TOY.objective, 0, model="sha256:1")
TRIAL = Trial(0, (0, 1, 2), Score(0.1 + 0.2, 21.0, (("top1", 0.875), ("kl", float("inf")))), 0.25)


def test_a_line_is_plain_json_with_names(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "trials.jsonl"
    JsonlLog(path, ORIGIN, TOY.space).append(TRIAL)
    header, line = [json.loads(text, parse_constant=pytest.fail) for text in path.read_text().splitlines()]
    assert header.pop("digest").startswith("sha256:") and line.pop("digest").startswith("sha256:")
    assert header == {"format": "quantpipe.trials", "version": 1, "origin": ORIGIN}
    assert line == {
        "number": 0,
        "point": [0, 1, 2],
        "choices": {"bits:0": 8, "bits:1": 7, "bits:2": 6},
        "value": 0.30000000000000004,
        "cost": 21.0,
        "metrics": {"top1": 0.875, "kl": "inf"},
        "seconds": 0.25,
    }
    assert JsonlLog(path, ORIGIN).read() == [TRIAL]
    assert "choices" not in _line(TRIAL, None)


@given(st.floats(allow_nan=False))
def test_numbers_come_back_exactly(x: float) -> None:
    assert float(json.loads(json.dumps(_number(x), allow_nan=False))) == x


def test_each_line_is_on_the_disk_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "trials.jsonl"
    synced: list[int] = []
    monkeypatch.setattr("quantpipe.search.log.os.fsync", lambda fd: synced.append(path.stat().st_size))
    log = JsonlLog(path, ORIGIN)
    for number in range(2):
        log.append(replace(TRIAL, number=number))
        assert synced[-1] == path.stat().st_size
    assert len(synced) == 3, "the header and two trials"


def test_nothing_there_is_an_empty_log(tmp_path: Path) -> None:
    log = JsonlLog(tmp_path / "trials.jsonl", ORIGIN)
    assert log.read() == []
    assert not log.path.exists(), "reading writes nothing"


def test_a_torn_line_is_ignored_and_cut_off_on_append(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    JsonlLog(path, ORIGIN).append(TRIAL)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"number": 1, "point": [0')
    said: list[str] = []
    log = JsonlLog(path, ORIGIN, warn=said.append)
    assert log.read() == [TRIAL]
    log.append(replace(TRIAL, number=1))
    assert len(said) == 1 and "last line is not whole" in said[0]
    assert path.read_bytes().startswith(whole) and path.read_bytes().count(b"\n") == 3
    assert log.read() == [TRIAL, replace(TRIAL, number=1)]


@pytest.mark.parametrize("use", ["read", "append"])
def test_a_foreign_log_is_refused_naming_both(use: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    JsonlLog(path, ORIGIN).append(TRIAL)
    before = path.read_bytes()
    other = JsonlLog(path, search_origin(TOY.space, TOY.objective, 7, model="sha256:2"))
    with pytest.raises(ArtifactError, match="seed: '0' there, '7' here; model: 'sha256:1' there, 'sha256:2' here"):
        other.read() if use == "read" else other.append(TRIAL)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [b"hello\n", b"{}\n", b'{"format": "quantpipe.trials", "version": 2, "origin": {}}\n', b"[1]\n", b"\x00\n"],
)
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="no trial log"):
        JsonlLog(path, ORIGIN).read()


@pytest.mark.parametrize("damage", ["nonsense", "{}", '{"number": 0}', "7", "", "[" * 100_000])
def test_damage_in_the_middle_is_dropped_and_said(damage: str, tmp_path: Path) -> None:
    path, said = tmp_path / "trials.jsonl", list[str]()
    JsonlLog(path, ORIGIN).append(TRIAL)
    whole = path.read_text()
    header, line = whole.splitlines()
    path.write_text("\n".join([header, damage, line, ""]))
    log = JsonlLog(path, ORIGIN, warn=said.append)
    assert log.read() == log.read() == [TRIAL]
    assert len(said) == 1 and "line 2 is damaged" in said[0] and str(path) in said[0]
    log.mend()
    assert path.read_text() == whole


def _log_of(path: Path, count: int) -> bytes:
    log = JsonlLog(path, ORIGIN, TOY.space)
    for number in range(count):
        log.append(replace(TRIAL, number=number))
    return path.read_bytes()


@pytest.mark.grid
def test_every_flipped_bit_is_said_and_costs_its_own_line_only(tmp_path: Path) -> None:
    """Where the header is hit, the lines show whose they are; where an end of line is, two are joined and dropped."""
    path = tmp_path / "trials.jsonl"
    whole = _log_of(path, 3)
    for position in range(len(whole)):
        said: list[str] = []
        bit = 1 << position % 8
        path.write_bytes(whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :])
        log = JsonlLog(path, ORIGIN, TOY.space, said.append)
        trials = log.read()
        assert said, position
        assert len(trials) >= (3 if position < len(whole.splitlines()[0]) else 1)
        assert all(trial == replace(TRIAL, number=trial.number) for trial in trials)
        log.mend()
        again: list[str] = []
        assert JsonlLog(path, ORIGIN, TOY.space, again.append).read() == trials and not again
        assert set(path.read_bytes().splitlines()) <= set(whole.splitlines())


def test_lines_of_another_search_are_not_taken_for_ones_of_this(tmp_path: Path) -> None:
    path, other = tmp_path / "trials.jsonl", tmp_path / "other.jsonl"
    header, line = _log_of(path, 1).splitlines()
    JsonlLog(other, search_origin(TOY.space, TOY.objective, 7)).append(replace(TRIAL, number=1))
    path.write_bytes(b"\n".join([header, line, other.read_bytes().splitlines()[1], b""]))
    assert JsonlLog(path, ORIGIN).read() == [TRIAL]


def test_a_log_without_digests_is_believed_and_goes_on(tmp_path: Path) -> None:
    """As earlier versions wrote it; what is added has digests."""
    path, said = tmp_path / "trials.jsonl", list[str]()
    lines = [json.loads(line) for line in _log_of(path, 2).splitlines()]
    path.write_text("".join(json.dumps({k: v for k, v in line.items() if k != "digest"}) + "\n" for line in lines))
    old = path.read_bytes()
    log = JsonlLog(path, ORIGIN, TOY.space, said.append)
    assert log.read() == [TRIAL, replace(TRIAL, number=1)]
    log.append(replace(TRIAL, number=2))
    assert path.read_bytes().startswith(old) and not said
    path.write_bytes(path.read_bytes().replace(b'"number": 2', b'"number": 3'))
    assert [t.number for t in JsonlLog(path, ORIGIN, TOY.space, said.append).read()] == [0, 1] and said
    assert find_trial(path, 1).trial.number == 1


def test_a_damaged_line_cannot_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    whole = _log_of(path, 2)
    path.write_bytes(whole.replace(b'"bits:0": 8', b'"bits:0": 7'))
    with pytest.raises(ArtifactError, match="the line of trial 1 is damaged"):
        find_trial(path, 1)


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises((StorageError, ArtifactError), match=r"trials\.jsonl"):
        JsonlLog(tmp_path / "file" / "trials.jsonl", ORIGIN).append(TRIAL)


def test_the_origin_names_every_input() -> None:
    """Each part of a space, the objective, the seed and the caller's digests change it."""
    base = ChoiceSpace((Choice("bits:0", "bits", (8, 4), ("a->b:0",)),))
    spaces = [
        base,
        make_space(2),
        ChoiceSpace((Choice("bits:0", "threshold", (8, 4), ("a->b:0",)),)),
        ChoiceSpace((Choice("bits:0", "bits", (8, 4), ("a->b:1",)),)),
        ChoiceSpace((Choice("bits:0", "bits", (8, 4, 2), ("a->b:0",)),)),
    ]
    within = TOYS["within_cost"].objective
    objectives = (replace(TOY.objective, tolerance=0.02), within, replace(within, cost_limit=9.0))
    origins = [search_origin(space, TOY.objective, 0) for space in spaces]
    origins += [search_origin(base, o, 0) for o in objectives]
    origins += [search_origin(base, TOY.objective, 1), search_origin(base, TOY.objective, 0, data="x")]
    assert len({json.dumps(o) for o in origins}) == len(origins)
    assert search_origin(base, TOY.objective, 0) == origins[0]


def test_a_trial_is_found_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    log = JsonlLog(path, ORIGIN, TOY.space)
    for number in range(12):
        log.append(replace(TRIAL, number=number))
    path.write_bytes(path.read_bytes() + b'{"number": 1')
    found = find_trial(path, 11)
    assert found.trial == replace(TRIAL, number=11)
    assert found.choices == {"bits:0": 8, "bits:1": 7, "bits:2": 6}
    assert found.origin == ORIGIN
    with pytest.raises(ArtifactError, match=r"no trial 12; it has 0 to 11"):
        find_trial(path, 12)
    (tmp_path / "notes").write_text("mine\n")
    for other in ("notes", "missing"):
        with pytest.raises(ArtifactError, match="no trial log"):
            find_trial(tmp_path / other, 0)
