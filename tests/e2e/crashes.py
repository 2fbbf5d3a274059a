"""Commands that are killed at a call that changes a file, or whose disk is full there; and the campaign over all calls.

    python -m tests.e2e.crashes --workers 2 --disk-step 8192 --out benchmarks/results/crash.md     # hours
    python -m tests.e2e.crashes --every 4 --cases explain export_vectors                            # a part

Each case is one command. Where it ends early, the same command again ends with the files of one that was not stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from quantpipe.artifacts import read_npz
from tests.crash import KILLED
from tests.e2e.program import NO_TRACKING, QUICK, Program, Result, Zygote, contents, read

FEW = (
    "dataset.samples.calibrate=16",
    "dataset.samples.search=16",
    "dataset.samples.evaluate=16",
    "evaluate.agreement_samples=4",
    "evaluate.layer_samples=4",
    "evaluate.latency_runs=1",
    "evaluate.baseline=none",
    "effort=thorough",  # limits by the clock would leave out other parts each time
)
SEARCHED = ("search=random", "objective.cost=bits", "search.max_evaluations=3")
RUN = (*SEARCHED, "recover=default", "recover.kl_target=0", *FEW)
LOSING = ("hardware=vta", "threshold=max_range", "recover=none", "precision.loss_above=0.0001",
          "precision.max_evaluations=6")  # fmt: skip
VOLATILE = {
    *("seconds", "evaluations_per_second", "float_pass_seconds", "peak_rss_mb", "latency", "speed"),
    *("folder", "evaluator", "timeline", "latency_ms", "effort", "command"),
}
ROUNDED = {"cut_off_sqnr_db"}
"""Numbers that differ in their ninth digit if statistics were read from a file."""
TIMED = "times as long as the float model"
"""In a warning that comes with what the clock says."""
EXACT = ("model.onnx", "plan.json", "topology.json", "choices.json", "data.json", "model.c", ".hex")


@dataclass(frozen=True)
class Case:
    """A command, the commands before it in the same folder, and parts of the calls at which a kill hurts most."""

    name: str
    command: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()
    hurts: tuple[tuple[str, str], ...] = ()


CASES = (
    Case("run", RUN, hurts=(
        ("write", "trials.jsonl"), ("os.rename", "/realize/.model.onnx.origin"),
        ("os.rename", "/evaluate/partial/.realized"))),
    Case("precision, several forms, explained report",
         (*LOSING, "realize=[integer,c]", "evaluate.explain=auto", *FEW), hurts=(
        ("write", "/precision/trials.jsonl"), ("os.rename", "/precision/.precision.json"),
        ("os.rename", "/realize/.model.c."), ("os.rename", "/realize/.model.c.origin"),
        ("os.rename", "/evaluate/partial/.form_c"))),
    Case("explain", ("command=explain", "explain.run=FOLDER", "explain.culprits=1", "explain.samples=4"),
         before=((*LOSING, *FEW),), hurts=(("write", ""), ("os.rename", "/.explain.json"))),
    Case("export_vectors", ("command=export_vectors", "runs=[FOLDER]", "vectors.samples=1", "vectors.probes=false"),
         before=((*RUN,),), hurts=(("open", "/vectors/net/ops/.0001"), ("os.rename", "/vectors/.kit"))),
)  # fmt: skip


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


def differences(found: Any, expected: Any, at: str = "") -> Iterator[str]:
    """Where two trees of plain data differ."""
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in sorted({*found, *expected}):
            yield from differences(found.get(key), expected.get(key), f"{at}/{key}")
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for number, pair in enumerate(zip(found, expected, strict=True)):
            yield from differences(*pair, f"{at}/{number}")
    elif found != expected and not (at.rpartition("/")[2] in ROUNDED and _is_near(found, expected)):
        yield f"{at}: {str(found)[:60]} is not {str(expected)[:60]}"


def _is_near(found: Any, expected: Any) -> bool:
    return isinstance(found, float) and isinstance(expected, float) and abs(found - expected) < 1e-6


@dataclass
class Whole:
    """A case that was never stopped: what it left, its calls, and the folder as it was before the command."""

    case: Case
    program: Program
    expected: dict[str, Any]
    calls: list[str]
    size: int
    prepared: Path | None

    @classmethod
    def of(cls, case: Case, program: Program) -> Whole:
        """Run the case to its end."""
        prepared = program.cwd / "prepared"
        for command in case.before:
            assert program.run(*command, folder=prepared).code == 0, command
        whole = cls(case, program, {}, [], 0, prepared if case.before else None)
        result, calls = whole.crashed(program, "whole")
        assert result.code == 0, result.err
        whole.expected = essence(result.folder)
        whole.size = _bytes_in(result.folder) - (_bytes_in(prepared) if case.before else 0)
        whole.calls = [call.replace(str(result.folder), "") for call in calls]
        return whole

    def crashed(
        self, program: Program, name: str, kill_at: int = 0, room: int | None = None
    ) -> tuple[Result, list[str]]:
        """The command in a fresh folder, stopped at a call or for want of room."""
        folder, calls = program.cwd / name, program.cwd / ".calls"
        if self.prepared is not None:
            shutil.copytree(self.prepared, folder)
        calls.unlink(missing_ok=True)
        crash = {"root": str(folder), "kill_at": kill_at, "room": room, "calls": str(calls)}
        result = program.bare(*self._arguments(folder), folder=folder, crash=crash)
        return result, calls.read_text().splitlines() if calls.exists() else []

    def _arguments(self, folder: Path) -> tuple[str, ...]:
        command = [part.replace("FOLDER", str(folder)) for part in self.case.command]
        named = command[0].startswith("command=")
        return tuple(command) if named else (NO_TRACKING, *QUICK, *command, f"hydra.run.dir={folder}")

    def goes_on(self, program: Program, folder: Path, why: str) -> Result:
        """The same command again, which ends as if nothing had happened."""
        result = program.bare(*self._arguments(folder), folder=folder)
        assert result.code == 0, (why, result.err)
        assert not (differing := list(differences(essence(folder), self.expected))), (why, differing[:3])
        left = [p for p in folder.rglob("*") if "quantpipe-tmp" in p.name or p.name in (".commit.json", "partial")]
        assert not left, (why, left)
        return result

    def kill(self, program: Program, number: int) -> Result:
        """Killed at a call, and gone on with."""
        name, why = f"kill-{number}", f"{self.case.name}, call {number}: {self.calls[number - 1]}"
        assert self.crashed(program, name, kill_at=number)[0].code == KILLED, why
        found = self.goes_on(program, program.cwd / name, why)
        shutil.rmtree(program.cwd / name)
        return found

    def fill(self, program: Program, room: int) -> bool:
        """Whether the disk was too small; then the command says so, and goes on where there is room."""
        name = f"room-{room}"
        result, _ = self.crashed(program, name, room=room)
        small = result.code != 0
        if small:
            assert "No space left on device" in result.paragraph
            self.goes_on(program, program.cwd / name, f"{self.case.name}, {room} bytes")
        shutil.rmtree(program.cwd / name, ignore_errors=True)
        return small

    def where_it_hurts(self) -> list[int]:
        """The numbers of the calls that the case names."""
        found = [next((n for n, call in enumerate(self.calls, start=1) if first in call and second in call), 0)
                 for first, second in self.case.hurts]  # fmt: skip
        assert all(found), [call for call in self.calls if "rename" in call or "trials" in call]
        return found


def _bytes_in(folder: Path) -> int:
    return sum(len(data) for data in contents(folder).values())


def over_all(
    workers: list[Program], work: Callable[[Program, Any], Any], items: Iterable[Any]
) -> tuple[int, list[str]]:
    """(how many, what went wrong) of a piece of work for each item, on several programs at once."""
    free: queue.Queue[Program] = queue.Queue()
    for program in workers:
        free.put(program)

    def one(item: Any) -> str:
        program = free.get()
        try:
            work(program, item)
            return ""
        except AssertionError as error:
            return " ".join(str(error).split())[:300]
        finally:
            free.put(program)

    with ThreadPoolExecutor(len(workers)) as pool:
        found = list(pool.map(one, items))
    return len(found), [fault for fault in found if fault]


def main() -> int:
    """Write the table; exit code 1 where a command did not go on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--disk-step", type=int, default=1024, help="bytes between two sizes of the disk")
    parser.add_argument("--every", type=int, default=1, help="of the calls, every so many")
    parser.add_argument("--cases", nargs="*", default=[c.name for c in CASES])
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    os.environ |= {"QUANTPIPE_CACHE": "none", "QUANTPIPE_FIGURES": "none"}
    lines = [
        "# Commands that are stopped",
        "",
        "Each command is killed at calls that change a file, and run on disks of several sizes.",
        "The same command then runs again. It has gone on if every file equals one of a command that was not stopped.",
        "",
        "| command | calls that change a file | killed at | gone on | disk step, bytes | disks | gone on | seconds |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    faults: list[str] = []
    with tempfile.TemporaryDirectory(prefix="quantpipe-crash-") as folder:
        workers = [Program(Path(folder) / f"worker{n}", Zygote()) for n in range(given.workers)]
        for case in (c for c in CASES if c.name in given.cases):
            for program in workers:
                shutil.rmtree(program.cwd, ignore_errors=True)
                program.cwd.mkdir()
            begin, whole = time.monotonic(), Whole.of(case, workers[0])
            kills, killed = over_all(workers, whole.kill, range(1, len(whole.calls) + 1, given.every))
            disks, full = over_all(workers, whole.fill, range(0, whole.size, given.disk_step))
            lines.append(f"| {case.name} | {len(whole.calls)} | {kills} | {kills - len(killed)} | {given.disk_step} | "
                         f"{disks} | {disks - len(full)} | {time.monotonic() - begin:.0f} |")  # fmt: skip
            faults += [*killed, *full]
            sys.stderr.write(lines[-1] + "\n" + "".join(f"{fault}\n" for fault in [*killed, *full]))
        for program in workers:
            program.zygote.close()
    text = "\n".join([*lines, *([""] if faults else []), *(f"- {fault}" for fault in faults)]) + "\n"
    sys.stdout.write(text)
    if given.out:
        given.out.write_text(text)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
