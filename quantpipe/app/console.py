"""How a run shows where it is: one line per stage, a progress bar with time left where the terminal can draw one."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Update = Callable[[int, int, str], None]


def plain(*, stderr: bool = False) -> Console:
    """A console that shows text as it is: names of files and nodes may hold what rich would read as markup, such as
    `[x]` or `:smile:`."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def say(text: str, head: str = "error: ") -> None:
    """One paragraph on standard error."""
    plain(stderr=True).print(f"{head}{text}", soft_wrap=True)


class RichConsole:
    """Writes to standard error, so that standard output holds results only."""

    def __init__(self) -> None:
        self._console = plain(stderr=True)
        self._bars: Progress | None = None
        self._started = time.perf_counter()

    def announce(self, text: str) -> None:
        self._console.print(text, style="dim", soft_wrap=True)

    def stage(self, name: str, note: str = "") -> None:
        self.finish()
        seconds = time.perf_counter() - self._started
        self._console.print(f"{seconds:6.1f} s  {name:<10} {note}", soft_wrap=True)

    def warn(self, text: str) -> None:
        self._console.print(f"warning: {text}", style="yellow", soft_wrap=True)

    def progress(self, name: str) -> Update:
        """A bar; its length may be unknown (0) and may change."""
        self.finish()
        if not self._console.is_terminal:
            return lambda done, total, note: None
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bars = Progress(*columns, console=self._console, transient=True)
        self._bars.start()
        bar = self._bars.add_task(name, total=None, note="")
        bars = self._bars

        def update(done: int, total: int, note: str) -> None:
            bars.update(bar, completed=done, total=total or None, note=note)

        return update

    def finish(self) -> None:
        """Take the bar off the screen."""
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
