"""main.log: what happened in a run folder, for whoever asks later why. One line per stage, warning, decision and error.

The terminal shows a paragraph where a run ends with an error; here its traceback stands, too. Every line goes through
`conceal`, which takes secrets out. A log that cannot be written ends no run.
"""

from __future__ import annotations

import logging

from quantpipe.errors import Interrupted
from quantpipe.passwords import conceal, printable
from quantpipe.pipeline.settings import RUN_LOG

LOG = logging.getLogger(RUN_LOG)


class Lines(logging.Formatter):
    """Date, level and text, cleared of secrets; tracebacks below, cleared as well."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%Y-%m-%d %H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a record without passwords and control characters."""
        return conceal(printable(super().format(record)))


class LogFile(logging.FileHandler):
    """Write main.log; writes that fail (a full disk) are lost to it, and the terminal shows them with the reason."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  (logging's name)
        """Do nothing: logging would print a traceback on standard error."""

    def close(self) -> None:
        """Close the file, also where the rest of the buffer cannot be written."""
        try:
            super().close()
        except OSError:
            self.stream = None


def ended(error: BaseException) -> None:
    """Write what ended the run, with its traceback; of an interrupt there is nothing to trace."""
    if isinstance(error, Interrupted | KeyboardInterrupt):
        LOG.warning("%s", str(error) or "interrupted")
        return
    LOG.error("ended by %s: %s", type(error).__name__, error, exc_info=error)
