"""Worker processes: scores in order whatever happens to the workers, and no process left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quantpipe.errors import ConfigError, HardwareError, WorkerError
from quantpipe.scoring.workers import Process, Serial
from quantpipe.scoring.workers.executor import IN_FLIGHT
from quantpipe.search import Objective
from quantpipe.search.evaluator import ShouldPrune
from tests.executors.recipes import ToyRecipe, worth

POINTS = [(x, y) for y in range(3) for x in range(6)]
ROOT = Path(__file__).resolve().parents[2]


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def gone(pids: set[int], seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while any(alive(p) for p in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.mark.sliced(3)
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_same_scores_in_the_same_order(workers: int, tmp_path: Path) -> None:
    recipe = ToyRecipe(tmp_path)
    opened = Process(workers, start_seconds=0).open(recipe)
    try:
        assert list(opened(POINTS)) == [worth(p) for p in POINTS] == list(Serial().open(recipe)(POINTS))
        assert list(opened(POINTS[:2])) == [worth(p) for p in POINTS[:2]]
        assert list(opened(POINTS[:1])) == [worth(POINTS[0])], "one point is measured here"
        assert list(opened([])) == []
        assert opened.count == workers
    finally:
        opened.close()
    assert gone(recipe.processes() - {os.getpid()})


@pytest.mark.grid
def test_workers_share_cores_and_memory(tmp_path: Path) -> None:
    recipe = ToyRecipe(tmp_path)
    opened = Process(2, start_seconds=0).open(recipe)
    list(opened(POINTS))
    opened.close()
    cores = max(1, len(os.sched_getaffinity(0)) // 2)
    assert {p.name.split("-", 2)[2] for p in tmp_path.glob("process-*")} == {f"{cores}-4"}
    assert len(recipe.processes()) <= 2


def test_no_process_starts_where_it_would_not_pay(tmp_path: Path) -> None:
    recipe = ToyRecipe(tmp_path)
    opened = Process(2, start_seconds=60).open(recipe)
    assert list(opened(POINTS)) == [worth(p) for p in POINTS]
    assert recipe.processes() == {os.getpid()} and opened.count == 1


def test_what_cannot_be_sent_is_measured_here(tmp_path: Path) -> None:
    opened = Process(2, start_seconds=0).open(ToyRecipe(tmp_path, is_picklable=False))
    assert list(opened(POINTS)) == [worth(p) for p in POINTS]
    assert ToyRecipe(tmp_path).processes() == {os.getpid()} and opened.count == 1


@pytest.mark.grid
def test_processes_start_in_a_batch_that_is_long(tmp_path: Path) -> None:
    recipe = ToyRecipe(tmp_path, seconds=0.05)
    opened = Process(2, start_seconds=0.3).open(recipe)
    assert list(opened(POINTS)) == [worth(p) for p in POINTS]
    opened.close()
    assert len(recipe.processes()) > 1 and os.getpid() in recipe.processes()


@pytest.mark.grid
def test_what_is_hopeless_is_told_to_the_workers(tmp_path: Path) -> None:
    opened = Process(2, start_seconds=0).open(ToyRecipe(tmp_path))
    found = list(opened(POINTS, ShouldPrune(Objective(tolerance=100.0), worth((3, 0)))))
    opened.close()
    assert [s.pruned for s in found] == [p[0] > 3 or p == (3, 0) or (p[0] == 3) for p in POINTS]


@pytest.mark.program
def test_a_worker_that_dies_is_replaced(tmp_path: Path) -> None:
    recipe = ToyRecipe(tmp_path, deadly=(4, 1), deaths=2)
    opened = Process(2, start_seconds=0).open(recipe)
    assert list(opened(POINTS)) == [worth(p) for p in POINTS]
    opened.close()
    assert len(list(tmp_path.glob("death-*"))) == 2 and recipe.measured((4, 1)) >= 3
    assert gone(recipe.processes())


@pytest.mark.program
def test_workers_that_die_again_and_again_are_an_error(tmp_path: Path) -> None:
    opened = Process(2, start_seconds=0).open(ToyRecipe(tmp_path, deadly=(0, 0), deaths=99))
    with pytest.raises(WorkerError, match="died 3 times in a row"):
        list(opened(POINTS))
    opened.close()


def test_what_a_worker_raises_comes_in_its_turn(tmp_path: Path) -> None:
    opened = Process(2, start_seconds=0).open(ToyRecipe(tmp_path, illegal=(2, 0)))
    scores = opened(POINTS)
    assert [next(scores), next(scores)] == [worth(POINTS[0]), worth(POINTS[1])]
    with pytest.raises(HardwareError, match="plan: toy: no such point"):
        next(scores)
    assert list(opened(POINTS[3:6])) == [worth(p) for p in POINTS[3:6]]
    opened.close()


@pytest.mark.grid
def test_little_is_in_flight_when_the_reader_stops(tmp_path: Path) -> None:
    recipe = ToyRecipe(tmp_path)
    opened = Process(2, start_seconds=0).open(recipe)
    scores = opened(POINTS)
    next(scores)
    time.sleep(0.3)
    scores.close()  # type: ignore[attr-defined]
    opened.close()
    assert sum(recipe.measured(p) for p in POINTS) <= 1 + 2 * IN_FLIGHT
    assert gone(recipe.processes())


@pytest.mark.program
def test_workers_end_with_a_parent_that_was_killed(tmp_path: Path) -> None:
    script = (
        "from pathlib import Path\nfrom quantpipe.scoring.workers import Process\n"
        "from tests.executors.recipes import ToyRecipe\n"
        f"opened = Process(2, start_seconds=0).open(ToyRecipe(Path({str(tmp_path)!r}), seconds=0.2))\n"
        "list(opened([(x, 0) for x in range(1000)]))\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("process-*"))) < 2:
        assert parent.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)
    workers = ToyRecipe(tmp_path).processes()
    assert all(alive(p) for p in workers)
    parent.kill()
    parent.wait(10)
    assert gone(workers)


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "two"])
def test_no_number_of_workers(workers: object) -> None:
    with pytest.raises(ConfigError, match=r"executor\.workers"):
        Process(workers)  # type: ignore[arg-type]


@pytest.mark.parametrize("seconds", [-1, "soon", float("nan")])
def test_no_number_of_seconds(seconds: object) -> None:
    with pytest.raises(ConfigError, match=r"executor\.start_seconds"):
        Process(start_seconds=seconds)  # type: ignore[arg-type]
