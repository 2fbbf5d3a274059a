"""Show the progress of a run: one line per stage, and a progress bar with time left where the terminal can draw one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.text import Text

from quantpipe.app.mainlog import LOG, Lines
from quantpipe.passwords import printable

Update = Callable[[int, int, str], None]

LINE_SECONDS = 30.0
"""Between two lines about progress."""


class PlainConsole(Console):
    """rich's console, which shows control characters of texts as escapes; its own, of colours and bars, it sends."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text for rich, without control characters."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield the parts of what is shown."""
        for segment in super().render(renderable, options):
            shown = segment.text if segment.control else printable(segment.text)
            yield segment if shown == segment.text else Segment(shown, segment.style)


def plain(*, stderr: bool = False) -> Console:
    """Return a console that shows text as it is.

    Names of files and nodes may hold what rich would read as markup, such as `[x]` or `:smile:`.
    """
    return PlainConsole(stderr=stderr, markup=False, emoji=False, highlight=False)


def say(text: str, head: str = "error: ") -> None:
    """Print one paragraph on standard error."""
    plain(stderr=True).print(f"{head}{text}", soft_wrap=True)


class RichConsole:
    """Writes to standard error, so that standard output holds results only.

    Args:
        verbosity: quiet (warnings alone), normal (stages with their progress, too), verbose (all that main.log has).
    """

    def __init__(self, verbosity: str = "normal") -> None:
        self._console = plain(stderr=True)
        self._told = verbosity == "normal"
        self._lines_of_log = logging.StreamHandler() if verbosity == "verbose" else None
        if self._lines_of_log is not None:
            self._lines_of_log.setFormatter(Lines())
            LOG.addHandler(self._lines_of_log)
        self._bars: Progress | None = None
        self._started = time.perf_counter()

    def announce(self, text: str) -> None:
        """Print a line that belongs to no stage, and log it."""
        LOG.info("%s", text)
        if self._told:
            self._console.print(text, style="dim", soft_wrap=True)

    def stage(self, name: str, note: str = "") -> None:
        """Print the beginning of a stage with the time since the start, and log it."""
        self._take_off()
        seconds = time.perf_counter() - self._started
        LOG.info("%-10s %s", name, note)
        if self._told:
            self._console.print(f"{seconds:6.1f} s  {name:<10} {note}", soft_wrap=True)
            self._run(name)

    def _run(self, name: str) -> None:
        """Show that a stage runs, and for how long, until it has a bar or ends."""
        if self._console.is_terminal:
            columns = (TextColumn("         "), SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
            self._bars = Progress(*columns, console=self._console, transient=True)
            self._bars.start()
            self._bars.add_task(name, total=None)

    def warn(self, text: str) -> None:
        """Print a warning, and log it."""
        LOG.warning("%s", text)
        if self._lines_of_log is None:
            self._console.print(f"warning: {text}", style="yellow", soft_wrap=True)

    def progress(self, name: str) -> Update:
        """Return a function that moves a bar; its length may be unknown (0) and may change.

        Without a terminal, and in main.log, there is a line from time to time instead.
        """
        self._take_off()
        tell = self._lines(name)
        if not (self._console.is_terminal and self._told):
            return tell
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
            tell(done, total, note)

        return update

    def _lines(self, name: str) -> Update:
        """Return progress in lines, for long work; the terminal has its bar."""
        begin = last = time.perf_counter()
        first: int | None = None

        def update(done: int, total: int, note: str) -> None:
            nonlocal last, first
            now = time.perf_counter()
            first = done if first is None else first
            if now - last < LINE_SECONDS:
                return
            last = now
            left = (now - begin) / (done - first) * (total - done) if total and done > first else None
            text = f"{name} {done}{f'/{total}' if total else ''}{'' if left is None else f', {left:.0f} s left'} {note}"
            LOG.info("%s", text.rstrip())
            if self._told and not self._console.is_terminal:
                seconds = now - self._started
                self._console.print(f"{seconds:6.1f} s  {text}", soft_wrap=True, highlight=False, markup=False)

        return update

    def finish(self) -> None:
        """Remove the bar from the screen; nothing is reported after this."""
        self._take_off()
        if self._lines_of_log is not None:
            LOG.removeHandler(self._lines_of_log)

    def _take_off(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None
