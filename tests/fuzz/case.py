"""One case: made by (kind, seed), run by the program in a fork under limits, judged by what a user would see."""

from __future__ import annotations

import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.program import QUICK, RUN
from tests.fuzz.kinds import GOOD, KINDS

SECONDS = 60.0
BYTES = 4 << 30
CODES = (0, 2, 3)


@dataclass(frozen=True)
class Outcome:
    """How a case ended. `fault` is empty where it ended as it should."""

    kind: str
    seed: int
    code: int
    seconds: float
    mebibytes: int
    fault: str
    said: str


class Fuzzer:
    """Runs cases in `folder`. The program is imported once; every case is a fresh fork of it, ended after SECONDS."""

    def __init__(self, folder: Path) -> None:
        import mlflow  # noqa: F401
        import sklearn.datasets  # noqa: F401

        from quantpipe.app.start import main

        self._main: Callable[[], None] = main
        self._folder = folder
        self.good = folder / "good"
        code, _, _ = self._run(list(GOOD), folder / "good.case", self.good)
        if code:
            raise RuntimeError((folder / "good.case" / "err").read_text())

    def case(self, kind: str, seed: int) -> Outcome:
        place = self._folder / f"{kind}-{seed}"
        place.mkdir()
        arguments = KINDS[kind](place, random.Random(f"{kind} {seed}"), self.good)
        code, seconds, mebibytes = self._run(arguments, place, place / "run")
        out, err = ((place / name).read_text(errors="replace") for name in ("out", "err"))
        fault = _fault(code, out, err, seconds, mebibytes)
        said = next((line for line in err.splitlines()[::-1] if line.strip()), "")
        return Outcome(kind, seed, code, seconds, mebibytes, fault, said)

    def _run(self, arguments: list[str], place: Path, run: Path) -> tuple[int, float, int]:
        place.mkdir(exist_ok=True)
        flags = arguments[:2] if arguments[0] == "--config-dir" else []
        rest = arguments[len(flags) :]
        argv = [str(RUN), *flags, "tracking=none", *QUICK, f"hydra.run.dir={run}", *rest]
        (place / "command").write_text("\n".join(argv), errors="backslashreplace")
        begin = time.monotonic()
        pid = os.fork()
        if pid == 0:
            _become(argv, place, self._main)
        while True:
            done, status, usage = os.wait4(pid, os.WNOHANG)
            seconds = time.monotonic() - begin
            if done:
                return os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss >> 10
            if seconds > SECONDS:
                os.killpg(pid, signal.SIGKILL)
            time.sleep(0.005)


def _fault(code: int, out: str, err: str, seconds: float, mebibytes: int) -> str:
    errors = [line for line in err.splitlines() if line.startswith("error: ")]
    if seconds > SECONDS:
        return f"not done after {SECONDS:.0f} s"
    if code not in CODES:
        return f"exit code {code}"
    if "Traceback" in out + err:
        return "traceback"
    if code == 2 and len(errors) != 1 and not out:  # command=check and lint say it on standard output
        return f"{len(errors)} error paragraphs"
    if mebibytes > BYTES >> 20:
        return f"{mebibytes} MiB"
    return ""


def _become(argv: list[str], place: Path, main: Callable[[], Any]) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        for target, path in ((0, os.devnull), (1, place / "out"), (2, place / "err")):
            os.dup2(os.open(path, os.O_RDONLY if target == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC), target)
        os.chdir(place)
        resource.setrlimit(resource.RLIMIT_DATA, (BYTES + (1 << 30), BYTES + (1 << 30)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (BYTES, BYTES))
        os.environ |= {"QUANTPIPE_CACHE": "none", "COLUMNS": "120", "TERM": "dumb"}
        sys.argv = argv
        main()
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:  # a traceback is what is looked for: show it as Python would
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
