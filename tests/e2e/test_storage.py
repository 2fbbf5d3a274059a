"""A disk that fills up while a run writes: a clear error, and nothing of an earlier run is damaged."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.program import Program, contents


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 128 KiB; skips where it cannot be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", str(place)]
    try:
        if subprocess.run(mount, capture_output=True).returncode != 0:
            pytest.skip("a tmpfs cannot be mounted here")
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_file_that_cannot_be_written_whole(program: Program) -> None:
    done = program.run("stages=[calibrate,search]")
    assert done.code == 0, done.err
    before = contents(done.folder)
    result = program.run(file_limit=40_000)  # the plan needs more, the log of trials does not
    assert "could not be written" in result.paragraph
    assert "realize" in result.paragraph
    after = contents(done.folder)
    same = {"annotate/topology.json", "calibrate/stats.npz", "search/trials.jsonl", "search/strategy.json"}
    assert {name: after[name] for name in same} == {name: before[name] for name in same}
    assert "realize/model.onnx" not in after
    assert not list(done.folder.rglob("*quantpipe-tmp"))
    assert program.run().code == 0  # the same command, once there is room


def test_a_log_of_trials_that_cannot_grow(program: Program) -> None:
    search = ("search=random", "objective.cost=bits", "search.max_evaluations=30", "stages=[calibrate,search]")
    done = program.run(*search[:2], "search.max_evaluations=2", search[3])
    log = done.folder / "search" / "trials.jsonl"
    before = log.read_bytes()
    result = program.run(*search, file_limit=40_000)
    assert "search" in result.paragraph
    assert log.read_bytes().startswith(before)
    again = program.run(*search)
    assert again.code == 0, again.err
    assert len(log.read_bytes().splitlines()) == 31


def test_a_full_disk(program: Program, small_disk: Path) -> None:
    result = program.run(folder=small_disk / "run")
    assert str(small_disk) in result.paragraph
    assert "No space left on device" in result.paragraph
    assert not list(small_disk.rglob("*quantpipe-tmp"))


def test_a_run_folder_that_cannot_be_made(program: Program) -> None:
    (program.cwd / "file").write_text("in the way")
    result = program.run(folder="file/run")
    assert "hydra.run.dir" in result.paragraph
    assert (program.cwd / "file").read_text() == "in the way"
