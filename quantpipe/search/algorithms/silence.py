"""Compiled libraries that print whatever they are asked: kept off standard output."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

_STDOUT = 1


@contextmanager
def silence_stdout() -> Iterator[None]:
    """Drop what C code or other threads write to standard output's descriptor meanwhile; for short calls only.

    Python's own text and what C code wrote before are not lost. Nothing is done where the descriptor is closed.
    """
    try:
        kept = os.dup(_STDOUT)
    except OSError:
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        _flush()
        os.dup2(nowhere, _STDOUT)
        yield
    finally:
        _flush()  # C keeps lines in a buffer of its own, which would come out later
        os.dup2(kept, _STDOUT)
        os.close(nowhere)
        os.close(kept)


def _flush() -> None:
    """Write what C's streams hold (Windows gives no handle on the libraries' streams)."""
    if os.name == "posix":
        ctypes.CDLL(None).fflush(None)
