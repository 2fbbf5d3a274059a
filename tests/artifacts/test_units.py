"""One unit of several files: killed at every call that changes a file, and on a disk that is full after every byte
count, all of the old files are there or all of the new ones, and the same command goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from quantpipe.artifacts import ArtifactUnit, Origin, RunLock, damage, digest_json, is_current, write_json
from quantpipe.artifacts.unit import RECORD, complete
from quantpipe.errors import StorageError
from tests.crash import KILLED, in_child

OLD, NEW = Origin("realize", {"strategy": "a"}), Origin("realize", {"strategy": "b"})


@pytest.fixture(autouse=True)
def unsynced(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process has written outlives it, synced or not; syncing takes most of the time here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def write(folder: Path, origin: Origin) -> None:
    """A model with its data, as realize leaves it; the data file's name follows from the content."""
    with RunLock(folder), ArtifactUnit(folder / "realize") as unit:
        unit.json(folder / "realize" / "plan.json", {"of": origin.inputs["strategy"]}, origin)
        unit.bytes(folder / "realize" / f"{origin.inputs['strategy']}.data", origin.digest.encode() * 3, origin)
        unit.bytes(folder / "realize" / "model.onnx", origin.digest.encode() * 2, origin)
        unit.npz(folder / "realize" / "deep" / "stats.npz", {"a": np.arange(9) + len(origin.digest)}, origin)
        for stale in (folder / "realize").glob("*.data"):
            if stale.stem != origin.inputs["strategy"]:
                unit.remove(stale)
                unit.remove(stale.with_name(f"{stale.name}.origin.json"))


def state(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def after_crash(folder: Path) -> dict[str, bytes]:
    """What the next run finds, once it holds the lock."""
    with RunLock(folder, ("realize", "realize/deep")):
        pass
    return {name: data for name, data in state(folder).items() if name != ".lock"}


def outcomes(tmp_path: Path, **reference: Origin) -> dict[str, dict[str, bytes]]:
    found = {}
    for name, origin in reference.items():
        write(tmp_path / name, origin)
        found[name] = after_crash(tmp_path / name)
    return found


def prepared(folder: Path, old: bool) -> Callable[[], None]:
    if old:
        write(folder, OLD)
    else:
        folder.mkdir()
    return lambda: write(folder, NEW)


@pytest.mark.program
@pytest.mark.parametrize("old", [True, False])
def test_killed_at_every_call(tmp_path: Path, old: bool) -> None:
    known = outcomes(tmp_path, old=OLD, new=NEW)
    known["old"] = known["old"] if old else {}
    code, calls = in_child(prepared(tmp_path / "whole", old), tmp_path / "whole")
    assert code == 0 and len(calls) > 40, calls
    ends = []
    for number in range(1, len(calls) + 1):
        folder = tmp_path / str(number)
        code, _ = in_child(prepared(folder, old), folder, kill_at=number)
        assert code == KILLED
        found = after_crash(folder)
        ends.append(next((name for name, files in known.items() if found == files), "mixed"))
        write(folder, NEW)
        assert after_crash(folder) == known["new"], calls[number - 1]
    assert "mixed" not in ends, [(call, end) for call, end in zip(calls, ends, strict=True) if end == "mixed"]
    assert set(ends) == {"old", "new"} and ends == sorted(ends, reverse=True), "once new, always new"


@pytest.mark.program
@pytest.mark.parametrize("old", [True, False])
def test_a_disk_that_is_full_after_any_number_of_bytes(tmp_path: Path, old: bool) -> None:
    known = outcomes(tmp_path, old=OLD, new=NEW)
    known["old"] = known["old"] if old else {}
    ends = []
    for room in range(0, 8000, 211):
        folder = tmp_path / str(room)
        code, seen = in_child(prepared(folder, old), folder, room=room)
        assert code in (0, 1) and not [s for s in seen if "raised" in s and "StorageError" not in s], seen
        found = after_crash(folder)
        assert not list(folder.rglob("*quantpipe-tmp"))
        ends.append(next((name for name, files in known.items() if found == files), "mixed"))
        assert code == (0 if ends[-1] == "new" else 1)
        write(folder, NEW)
        assert after_crash(folder) == known["new"]
    assert set(ends) == {"old", "new"}


def test_without_the_record_a_crash_would_leave_a_mixture(tmp_path: Path) -> None:
    """The harness finds what it is there to find: the same files, renamed one by one."""

    def careless() -> None:
        for name in ("a", "b"):
            write_json(tmp_path / "x" / f"{name}.json", {"of": "new"}, NEW)

    (tmp_path / "x").mkdir()
    mixed = 0
    _, calls = in_child(careless, tmp_path / "x")
    for number in range(1, len(calls) + 1):
        for name in ("a", "b"):
            write_json(tmp_path / "x" / f"{name}.json", {"of": "old"}, OLD)
        in_child(careless, tmp_path / "x", kill_at=number)
        mixed += is_current(tmp_path / "x" / "a.json", NEW) and is_current(tmp_path / "x" / "b.json", OLD)
    assert mixed > 3


def test_a_record_that_points_elsewhere_or_is_damaged_does_nothing(tmp_path: Path) -> None:
    folder, outside = tmp_path / "run", tmp_path / "mine.txt"
    outside.write_text("mine")
    folder.mkdir()
    for record in (
        {"put": [], "remove": ["../mine.txt"]},
        {"put": [["../mine.txt", "taken.txt"]], "remove": []},
        {"put": [], "remove": [str(outside)]},
        {"put": [], "remove": ["a"], "digest": "sha256:0"},
        [],
    ):
        sealed = {"digest": digest_json(record), **record} if isinstance(record, dict) else record
        (folder / RECORD).write_text(json.dumps(sealed))
        (folder / "a").write_text("a")
        complete(folder)
        assert outside.read_text() == "mine" and not (folder / RECORD).exists()
    assert (folder / "a").exists()


def test_a_block_that_raises_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), ArtifactUnit(tmp_path) as unit:
        unit.bytes(tmp_path / "a.bin", b"x", OLD)
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())


def test_a_unit_that_cannot_be_put_in_place_is_completed_by_the_next_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if target.name == "model.onnx":
            raise OSError(28, "No space left on device")
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(StorageError, match="the next run in this folder does so"):
            write(tmp_path, NEW)
    assert not is_current(tmp_path / "realize" / "model.onnx", NEW)
    after_crash(tmp_path)
    assert is_current(tmp_path / "realize" / "model.onnx", NEW) and damage(tmp_path / "realize" / "plan.json") is None
