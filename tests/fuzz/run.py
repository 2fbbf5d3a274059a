"""The long run: `python -m tests.fuzz.run --cases 200 --seed 1 --readers 1000 --out benchmarks/results/fuzz.md`.

So many cases of every kind (or of those named by --kinds), each a run of the program on input that was changed at
random by (kind, seed). The table says how they ended; every case that did not end
as it should is listed with its seed, and `--keep FOLDER` keeps its files. Exit code 1 where there is one.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.case import Fuzzer, Outcome
from tests.fuzz.kinds import KINDS
from tests.fuzz.readers import READERS, fails


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no case of the program begins after it")
    parser.add_argument("--readers", type=int, default=0, help="cases of every reader alone; of models a tenth of it")
    given = parser.parse_args()
    found: list[Outcome] = []
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="quantpipe-fuzz-") as folder:
        fuzzer = Fuzzer(Path(folder))
        for seed in range(given.seed, given.seed + given.cases):
            for kind in given.kinds if time.monotonic() - begin < given.seconds else ():
                outcome = fuzzer.case(kind, seed)
                found.append(outcome)
                place = Path(folder) / f"{kind}-{seed}"
                if outcome.fault:
                    sys.stderr.write(f"{kind} {seed}: {outcome.fault}: {outcome.said[:300]}\n")
                    if given.keep:
                        shutil.copytree(place, given.keep / place.name, dirs_exist_ok=True)
                shutil.rmtree(place)
    text = table(found, given.seed)
    faults = [o.fault for o in found if o.fault]
    if given.readers:
        rows, failed = read_all(given.readers, given.seed)
        text, faults = text + rows, faults + failed
    sys.stdout.write(text)
    if given.out:
        given.out.write_text(text)
    return 1 if faults else 0


def read_all(cases: int, seed: int) -> tuple[str, list[str]]:
    """(rows of Markdown, faults) of the readers alone."""
    lines = [
        "",
        "The readers alone, in one process:",
        "",
        "| reader | cases | faults | seconds |",
        "|---|---:|---:|---:|",
    ]
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="quantpipe-fuzz-") as folder:
        for reader in READERS:
            count, begin = cases // 10 if reader == "model" else cases, time.monotonic()
            failed = {s: fault for s in range(seed, seed + count) if (fault := fails(reader, s, Path(folder)))}
            found += [f"- {reader} {number}: {fault[:200]}" for number, fault in failed.items()]
            lines.append(f"| {reader} | {count} | {len(failed)} | {time.monotonic() - begin:.0f} |")
    return "\n".join([*lines, *([""] if found else []), *found]) + "\n", found


def table(found: Sequence[Outcome], seed: int) -> str:
    """The result as Markdown."""
    lines = [
        "# Bad input",
        "",
        f"{len(found)} runs of the program on input changed at random (seeds from {seed} on), each in a process of its "
        "own that may take 60 s and 4 GiB. As it should be: exit code 0, 2 or 3, one paragraph, no traceback.",
        "",
        "| kind | cases | exit 0 | exit 2 | exit 3 | faults | slowest | most memory |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for kind in dict.fromkeys(o.kind for o in found):
        part = [o for o in found if o.kind == kind]
        codes = Counter(o.code for o in part)
        numbers = [len(part), codes[0], codes[2], codes[3], sum(bool(o.fault) for o in part)]
        slowest, most = max(o.seconds for o in part), max(o.mebibytes for o in part)
        lines.append(f"| {kind} | {' | '.join(map(str, numbers))} | {slowest:.1f} s | {most} MiB |")
    faults = [f"- {o.kind} {o.seed}: {o.fault}" for o in found if o.fault]
    return "\n".join([*lines, *([""] if faults else []), *faults]) + "\n"


if __name__ == "__main__":
    raise SystemExit(main())
