"""Start the program, and answer Ctrl-C from the first moment on, also while libraries are still loading.

A library that is interrupted while it loads may raise an error of its own. So until everything is loaded, the signal
ends the process at once. After that it is a KeyboardInterrupt: a run keeps its files.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from quantpipe.foreign_formats import foreign_format
from quantpipe.loading import collection_paused
from quantpipe.passwords import printable

INTERRUPTED = b"error: interrupted before there was anything to keep; run the same command again\n"
_DATA = "no such file or folder (from {key})."
FILES = {
    "model.path": ("model", "there is no such file; model.path must name an ONNX model"),
    **{f"dataset.{part}path": ("data", _DATA) for part in ("", "calibrate.", "search.", "evaluate.")},
}
"""Key -> where and what is wrong, in words."""

_PLAIN = re.compile(r"[\w/.:@%~-]+")


def main() -> None:
    """Run the command line; always ends in SystemExit."""
    _open_closed_streams()
    listening = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # else: a shell's job in the background
    if listening:
        signal.signal(signal.SIGINT, _leave)
    if (wrong := missing_file(sys.argv[1:], Path.cwd())) is not None:
        sys.stderr.write(f"error: {printable(wrong)}\n")
        raise SystemExit(2)
    if {"-sc", "--shell-completion"} & set(sys.argv[1:]) and "query=bash" in sys.argv[1:]:
        from quantpipe.app.complete import answer, asked

        raise SystemExit(_print(f"{answer()}\n" if asked() else "\n"))
    if {"--help", "-h"} & set(sys.argv[1:]):
        from quantpipe.app.help import help_page

        raise SystemExit(_print(help_page(_called())))
    if "--version" in sys.argv[1:]:
        from quantpipe.version import __version__

        raise SystemExit(_print(f"quantpipe {__version__}\n"))
    with collection_paused():
        _check_names(sys.argv[1:])
        from quantpipe.app.main import main as run

    if listening:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run()
    except KeyboardInterrupt:  # outside of a run: before it, or while its last lines are written
        _leave(signal.SIGINT, None)
    finally:
        if listening:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done; the interpreter takes down what it has loaded


def missing_file(arguments: Sequence[str], folder: Path) -> str | None:
    """Return the fault of a file that the command line names, or None, before anything is loaded.

    Only plain values count (no lists of a sweep, no references), and only keys that are always files. The checks of the
    configuration, which come later and use the same words, do the rest.
    """
    if any(argument.startswith("-") for argument in arguments):
        return None  # --help and --cfg answer whatever else is given
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in FILES or not _PLAIN.fullmatch(value) or value == "null":
            continue
        path = folder / Path(value).expanduser()
        where, what = FILES[key]
        if not path.exists():
            return f"{where}: {path}: {what.format(key=key)}"
        if key == "model.path" and (other := foreign_format(path)) is not None:
            return f"{where}: {path}: {other}"
    return None


def _check_names(arguments: Sequence[str]) -> None:
    """End the program for a mistyped name, before what takes seconds is imported."""
    if not arguments or any(printable(a) != a for a in arguments):
        return
    from quantpipe.app.early_names import wrong_name

    if (wrong := wrong_name(arguments)) is not None:
        sys.stderr.write(f"error: {printable(wrong)}\n")
        raise SystemExit(2)


def _open_closed_streams() -> None:
    """Give standard streams that the caller closed to /dev/null, so that no file of a run gets their descriptor."""
    for descriptor, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
            setattr(sys, name, os.fdopen(descriptor, mode, closefd=False))


def _print(text: str) -> int:
    """Print an answer, and return the exit code: 0 also where its reader has had enough (`| head`)."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the interpreter flushes once more at its end
        if not isinstance(error, BrokenPipeError):
            sys.stderr.write(f"error: standard output cannot be written ({error.strerror})\n")
            return 2
    return 0


def _called() -> str:
    """How the program was started, in short."""
    name = Path(sys.argv[0]).name
    return f"python {name}" if name.endswith(".py") else name


def _leave(signum: int, frame: FrameType | None) -> None:
    os.write(2, INTERRUPTED)
    os._exit(130)
