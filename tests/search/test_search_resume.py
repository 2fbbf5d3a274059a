"""A run that was stopped anywhere and started again ends as if it had never stopped, and measures nothing twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from search_toys import ALGORITHMS, TOYS, Counting, ListLog, search

from quantpipe.search import JsonlLog, Stopped, search_origin

RESUMED = ("additive", "interaction", "within_cost", "nothing_feasible")


@pytest.mark.sliced(72)
@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("toy", RESUMED)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_stopped_at_every_step(name: str, toy: str, batch_size: int) -> None:
    t, algorithm = TOYS[toy], ALGORITHMS[name]
    options = {"seed": 1, "max_evaluations": 24, "batch_size": batch_size}
    whole = Counting(t)
    expected = search(t, algorithm, measure=whole, **options)
    for step in range(whole.calls):
        log = ListLog()
        before = Counting(t, fail_at=step)
        if step == 0:
            with pytest.raises(KeyboardInterrupt):
                search(t, algorithm, measure=before, log=log, **options)
        else:
            assert search(t, algorithm, measure=before, log=log, **options).stopped is Stopped.INTERRUPTED
        after = Counting(t)
        resumed = search(t, algorithm, measure=after, log=log, **options)
        assert before.points + after.points == whole.points
        assert resumed.evaluations_new == len(after.points)
        assert [t.number for t in log.trials] == list(range(len(whole.points)))
        same = ("best", "score", "feasible", "evaluations", "stopped")
        assert [getattr(resumed, f) for f in same] == [getattr(expected, f) for f in same]
        assert [t.point for t in resumed.trace] == [t.point for t in expected.trace]


@pytest.mark.sliced(6)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_log_cut_after_any_line_or_in_the_middle_of_one(name: str, tmp_path: Path) -> None:
    t, algorithm = TOYS["additive"], ALGORITHMS[name]
    origin = search_origin(t.space, t.objective, 1)
    path = tmp_path / "trials.jsonl"
    whole = Counting(t)
    expected = search(t, algorithm, 1, measure=whole, log=JsonlLog(path, origin, t.space), max_evaluations=12)
    content = path.read_bytes()
    ends = [i + 1 for i, byte in enumerate(content) if byte == ord("\n")]
    for cut in sorted({0, 7, *ends, *(end - 1 for end in ends), *(end - 30 for end in ends)}):
        path.write_bytes(content[:cut])
        measure = Counting(t)
        resumed = search(t, algorithm, 1, measure=measure, log=JsonlLog(path, origin, t.space), max_evaluations=12)
        kept = max(sum(end <= cut for end in ends) - 1, 0)
        assert measure.points == whole.points[kept:]
        assert (resumed.best, resumed.score) == (expected.best, expected.score)
        again = JsonlLog(path, origin, t.space).read()
        assert [trial.point for trial in again] == whole.points


def test_more_budget_continues(tmp_path: Path) -> None:
    t = TOYS["additive"]
    log = JsonlLog(tmp_path / "trials.jsonl", search_origin(t.space, t.objective, 0))
    search(t, ALGORITHMS["greedy"], log=log, max_evaluations=8)
    measure = Counting(t)
    result = search(t, ALGORITHMS["greedy"], log=log, measure=measure)
    assert result.stopped is Stopped.DONE
    assert result.evaluations_new == len(measure.points) == result.evaluations - 8
    fewer = search(t, ALGORITHMS["greedy"], log=log, max_evaluations=3)
    assert (fewer.evaluations, fewer.evaluations_new, fewer.stopped) == (3, 0, Stopped.BUDGET)


VICTIM = """
import os, signal, sys
sys.path.insert(0, sys.argv[1])
from search_toys import ALGORITHMS, TOYS, search
from quantpipe.search import JsonlLog, search_origin
toy, calls = TOYS["additive"], 0
def measure(points):
    global calls
    calls += 1
    if calls == 6:
        os.kill(os.getpid(), int(sys.argv[3]))
    return toy.measure(points)
log = JsonlLog(sys.argv[2], search_origin(toy.space, toy.objective, 0), toy.space)
search(toy, ALGORITHMS["greedy"], measure=measure, log=log)
"""


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM"])
def test_a_killed_process(number: str, tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    killer = getattr(signal, number)
    command = [sys.executable, "-c", VICTIM, str(Path(__file__).parent), str(path), str(int(killer))]
    assert subprocess.run(command, check=False, cwd=Path(__file__).parents[2]).returncode == -killer
    t = TOYS["additive"]
    whole, rest = Counting(t), Counting(t)
    expected = search(t, ALGORITHMS["greedy"], measure=whole)
    log = JsonlLog(path, search_origin(t.space, t.objective, 0), t.space)
    assert len(log.read()) == 5
    resumed = search(t, ALGORITHMS["greedy"], measure=rest, log=log)
    assert rest.points == whole.points[5:]
    assert resumed.best == expected.best


@pytest.mark.sliced(3)
@pytest.mark.parametrize("name", ALGORITHMS)
def test_any_damaged_line_is_measured_again_under_its_own_number(name: str, tmp_path: Path) -> None:
    """Each line but the header in turn: the values in it could have chosen another point."""
    t, algorithm = TOYS["additive"], ALGORITHMS[name]
    origin = search_origin(t.space, t.objective, 1)
    path = tmp_path / "trials.jsonl"
    expected = search(t, algorithm, 1, log=JsonlLog(path, origin, t.space), max_evaluations=12)
    lines = path.read_bytes().splitlines(keepends=True)
    trials = JsonlLog(path, origin, t.space).read()
    for number in range(1, len(lines)):
        lied = lines[number].replace(b'"value": ', b'"value": 9')
        path.write_bytes(b"".join([*lines[:number], lied, *lines[number + 1 :]]))
        measure, said = Counting(t), list[str]()
        log = JsonlLog(path, origin, t.space, said.append)
        resumed = search(t, algorithm, 1, measure=measure, log=log, max_evaluations=12)
        assert len(measure.points) == 1 and f"line {number + 1} is damaged" in said[0]
        assert (resumed.best, resumed.score) == (expected.best, expected.score)
        assert [(e.number, e.point) for e in resumed.trace] == [(e.number, e.point) for e in expected.trace]
        assert [(e.number, e.point, e.score) for e in log.read()] == [(e.number, e.point, e.score) for e in trials]
