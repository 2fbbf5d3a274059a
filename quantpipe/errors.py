"""The one family of errors a user may see.

Every message is one paragraph: the stage, the node, tensor or file, what was found, and what would be legal.
`app` prints it on standard error and leaves with `exit_code`; nothing else is caught there.
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from quantpipe.passwords import conceal
from quantpipe.passwords import printable as printable  # also for the checker, which imports this module alone

MOST = 2400
"""Characters of a message; its end, which says what would be legal, is kept."""


class QuantpipeError(Exception):
    """A fault in what the user gave (model, data, hardware file, configuration): exit code 2."""

    exit_code = 2

    def __init__(self, message: str, *, stage: str | None = None, where: str | None = None) -> None:
        self.stage, self.where = stage, where
        head = ": ".join(part for part in (stage, where) if part)
        super().__init__(conceal(printable(_paragraph(f"{head}: {message}" if head else message))))


class ConfigError(QuantpipeError):
    """A configuration value that means nothing, or contradicts another."""


class ModelError(QuantpipeError):
    """A model file that cannot be read, run, or cleaned without changing what it computes."""


class DataError(QuantpipeError):
    """Samples that do not fit the model, or cannot be used."""


class BatchError(DataError):
    """Fewer samples than the fixed batch of a model."""


class HardwareError(QuantpipeError):
    """A hardware file that contradicts itself, or a request the hardware cannot meet. `field`: of the file."""

    def __init__(
        self, message: str, *, stage: str | None = None, where: str | None = None, field: str | None = None
    ) -> None:
        super().__init__(message, stage=stage, where=where)
        self.field = field


class ArtifactError(QuantpipeError):
    """A stored artifact that belongs to another model or configuration, or is damaged."""


class DamagedError(ArtifactError):
    """Report a stored artifact that does not match its own digest, or is incomplete; `what` is the reason alone."""

    def __init__(self, message: str, *, what: str, where: str | None = None) -> None:
        super().__init__(message, where=where)
        self.what = what


class StorageError(QuantpipeError):
    """A file that could not be written whole (disk full, no permission)."""


class WorkerError(QuantpipeError):
    """Worker processes that die again and again."""


class AgreementError(QuantpipeError):
    """The realized model does not compute what was searched: the promise of the tool is broken."""

    exit_code = 3


class TargetError(QuantpipeError):
    """Everything was done and written, but `strict=true` asked for more than could be reached."""

    exit_code = 3


class Interrupted(QuantpipeError):
    """Stopped by the user; what was found so far is on disk and the run can be resumed."""

    exit_code = 130


def _paragraph(text: str) -> str:
    """One line of bounded length: what a message quotes may be of any length, and hold any character."""
    text = " ".join(text.splitlines())
    return text if len(text) <= MOST else f"{text[: MOST // 2]} … {text[-MOST // 2 :]}"


def nearest(name: str, known: Iterable[str], count: int = 3) -> str:
    """Return a hint such as ` (did you mean 'vta'?)`, or an empty string when nothing is near."""
    close = difflib.get_close_matches(name, list(known), n=count, cutoff=0.5)
    return f" (did you mean {' or '.join(repr(c) for c in close)}?)" if close else ""


def some_of(texts: Sequence[str], most: int = 5, joint: str = ", ") -> str:
    """Return the first `most` texts as a list for a message, and how many more there are."""
    more = len(texts) - most
    return joint.join(texts[:most]) + (f"{joint.strip(', ')} and {more} more" if more > 0 else "")


def refuse_unknown(given: Iterable[object], legal: Iterable[str], where: str) -> None:
    """Raise ConfigError for the first key that is not legal below `where`, with near names."""
    known = list(legal)
    for key in given:
        if key not in known:
            said = (
                f"legal are {', '.join(known)}"
                if len(known) > 1
                else f"legal is {known[0]}"
                if known
                else "no key is legal here"
            )
            raise ConfigError(f"is no option{nearest(str(key), known)}; {said}", where=f"{where}.{key}")


def brief(error: BaseException, most: int = 300) -> str:
    """Return the text of a foreign error in one line of at most `most` characters.

    Where libraries wrap errors, it is the text of the one that was the cause; an error without text gives the name of
    its type.
    """
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split())[:most] or type(error).__name__


PERHAPS_OURS = "If this is such a model, quantpipe is at fault: please report it"
"""Ends a message about a foreign error while a model is read."""


def fault(error: BaseException) -> str:
    """Return the type and the text of an error that may be ours, and the place in this package that it came through.

    The place is the last line of this package that had part in it, `quantpipe/FILE.py:LINE`; none for an error that no
    code of this package was part of.
    """
    package = Path(__file__).parent
    passed = [f for f in traceback.extract_tb(error.__traceback__) if package in Path(f.filename).parents]
    place = f", at {Path(passed[-1].filename).relative_to(package.parent)}:{passed[-1].lineno}" if passed else ""
    return f"{type(error).__name__}: {brief(error)}{place}"
