"""The whole program killed at calls that change a file, on a full disk, and with damaged files: the same command goes
on, and ends with what a run that was never stopped leaves."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from quantpipe.artifacts import read_npz
from tests.crash import KILLED
from tests.e2e.program import Program, Result, Zygote, contents, read

RUN = (
    "search=random",
    "objective.cost=bits",
    "search.max_evaluations=3",
    "recover=default",
    "recover.kl_target=0",
    "dataset.samples.calibrate=16",
    "dataset.samples.search=16",
    "dataset.samples.evaluate=16",
    "evaluate.agreement_samples=4",
    "evaluate.layer_samples=4",
    "evaluate.latency_runs=1",
    "evaluate.baseline=none",
)
VOLATILE = {
    *("seconds", "evaluations_per_second", "float_pass_seconds", "peak_rss_mb", "latency", "speed"),
    *("folder", "evaluator", "timeline"),
}
TIMED = "times as long as the float model"
"""In a warning that comes with what the clock says."""
EXACT = ("model.onnx", "plan.json", "topology.json", "choices.json", "data.json")


def steady(value: Any) -> Any:
    """Plain data without what no two runs have in common."""
    if isinstance(value, dict):
        return {k: steady(v) for k, v in value.items() if k not in VOLATILE and k not in ("origin", "content")}
    if isinstance(value, list):
        return [steady(v) for v in value if not (isinstance(v, str) and TIMED in v)]
    return value


def essence(folder: Path) -> dict[str, Any]:
    """What a run left: every file by name, and what it says."""
    found: dict[str, Any] = {}
    for name in contents(folder):
        path = folder / name
        if name.endswith(EXACT):
            found[name] = path.read_bytes()
        elif path.suffix == ".npz":
            found[name] = {k: np.asarray(v).tolist() for k, v in read_npz(path).items() if k not in VOLATILE}
        elif path.suffix == ".json":
            found[name] = steady(read(path))
        elif path.suffix == ".jsonl":
            lines = [json.loads(line) for line in path.read_text().splitlines()]
            lines = [{k: v for k, v in line.items() if k not in ("seconds", "digest")} for line in lines]
            found[name] = sorted(lines, key=lambda line: line.get("number", -1))  # measured again: at the end
        else:
            found[name] = None
    found.get("calibrate/stats.npz", {}).pop("profile", None)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> tuple[Result, list[str]]:
    """A run that was never stopped, and its calls."""
    result, calls = Program(tmp_path_factory.mktemp("whole"), zygote).crash(*RUN)
    assert result.code == 0, result.err
    return result, [call.replace(str(result.folder), "") for call in calls]


def goes_on(program: Program, folder: Path, expected: dict[str, Any], why: str) -> Result:
    result = program.run(*RUN, folder=folder)
    assert result.code == 0, (why, result.err)
    assert essence(folder) == expected, why
    left = [p for p in folder.rglob("*") if "quantpipe-tmp" in p.name or p.name in (".commit.json", "partial")]
    assert not left, (why, left)
    return result


def chosen(calls: list[str]) -> list[int]:
    """The numbers of the calls where a kill hurts most: in the log of trials, between the model and its side file, in
    what is kept of the evaluation."""
    wanted: tuple[Callable[[str], bool], ...] = (
        lambda c: "write" in c and "trials.jsonl" in c,
        lambda c: "os.rename" in c and "/realize/.model.onnx.origin" in c,
        lambda c: "os.rename" in c and "/evaluate/partial/.realized" in c,
    )
    found = [next((n for n, call in enumerate(calls, start=1) if test(call)), 0) for test in wanted]
    assert all(found), [call for call in calls if "rename" in call]
    return found


def test_killed_where_it_hurts(program: Program, whole: tuple[Result, list[str]]) -> None:
    expected = essence(whole[0].folder)
    for number in chosen(whole[1]):
        folder, why = program.cwd / str(number), whole[1][number - 1]
        assert program.crash(*RUN, folder=folder, kill_at=number)[0].code == KILLED, why
        result = goes_on(program, folder, expected, why)
        assert ("16 samples, going on" in result.err) == ("/evaluate/partial/" in why)


def test_a_longer_search_killed_before_its_strategy_is_written(program: Program) -> None:
    """All its trials are in the log then, and the strategy is still that of the shorter one."""
    search = ("search=random", "objective.cost=bits", "stages=[calibrate,search]", *RUN[4:])
    assert program.run(*search, "search.max_evaluations=1").code == 0
    before = read(program.cwd / "run" / "search" / "strategy.json")["results"]["search"]["evaluations"]
    longer = (*search, "search.max_evaluations=3")
    place = program.cwd / "run"
    counted = program.crash(*longer, kill_at=_rename_of_strategy(program, longer))[0]
    assert counted.code == KILLED
    assert (place / "search" / "trials.jsonl").read_bytes().count(b"\n") == 4
    assert read(place / "search" / "strategy.json")["results"]["search"]["evaluations"] == before == 1
    assert program.run(*longer).code == 0
    assert read(place / "search" / "strategy.json")["results"]["search"]["evaluations"] == 3


def _rename_of_strategy(program: Program, arguments: tuple[str, ...]) -> int:
    """The number of the call in a run that goes on in a copy of the folder."""
    shutil.copytree(program.cwd / "run", program.cwd / "again")
    _, calls = program.crash(*arguments, folder="again")
    return next(n for n, call in enumerate(calls, start=1) if "os.rename" in call and "/search/.strategy.json" in call)


@pytest.mark.slow
def test_killed_at_every_call(program: Program, whole: tuple[Result, list[str]]) -> None:
    expected = essence(whole[0].folder)
    for number, why in enumerate(whole[1], start=1):
        folder = program.cwd / str(number)
        assert program.crash(*RUN, folder=folder, kill_at=number)[0].code == KILLED, why
        goes_on(program, folder, expected, f"{number}: {why}")


def full_disk(program: Program, room: int, expected: dict[str, Any]) -> bool:
    """Whether the run ended for want of room; then it says so, and goes on where there is some."""
    folder = program.cwd / str(room)
    result, _ = program.crash(*RUN, folder=folder, room=room)
    if result.code == 0:
        return False
    assert "No space left on device" in result.paragraph
    goes_on(program, folder, expected, f"{room} bytes")
    return True


def test_a_disk_that_is_full_in_the_middle(program: Program, whole: tuple[Result, list[str]]) -> None:
    expected = essence(whole[0].folder)
    size = sum(len(data) for data in contents(whole[0].folder).values())
    assert full_disk(program, size // 2, expected)


@pytest.mark.slow
def test_a_disk_that_is_full_after_any_number_of_kib(program: Program, whole: tuple[Result, list[str]]) -> None:
    expected, room = essence(whole[0].folder), 0
    while full_disk(program, room, expected):
        room += int(os.environ.get("QUANTPIPE_DISK_STEP", "1024"))
    assert room > 100_000


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def damaged_everywhere(folder: Path, share: float, bit: int) -> list[Path]:
    """One bit of every file of a finished run is flipped, at this share of its length."""
    paths = [folder / name for name in contents(folder)]
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(flipped(data, min(int(share * len(data)), len(data) - 1), bit))
    return [path.with_name(path.name.removesuffix(".origin.json")) for path in paths]  # a side file is told as its file


def test_damage_in_every_file_is_said_and_mended(program: Program, whole: tuple[Result, list[str]]) -> None:
    """All files at once, at their beginning and in the middle."""
    expected = essence(whole[0].folder)
    folder = program.run(*RUN).folder
    for share, bit in ((0.0, 0), (0.5, 2)):
        paths = damaged_everywhere(folder, share, bit)
        result = goes_on(program, folder, expected, f"{share}")
        unsaid = [path.name for path in paths if str(path) not in result.err]
        assert not unsaid, (share, result.err)
        log = (folder / "main.log").read_text()
        assert all(str(path) in log for path in paths)


@pytest.mark.slow
def test_damage_at_any_place_of_every_file(program: Program, whole: tuple[Result, list[str]]) -> None:
    expected = essence(whole[0].folder)
    folder = program.run(*RUN).folder
    rng = np.random.default_rng(0)
    places = [(0.02, 5), (0.9999, 1)]
    places += [(float(rng.random()), int(rng.integers(8))) for _ in range(int(os.environ.get("QUANTPIPE_FLIPS", "40")))]
    for share, bit in places:
        paths = damaged_everywhere(folder, share, bit)
        result = goes_on(program, folder, expected, f"{share}")
        assert not [path.name for path in paths if str(path) not in result.err], (share, bit, result.err)
