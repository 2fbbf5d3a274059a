"""Record the duration and the memory of each stage and of its named parts, in addition to the console's output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from quantpipe.calibrate.measure import peak_rss_mb
from quantpipe.evaluate.spending import worked
from quantpipe.pipeline.settings import Console
from quantpipe.types.figures import TimelineRow

STATEMENTS = ("samples", "imported", "recovered")
"""Stages that only state a result: the time after them belongs to the stage before."""

PAGE, TRACKING = "page", "tracking"
"""Parts whose end comes after the report."""


@dataclass
class Spent:
    """Hold the seconds by the clock and by all cores, and the memory at the end in MiB: held, and the peak so far."""

    seconds: float = 0.0
    processor_seconds: float = 0.0
    memory_mb: float | None = None
    peak_mb: float = 0.0

    def add(self, since: tuple[float, float]) -> None:
        """Include the time since a moment (`worked`), and the memory at the present."""
        at, cores = worked()
        self.seconds += at - since[0]
        self.processor_seconds += cores - since[1]
        self.memory_mb, self.peak_mb = held_mb(), peak_rss_mb()


class Timed:
    """A console that notes when stages begin; everything is passed on to `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = worked()
        self._rows: list[TimelineRow] = []
        self._stages: list[Spent] = []
        self._since = self._began
        self._parts: dict[tuple[int, str], Spent] = {}
        self._open: list[tuple[int, str]] = []
        self._part_since = self._began

    def stage(self, name: str, note: str = "") -> None:
        """Report that a stage begins; a repeated name continues the stage."""
        self.enter(name)
        self._console.stage(name, note)

    def enter(self, name: str) -> None:
        """Count the time from now on for a stage, without a line of its own."""
        if name not in STATEMENTS and (not self._rows or self._rows[-1]["stage"] != name):
            self._close()
            start = self._since[0] - self._began[0]
            self._rows.append({"stage": name, "start": round(start, 3), "seconds": 0.0, "memory_mb": None})
            self._stages.append(Spent())

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count what happens inside as a part of the present stage; an inner part is not counted in the outer one."""
        self._pause()
        self._open.append((len(self._rows) - 1, name))
        try:
            yield
        finally:
            self._pause()
            self._open.pop()

    def progress(self, name: str) -> Callable[[int, int, str], None]:
        """Return a function to call with (done, total, note)."""
        return self._console.progress(name)

    def warn(self, text: str) -> None:
        """Tell a warning."""
        self._console.warn(text)

    def rows(self) -> list[TimelineRow]:
        """Return the stages until now."""
        self._close()
        return list(self._rows)

    def account(self) -> list[tuple[str, str | None, Spent]]:
        """Return each stage until now, followed by its parts."""
        self._close()
        found: list[tuple[str, str | None, Spent]] = []
        for number, (row, spent) in enumerate(zip(self._rows, self._stages, strict=True)):
            found.append((row["stage"], None, spent))
            found += [(row["stage"], name, part) for (place, name), part in self._parts.items() if place == number]
        return found

    def seconds_of(self, *names: str) -> dict[str, float]:
        """Return the seconds of some parts, whichever their stage."""
        found = dict.fromkeys(names, 0.0)
        for (_, name), spent in self._parts.items():
            if name in found:
                found[name] += spent.seconds
        return found

    def _pause(self) -> None:
        """Close the account of the innermost part that is open."""
        if self._open:
            self._parts.setdefault(self._open[-1], Spent()).add(self._part_since)
        self._part_since = worked()

    def _close(self) -> None:
        if self._rows:
            spent, last = self._stages[-1], self._rows[-1]
            spent.add(self._since)
            last["seconds"], last["memory_mb"] = round(spent.seconds, 3), spent.memory_mb
        self._since = worked()


def timeline_of(console: Console) -> list[TimelineRow]:
    """Return the stages that a console has noted; none where it notes nothing."""
    return console.rows() if isinstance(console, Timed) else []


def part_of(console: Console, name: str) -> AbstractContextManager[None]:
    """Count what happens inside as a part of the present stage, where the console notes that."""
    return console.part(name) if isinstance(console, Timed) else nullcontext()


def enter_stage(console: Console, name: str) -> None:
    """Count the time from now on for a stage without a line of its own, where the console notes that."""
    if isinstance(console, Timed):
        console.enter(name)


def held_mb() -> float | None:
    """Return the resident memory of this process, in MiB; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * _PAGE / 2**20, 1)


_PAGE = 4096
