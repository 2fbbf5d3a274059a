"""Record the duration and the final memory of each stage, in addition to the console's output."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from quantpipe.pipeline.settings import Console
from quantpipe.types.figures import TimelineRow


class Timed:
    """A console that notes when stages begin; everything is passed on to `console`."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.perf_counter()
        self._rows: list[TimelineRow] = []

    def stage(self, name: str, note: str = "") -> None:
        """Report that a stage begins; a repeated name continues the stage."""
        if not self._rows or self._rows[-1]["stage"] != name:
            self._close()
            start = time.perf_counter() - self._began
            self._rows.append({"stage": name, "start": round(start, 3), "seconds": 0.0, "memory_mb": None})
        self._console.stage(name, note)

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

    def _close(self) -> None:
        if self._rows:
            last = self._rows[-1]
            last["seconds"] = round(time.perf_counter() - self._began - last["start"], 3)
            last["memory_mb"] = _held_mb()


def timeline_of(console: Console) -> list[TimelineRow]:
    """Return the stages that a console has noted; none where it notes nothing."""
    return console.rows() if isinstance(console, Timed) else []


def _held_mb() -> float | None:
    """Return the resident memory of this process, in MiB; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return round(pages * _PAGE / 2**20, 1)


_PAGE = 4096
