"""Report the progress of a run that was started from Python: to a function of the caller's, or not at all."""

from __future__ import annotations

import functools
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = str(Path(__file__).resolve().parents[1])


class QuantpipeWarning(UserWarning):
    """Something about a run that its caller should know; the same sentences are in `Result.warnings`."""


@dataclass(frozen=True)
class ProgressEvent:
    """One sign of life of a run.

    Attributes:
        stage: The stage that is at work, such as `calibrate` or `search`.
        done: How much of it is done.
        total: How much there is to do; 0 where that is not known, and when a stage begins.
        note: A remark, such as the best score so far.
    """

    stage: str
    done: int = 0
    total: int = 0
    note: str = ""


Listener = Callable[[ProgressEvent], object]


class Listening:
    """The console of a run: hands everything to a listener, and keeps the warnings."""

    def __init__(self, progress: Listener | bool | None) -> None:
        self.warnings: list[str] = []
        self._listener: Listener = TextLine() if progress is True else progress if callable(progress) else _silent

    def stage(self, name: str, note: str = "") -> None:
        """Tell the listener that a stage begins."""
        self._listener(ProgressEvent(name, note=note))

    def progress(self, name: str) -> Callable[[int, int, str], None]:
        """Return a function that reports the progress of a phase to the listener."""

        def update(done: int, total: int, note: str) -> None:
            self._listener(ProgressEvent(name, done, total, note))

        return update

    def warn(self, text: str) -> None:
        """Give a Python warning that names the caller's own line; once for each sentence."""
        if text not in self.warnings:
            self.warnings.append(text)
            warnings.warn(text, QuantpipeWarning, stacklevel=_callers_level())


class TextLine:
    """Write one line per stage on standard error.

    Where the line can be written over, in a terminal and in a notebook, it also shows how far the stage is.
    """

    SECONDS = 0.1
    """Between two changes of a line."""

    def __init__(self, stream: Any = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live = self._stream.isatty() or type(self._stream).__module__.startswith("ipykernel")
        self._begun = time.monotonic()
        self._last, self._width = 0.0, 0

    def __call__(self, event: ProgressEvent) -> None:
        """Write the line of an event."""
        if event.total == 0 and event.done == 0:
            self._over("")
            seconds = time.monotonic() - self._begun
            self._stream.write(f"{seconds:6.1f} s  {event.stage:<10} {event.note}".rstrip() + "\n")
            self._stream.flush()
        elif self._live and (time.monotonic() - self._last >= self.SECONDS or event.done == event.total):
            self._last = time.monotonic()
            of = f"{event.done} of {event.total}" if event.total else str(event.done)
            self._over(f"          {event.stage:<10} {of}  {event.note}".rstrip())

    def _over(self, text: str) -> None:
        if self._live and (text or self._width):
            self._stream.write("\r" + text.ljust(self._width) + ("" if text else "\r"))
            self._width = len(text)
            self._stream.flush()


def _silent(event: ProgressEvent) -> None:
    """Ignore the progress: nobody listens."""


def _callers_level() -> int:
    """Return the `stacklevel` of the first line outside the package, seen from `Listening.warn`."""
    level, frame, ours = 1, sys._getframe(1), (PACKAGE, functools.__file__)  # stages are cached properties
    while frame.f_back is not None and frame.f_code.co_filename.startswith(ours):
        level, frame = level + 1, frame.f_back
    return level
