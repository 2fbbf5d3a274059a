"""Killed or interrupted in the middle of a search: nothing is lost and nothing is measured twice."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.program import Program, Result, environment, read

SEARCH = (
    "hardware=vta",
    "search=greedy",
    "objective.cost=bits",
    "search.max_evaluations=90",
    "objective.tolerance=0.2",
)
# A pass that takes long enough to be interrupted in.
SLOW = "dataset.samples.search=null"


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory, zygote: object) -> Result:
    from tests.e2e.program import Zygote

    assert isinstance(zygote, Zygote)
    result = Program(tmp_path_factory.mktemp("uninterrupted"), zygote).run(*SEARCH, SLOW)
    assert result.code == 0, result.err
    return result


def stop_in_search(program: Program, what: signal.Signals, after: int) -> tuple[int, str, str]:
    """Start the search, send the signal once `after` trials are logged: exit code, output, errors."""
    log = program.cwd / "run" / "search" / "trials.jsonl"
    process = program.start(*SEARCH, SLOW)
    deadline = time.monotonic() + 120
    while not (log.is_file() and log.read_bytes().count(b"\n") > after):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(what)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def points(folder: Path) -> list[tuple[int, ...]]:
    lines = (folder / "search" / "trials.jsonl").read_text().splitlines()[1:]
    return [tuple(json.loads(line)["point"]) for line in lines]


def test_after_kill_9_the_same_command_gives_the_same_result(program: Program, uninterrupted: Result) -> None:
    code, _, _ = stop_in_search(program, signal.SIGKILL, after=5)
    assert code == -signal.SIGKILL
    folder = program.cwd / "run"
    before = points(folder)
    assert 5 <= len(before) < 90
    result = program.run(*SEARCH, SLOW)
    assert result.code == 0, result.err
    after = points(folder)
    assert after[: len(before)] == before
    assert len(set(after)) == len(after)
    assert after == points(uninterrupted.folder)
    assert result.strategy == uninterrupted.strategy
    assert result.report["metrics"] == uninterrupted.report["metrics"]
    assert result.report["search"]["evaluations"] == uninterrupted.report["search"]["evaluations"]
    assert not list(folder.rglob("*quantpipe-tmp"))


@pytest.mark.parametrize("what", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_search_keeps_its_best_and_prints_how_to_resume(
    program: Program, uninterrupted: Result, what: signal.Signals
) -> None:
    code, _, err = stop_in_search(program, what, after=5)
    assert code == 130, err
    assert "Traceback" not in err
    folder = program.cwd / "run"
    stored = read(folder / "search" / "strategy.json")
    assert stored["results"]["search"]["stopped"] == "interrupted"
    assert str(folder / "search" / "strategy.json") in err
    command = shlex.split(err.partition("Resume with: ")[2].strip())
    assert command[0] in ("python", Path(sys.executable).name, sys.executable)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command, cwd=program.cwd, env=environment({"PATH": path}), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert read(folder / "search" / "strategy.json")["strategy"] == uninterrupted.strategy
    assert points(folder) == points(uninterrupted.folder)


@pytest.mark.slow
def test_the_best_of_an_interrupted_search_can_be_replayed(program: Program) -> None:
    stop_in_search(program, signal.SIGINT, after=4)
    result = program.run("command=replay", "hardware=vta", "strategy=run/search/strategy.json", folder="replay")
    assert result.code == 0, result.err
    assert result.report["agreement"]["differing"] == 0


def test_two_processes_on_one_folder(program: Program) -> None:
    log = program.cwd / "run" / "search" / "trials.jsonl"
    long = (
        "hardware=vta",
        "search=random",
        "objective.cost=bits",
        "search.max_evaluations=120",
        SLOW,
    )  # longer than a second start takes
    first = program.start(*long)
    try:
        while not log.is_file():
            assert first.poll() is None, first.communicate()
            time.sleep(0.01)
        second = program.run(*long)
    finally:
        out, err = first.communicate(timeout=120)
    assert first.returncode == 0, err
    assert f"another run is at work here (process {first.pid}" in second.paragraph
    assert "elements differ" in out


@pytest.mark.parametrize("library", ["numpy", "onnxruntime", "scipy"])
def test_ctrl_c_while_libraries_are_loading(program: Program, library: str) -> None:
    """One line and exit code 130, whatever was being imported."""
    process = program.start("stages=[annotate]")
    maps = Path(f"/proc/{process.pid}/maps")
    deadline = time.monotonic() + 60
    while process.poll() is None and library not in maps.read_text() and time.monotonic() < deadline:
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert "Traceback" not in err
