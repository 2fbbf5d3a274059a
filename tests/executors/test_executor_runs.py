"""The program with workers: the same trials for any number of them, nothing lost and nobody left after an interrupt."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import program, zygote
from tests.e2e.program import Program
from tests.executors.test_process import gone

__all__ = ["program", "zygote"]
SEARCH = ("search=knapsack", "objective.cost=bits", "search.max_evaluations=24")


def trials(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "search" / "trials.jsonl").read_text().splitlines()[1:]
    return [{k: v for k, v in json.loads(line).items() if k not in ("seconds", "digest")} for line in lines]


def children(pid: int) -> set[int]:
    """Processes below one, all generations."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child, *children(child)}
    return found


@pytest.mark.parametrize("workers", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_any_number_of_workers_finds_the_same(workers: int, program: Program) -> None:
    one = program.run(*SEARCH, "executor=serial", folder="one")
    many = program.run(
        *SEARCH, "executor=process", f"executor.workers={workers}", "executor.start_seconds=0", folder="many"
    )
    assert (one.code, many.code) == (0, 0), many.err
    assert len(trials(one.folder)) == 24
    assert trials(many.folder) == trials(one.folder)
    assert many.strategy == one.strategy
    assert many.report["metrics"] == one.report["metrics"]
    assert [r.report["search"]["workers"] for r in (one, many)] == [1, workers]
    assert all(r.report["search"]["evaluations_per_second"] > 0 for r in (one, many))


@pytest.mark.slow
@pytest.mark.parametrize("what", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupt_ends_the_workers_and_loses_what_is_in_flight(program: Program, what: signal.Signals) -> None:
    given = (
        *SEARCH,
        "executor=process",
        "executor.workers=2",
        "executor.start_seconds=0",
        "dataset.samples.search=null",
    )
    whole = program.run(*given, folder="whole")
    assert whole.code == 0, whole.err
    process = program.start(*given)
    log = program.cwd / "run" / "search" / "trials.jsonl"
    deadline = time.monotonic() + 120
    below: set[int] = set()
    while not (
        log.is_file() and log.read_bytes().count(b"\n") > 6 and len(below) >= 2
    ):  # single points need no workers
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
        below = children(process.pid)
    # As a terminal does it, Ctrl-C goes to everyone; the others to the program alone.
    for pid in {process.pid, *(below if what is signal.SIGINT else ())}:
        os.kill(pid, what)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-9 if what is signal.SIGKILL else 130), err
    assert "Traceback" not in err
    assert gone(below)
    before = trials(program.cwd / "run")
    assert before == trials(whole.folder)[: len(before)]
    again = program.run(*given)
    assert again.code == 0, again.err
    assert trials(again.folder) == trials(whole.folder)
    assert again.strategy == whole.strategy


@pytest.mark.slow
def test_ray_finds_the_same(program: Program) -> None:
    pytest.importorskip("ray", reason="the extra ray is not installed")
    serial = program.run(*SEARCH, "executor=serial", folder="serial")
    found = program.run(*SEARCH, "executor=ray", "executor.workers=2", folder="ray")
    assert (serial.code, found.code) == (0, 0), found.err
    assert trials(found.folder) == trials(serial.folder)
    assert found.report["search"]["workers"] == 2
