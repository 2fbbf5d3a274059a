"""Starting the program as a user does, and looking at what it left behind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.schemas import faults

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "run.py"
NO_TRACKING = "tracking=none"
QUICK = ("evaluate.latency_runs=5", "evaluate.latency_seconds=1", "evaluate.baseline=none", "evaluate.explain=none")
LIMIT_SECONDS = 300


@dataclass(frozen=True)
class Result:
    """How a run ended."""

    code: int
    out: str
    err: str
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        """The report, which is as its schema says, whatever was run."""
        found = read(self.folder / "evaluate" / "report.json")
        assert faults("report", found) == []
        return found

    @property
    def strategy(self) -> dict[str, Any]:
        """What was decided, without the results."""
        found: dict[str, Any] = read(self.folder / "search" / "strategy.json")["strategy"]
        return found

    @property
    def paragraph(self) -> str:
        """The one error paragraph of a refused run (behind the lines that say how far it came)."""
        assert self.code == 2, (self.code, self.out, self.err)
        assert "Traceback" not in self.out + self.err
        errors = [line for line in self.err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1, self.err
        assert self.err.rstrip().splitlines()[-1] == errors[0], self.err
        return errors[0]


@dataclass
class Program:
    """Runs in `cwd` (fresh for each test). `run` forks a warm process, `start` is the command itself."""

    cwd: Path
    zygote: Zygote
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *arguments: str, folder: str | Path = "run", file_limit: int = 0) -> Result:
        """To the end, without MLflow, in the run folder `folder` below `cwd`."""
        place = self.cwd / folder
        argv = [str(RUN), NO_TRACKING, *QUICK, *arguments, f"hydra.run.dir={place}"]
        return self.bare(*argv[1:], folder=place, file_limit=file_limit)

    def crash(
        self, *arguments: str, folder: str | Path = "run", kill_at: int = 0, room: int | None = None
    ) -> tuple[Result, list[str]]:
        """As `run`, killed at a call that changes a file, or with a disk of `room` bytes; the calls it made, unless it
        was killed."""
        place, calls = self.cwd / folder, self.cwd / ".calls"
        calls.unlink(missing_ok=True)
        argv = [NO_TRACKING, *QUICK, *arguments, f"hydra.run.dir={place}"]
        crash = {"root": str(place), "kill_at": kill_at, "room": room, "calls": str(calls)}
        result = self.bare(*argv, folder=place, crash=crash)
        return result, calls.read_text().splitlines() if calls.exists() else []

    def bare(
        self, *arguments: str, folder: Path | None = None, file_limit: int = 0, crash: dict[str, Any] | None = None
    ) -> Result:
        """With exactly these arguments."""
        while (self.cwd / "outputs" / time.strftime("%Y-%m-%d/%H-%M-%S")).exists():
            time.sleep(0.05)  # folders are named by the second, in which a warm process may run twice
        out, err = self.cwd / ".stdout", self.cwd / ".stderr"
        code = self.zygote.ask(
            {
                "argv": [str(RUN), *arguments],
                "cwd": str(self.cwd),
                "env": environment(self.env),
                "stdout": str(out),
                "stderr": str(err),
                "file_limit": file_limit,
                "crash": crash,
            }
        )
        return Result(code, out.read_text(), err.read_text(), folder or self.cwd)

    def start(self, *arguments: str, folder: str | Path = "run") -> subprocess.Popen[str]:
        """The real command in the background, as `run` gives it."""
        command = [sys.executable, str(RUN), NO_TRACKING, *QUICK, *arguments, f"hydra.run.dir={self.cwd / folder}"]
        return subprocess.Popen(
            command,
            cwd=self.cwd,
            env=environment(self.env),
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            preexec_fn=_listen_to_interrupts,
        )


def _listen_to_interrupts() -> None:
    """A job that a shell starts in the background inherits SIGINT ignored; a user's terminal does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Zygote:
    """The warm process; it imports further modules once, where many runs need them."""

    def __init__(self, *modules: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.e2e.zygote", *modules],
            cwd=ROOT,
            env=environment({}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, job: dict[str, Any]) -> int:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], LIMIT_SECONDS)
        assert ready, f"no end after {LIMIT_SECONDS} s: {job['argv']}"
        return int(self._process.stdout.readline())

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def environment(extra: dict[str, str]) -> dict[str, str]:
    """This process's, without what would change a run."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "HYDRA_"))}
    return {**kept, "COLUMNS": "120", "TERM": "dumb", **extra}


def read(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run folder but logs, locks and Hydra's own, by relative path."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    shown = {str(p.relative_to(folder)): p.read_bytes() for p in files}
    return {name: data for name, data in shown.items() if not name.startswith(".") and not name.endswith(".log")}
