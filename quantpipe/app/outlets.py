"""Every way by which text leaves the program: standard output, standard error, lines of logs. All is concealed."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Any, TextIO

from quantpipe.passwords import conceal, printable


class ConcealingStream:
    """A text stream whose writes are concealed; all else is the stream's own.

    `lost` is the first error of writing it; what follows goes to /dev/null, so that a run is not lost with its lines.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.lost: OSError | None = None

    def write(self, text: str) -> int:
        """Write a text without passwords, and return the length of the text that was given."""
        with self._surviving():
            self._stream.write(conceal(text if self._may_draw() else printable(text)))
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        with self._surviving():
            self._stream.flush()

    @contextlib.contextmanager
    def _surviving(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if self.lost is not None:
                return
            self.lost = error
            with contextlib.suppress(OSError, ValueError):  # a stream in memory has no descriptor
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)

    def _may_draw(self) -> bool:
        """Whether rich sends colours and bars here; what it draws of names is escaped by its console."""
        return self._stream.isatty() or bool({"FORCE_COLOR", "TTY_COMPATIBLE"} & set(os.environ))

    def writelines(self, lines: Iterable[str]) -> None:
        """Write lines without passwords."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class ConcealingRecord(logging.LogRecord):
    """A line of a log, whatever handler writes it and wherever to; a traceback that belongs to it, too."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        if self.exc_info and self.exc_info[0] is not None:
            self.exc_text = conceal(printable("".join(traceback.format_exception(*self.exc_info)).rstrip("\n")))

    def getMessage(self) -> str:  # noqa: N802  (logging's own name)
        """Return the message without passwords and control characters."""
        return conceal(printable(super().getMessage()))


def guard() -> None:
    """Conceal what this process prints and logs from now on. A second call does nothing."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is not None and not isinstance(stream, ConcealingStream):
            setattr(sys, name, ConcealingStream(stream))
    logging.setLogRecordFactory(ConcealingRecord)


def lost_output() -> OSError | None:
    """Return what kept standard output from being written, unless its reader has had enough (`| head`)."""
    sys.stdout.flush()
    lost: OSError | None = getattr(sys.stdout, "lost", None)
    return None if isinstance(lost, BrokenPipeError) else lost
