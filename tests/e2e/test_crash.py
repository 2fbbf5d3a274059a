"""The whole program killed at calls that change a file, on a full disk, and with damaged files: the same command goes
on, and ends with what a run that was never stopped leaves."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.crash import KILLED
from tests.e2e.crashes import CASES, FEW, RUN, SEARCHED, Case, Whole, over_all
from tests.e2e.program import Program, Zygote, contents, read

TORN = "16 samples, going on"
Wholes = Callable[[Case], Whole]


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory, zygote: Zygote) -> Wholes:
    """A case that was never stopped; each is run once."""
    made: dict[str, Whole] = {}

    def of(case: Case) -> Whole:
        if case.name not in made:
            made[case.name] = Whole.of(case, Program(tmp_path_factory.mktemp("whole"), zygote))
        return made[case.name]

    return of


each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)


@each_case
def test_killed_where_it_hurts(case: Case, program: Program, wholes: Wholes) -> None:
    whole = wholes(case)
    for number in whole.where_it_hurts():
        result = whole.kill(program, number)
        if case is CASES[0]:
            assert (TORN in result.err) == ("/evaluate/partial/" in whole.calls[number - 1])


def test_a_run_that_goes_on_with_another_result_is_seen(program: Program, wholes: Wholes) -> None:
    whole = wholes(CASES[0])
    name = next(name for name in whole.expected if name.endswith("report.json"))
    kept = whole.expected[name]
    try:
        whole.expected[name] = {**kept, "seed": -1}
        with pytest.raises(AssertionError, match="/seed"):
            whole.kill(program, 1)
    finally:
        whole.expected[name] = kept


def test_a_longer_search_killed_before_its_strategy_is_written(program: Program) -> None:
    """All its trials are in the log then, and the strategy is still that of the shorter one."""
    search = (*SEARCHED[:2], "stages=[calibrate,search]", *FEW)
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
@each_case
def test_killed_at_every_call(case: Case, program: Program, wholes: Wholes) -> None:
    whole = wholes(case)
    assert over_all([program], whole.kill, range(1, len(whole.calls) + 1))[1] == []


@each_case
def test_a_disk_that_is_full_in_the_middle(case: Case, program: Program, wholes: Wholes) -> None:
    whole = wholes(case)
    assert whole.fill(program, whole.size // 2)


@pytest.mark.slow
@each_case
def test_a_disk_that_is_full_after_any_number_of_kib(case: Case, program: Program, wholes: Wholes) -> None:
    whole, step = wholes(case), int(os.environ.get("QUANTPIPE_DISK_STEP", "1024"))
    assert over_all([program], whole.fill, range(0, whole.size, step))[1] == []


def flipped(data: bytes, position: int, bit: int) -> bytes:
    return data[:position] + bytes([data[position] ^ (1 << bit)]) + data[position + 1 :]


def damaged_everywhere(folder: Path, share: float, bit: int) -> list[Path]:
    """One bit of every file of a finished run is flipped, at this share of its length."""
    paths = [folder / name for name in contents(folder)]
    for path in paths:
        data = path.read_bytes()
        path.write_bytes(flipped(data, min(int(share * len(data)), len(data) - 1), bit))
    return [path.with_name(path.name.removesuffix(".origin.json")) for path in paths]  # a side file is told as its file


def test_damage_in_every_file_is_said_and_mended(program: Program, wholes: Wholes) -> None:
    """All files at once, at their beginning and in the middle."""
    whole = wholes(CASES[0])
    folder = program.run(*RUN).folder
    for share, bit in ((0.0, 0), (0.5, 2)):
        paths = damaged_everywhere(folder, share, bit)
        result = whole.goes_on(program, folder, f"{share}")
        unsaid = [path.name for path in paths if str(path) not in result.err]
        assert not unsaid, (share, result.err)
        log = (folder / "main.log").read_text()
        assert all(str(path) in log for path in paths)


@pytest.mark.slow
def test_damage_at_any_place_of_every_file(program: Program, wholes: Wholes) -> None:
    whole = wholes(CASES[0])
    folder = program.run(*RUN).folder
    rng = np.random.default_rng(0)
    places = [(0.02, 5), (0.9999, 1)]
    places += [(float(rng.random()), int(rng.integers(8))) for _ in range(int(os.environ.get("QUANTPIPE_FLIPS", "40")))]
    for share, bit in places:
        paths = damaged_everywhere(folder, share, bit)
        result = whole.goes_on(program, folder, f"{share}")
        assert not [path.name for path in paths if str(path) not in result.err], (share, bit, result.err)
