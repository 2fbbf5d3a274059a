"""Faults of quantpipe's own source, planted one at a time in a copy of the tree: does a tier of the tests find it?

    python -m tests.mutation.source --seed 1 --log mutants.jsonl
    python -m tests.mutation.source --seed 1 --log mutants.jsonl --table benchmarks/results/source_mutants.md

A sample of faults follows from the seed and the source. The tests of the packages concerned run first, then the tiers
asked for by `--tiers`; the first failure ends it. Each result is a line of the log, so that a run can be resumed, and
mutants can be run one by one (`--only`). With `--old REVISION`, what survived is planted in that revision, too, where
the file still has the same text, and tested by the tests that it has for the package.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.mutation.operators import Fault, faults

ROOT = Path(__file__).parents[2]

TESTS: Mapping[str, tuple[str, ...]] = {
    "quantpipe/intmath.py": ("intmath", "plan", "simulate", "verify"),
    "quantpipe/plan/formulas.py": ("functions",),
    "quantpipe/plan/programs": ("functions",),
    "quantpipe/plan": ("plan", "golden", "simulate", "realize"),
    "quantpipe/lowering": ("realize", "simulate", "golden", "ops", "tables", "graph"),
    "quantpipe/evaluate": ("evaluate", "mutation", "simulate"),
    "quantpipe/search": ("search", "golden"),
    "quantpipe/artifacts": ("artifacts", "tracking", "golden"),
}
"""The source that is given faults, and the folders of tests that are about it, the nearest first."""

TIERS: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "grid": ("-m", "grid"),
    "program": ("-m", "program"),
}

COUNT = 30
UNCHANGED = "unchanged"


def sources(root: Path, place: str) -> Iterator[Path]:
    """The files of a place that are given faults. Of `evaluate`, those of the comparison."""
    path = root / place
    files = [path] if path.suffix else sorted(path.rglob("*.py"))
    yield from (f for f in files if place != "quantpipe/evaluate" or f.stem.startswith("agreement"))


def sample(root: Path, seed: int, count: int = COUNT, within: Sequence[str] = tuple(TESTS)) -> list[Fault]:
    """Faults of all kinds and of all places in turn; which one of its kind and place, the seed says."""
    drawn = random.Random(seed)
    pools: dict[tuple[str, str], list[Fault]] = {}
    for place in within:
        for path in sources(root, place):
            for fault in faults(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")):
                pools.setdefault((place, fault.kind), []).append(fault)
    places, kinds = list(within), sorted({kind for _, kind in pools})
    chosen: list[Fault] = []
    for turn in range(count):
        place, first = places[turn % len(places)], turn % len(places) + turn // len(places)
        order = (kinds[(first + skipped) % len(kinds)] for skipped in range(len(kinds)))
        pool = next(pool for kind in order if (pool := pools.get((place, kind))))
        chosen.append(pool.pop(drawn.randrange(len(pool))))
    return chosen


def folders(path: str, root: Path) -> list[str]:
    """The tests about a source file."""
    place = next(place for place in TESTS if path == place or path.startswith(f"{place}/"))
    return [f"tests/{name}" for name in TESTS[place] if (root / "tests" / name).is_dir()]


def copied(revision: str | None, folder: Path) -> Path:
    """The tree as it is, or at a revision, without what git does not know."""
    if revision:
        packed = subprocess.run(["git", "archive", revision], cwd=ROOT, check=True, capture_output=True).stdout
        folder.mkdir()
        subprocess.run(["tar", "-x", "-C", str(folder)], input=packed, check=True)
        return folder
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def failing(tree: Path, arguments: list[str], seconds: float) -> str | None:
    """The first test that fails in a tree; None where all pass. Beyond the seconds, `timeout`."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--durations=0", *arguments]
    process = subprocess.Popen(
        command, cwd=tree, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return "timeout"
    if process.returncode in (0, 5):
        return None
    named = [line for line in output.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return named[0].split(" - ")[0] if named else (output.strip().splitlines() or ["no output"])[-1]


def verdict(fault: Fault | None, tree: Path, tiers: list[str], seconds: float) -> dict[str, Any]:
    """Plant a fault (or none), and run tests until one fails."""
    path = fault.path if fault else ""
    nearest = folders(path, tree) if fault else sorted({f for p in TESTS for f in folders(p, tree)})
    stages = {"package": nearest} | {tier: list(TIERS[tier]) for tier in tiers}
    start, found = time.perf_counter(), None
    kept = (tree / path).read_text(encoding="utf-8") if fault else ""
    if fault:
        (tree / path).write_text(fault.applied(kept), encoding="utf-8")
    ran = []
    try:
        for stage, arguments in stages.items():
            ran.append(stage)
            found = failing(tree, arguments, seconds)
            if found:
                break
    finally:
        if fault:
            (tree / path).write_text(kept, encoding="utf-8")
    stage = ran[-1] if found else "survived"
    return {"stage": stage, "by": found, "ran": ran, "seconds": round(time.perf_counter() - start)}


def moved_to(fault: Fault, text: str, root: Path) -> Fault | None:
    """The same fault in another version of its file, where the line stands there once."""
    line = (root / fault.path).read_text(encoding="utf-8").splitlines()[fault.line - 1]
    same = [other for other in faults(fault.path, text) if (other.before, other.after) == (fault.before, fault.after)]
    same = [other for other in same if text.splitlines()[other.line - 1] == line]
    return same[0] if len(same) == 1 else None


def read(log: Path) -> dict[str, dict[str, Any]]:
    """Results by mutant."""
    lines = log.read_text(encoding="utf-8").splitlines() if log.is_file() else []
    return {entry["mutant"]: entry for entry in map(json.loads, lines)}


def table(chosen: list[Fault], results: Mapping[str, Mapping[str, Any]], heading: str) -> str:
    """The results as a page."""
    rows = []
    counts = Counter[str]()
    for number, fault in enumerate(chosen, 1):
        result = results.get(str(fault))
        stage = "not run" if result is None else str(result["stage"])
        counts[stage] += 1
        by = "" if result is None else str(result["by"] or "ran: " + ", ".join(result["ran"]))
        change = str(fault).split(": ", 1)[1].replace("|", "\\|")
        rows.append(f"| {number} | {fault.kind} | `{fault.path}:{fault.line}` | `{change}` | {stage} | {by} |")
    total = ", ".join(f"{stage} {count}" for stage, count in sorted(counts.items()))
    head = ["| | kind | place | fault | killed by | test |", "|---:|---|---|---|---|---|"]
    return "\n".join(["# Faults planted in the source", "", heading, "", f"{total}.", "", *head, *rows, ""])


def main() -> int:
    """Run mutants, or write the table of those that were run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--only", type=int, nargs="*", help="numbers from 1; 0 is the unchanged tree")
    parser.add_argument("--within", nargs="*", default=list(TESTS), choices=list(TESTS), help="places of the faults")
    parser.add_argument("--count", type=int, default=COUNT)
    parser.add_argument("--tiers", nargs="*", default=list(TIERS), choices=list(TIERS))
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each tier; beyond them it is killed")
    parser.add_argument("--old", help="a revision in which the survivors are planted, too")
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    chosen = sample(ROOT, arguments.seed, arguments.count, arguments.within)
    results = read(arguments.log)
    if arguments.table:
        own = f" --within {' '.join(arguments.within)}" if arguments.within != list(TESTS) else ""
        own += f" --count {arguments.count}" if arguments.count != COUNT else ""
        heading = f"`python -m tests.mutation.source --seed {arguments.seed}{own}`."
        arguments.table.write_text(table(chosen, results, heading), encoding="utf-8")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        tree = copied(arguments.old, Path(folder) / "tree")
        for number in range(len(chosen) + 1) if arguments.only is None else arguments.only:
            fault = chosen[number - 1] if number else None
            name = str(fault) if fault else UNCHANGED
            if arguments.old:
                path = tree / fault.path if fault else tree
                fault = moved_to(fault, path.read_text(encoding="utf-8"), ROOT) if fault and path.is_file() else None
                if fault is None:
                    print(name, "not comparable", flush=True)
                    continue
            elif name in results:
                continue
            result = {"mutant": name, "old": arguments.old} | verdict(fault, tree, arguments.tiers, arguments.timeout)
            print(number, name, result["stage"], result["by"], f"{result['seconds']} s", flush=True)
            if not arguments.old:
                with arguments.log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(result) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
