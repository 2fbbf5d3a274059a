"""A process that dies, or whose disk is full, at a chosen call that changes a file.

`Calls` counts such calls below a folder in this process: opening for writing, writing, syncing, renaming, removing,
making and removing folders, truncating. It acts at the one with a chosen number: the process ends there as kill -9 ends
it (a write is torn: half of it arrives), or, with `room`, the disk is full once so many bytes have been written.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

AUDITED = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
KILLED = 137


@dataclass
class Calls:
    """`kill_at`: the number of the call, from 1, that is the last (0: none). `room`: bytes until the disk is full."""

    root: str
    kill_at: int = 0
    room: int | None = None
    seen: list[str] = field(default_factory=list)
    _inside: bool = False

    def install(self) -> None:
        """From now on, for the rest of this process: only for one that is about to end."""
        sys.addaudithook(self._audit)
        self._os = {name: getattr(os, name) for name in ("write", "pwrite", "fsync", "fdatasync")}
        os.write = lambda fd, data: self._write("write", fd, data)  # type: ignore[assignment]
        os.pwrite = lambda fd, data, at: self._write("pwrite", fd, data, at)  # type: ignore[assignment]
        os.fsync = lambda fd: self._sync("fsync", fd)  # type: ignore[assignment]
        os.fdatasync = lambda fd: self._sync("fdatasync", fd)  # type: ignore[assignment]
        opened = builtins.open

        def watched(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            found = opened(file, mode, *args, **options)
            return _File(found, self) if set(mode) & set("wax+") and self._below(file) else found

        builtins.open = io.open = watched  # type: ignore[assignment]

    def _below(self, path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = Path(f"/proc/self/fd/{path}").readlink()
            except OSError:
                return False
        return str(Path(os.fsdecode(path)).absolute()).startswith(self.root)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self._inside or not (event in AUDITED or event == "open"):
            return
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & WRITING):
            return
        if arguments[0] is None or not self._below(arguments[0]):
            return
        self.call(f"{event} {arguments[0]}")
        if event in ("open", "os.mkdir"):
            self._want(1)

    def call(self, what: str, last: Callable[[], None] = lambda: None) -> None:
        """One more call; `last` is what still happens if the process dies in it."""
        self.seen.append(what)
        if len(self.seen) == self.kill_at:
            last()
            os._exit(KILLED)

    def _want(self, size: int) -> None:
        if self.room is not None and self.room < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def wrote(self, data: Any, write: Callable[[Any], Any]) -> Any:
        """Write, as far as there is room; a write of which nothing fits fails."""
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        if self.room is not None and view:
            self._want(1)
            view = view[: self.room]
            self.room -= len(view)
        return write(view)

    def _write(self, name: str, fd: int, data: Any, *at: int) -> Any:
        def write(some: Any) -> Any:
            return self._os[name](fd, some, *at)

        if not self._below(fd):
            return write(data)
        self.call(f"{name} {len(data)}", lambda: write(memoryview(data)[: len(data) // 2]))
        return self.wrote(data, write)

    def _sync(self, name: str, fd: int) -> None:
        if not self._below(fd):
            self._os[name](fd)
            return
        self.call(name)  # not done: what a process has written outlives it, synced or not


class _File:
    """A file opened for writing whose writes are counted, each as one call."""

    def __init__(self, file: Any, calls: Calls) -> None:
        self._file, self._calls = file, calls

    def write(self, data: Any) -> int:
        text = isinstance(data, str)
        raw = data.encode() if text else data

        def write(some: Any) -> int:
            part = bytes(some).decode(errors="ignore") if text else some
            found = self._file.write(part)
            self._file.flush()
            return int(found)

        self._calls.call(f"write {getattr(self._file, 'name', '')}", lambda: write(memoryview(raw)[: len(raw) // 2]))
        written = self._calls.wrote(raw, write)
        return len(data) if text else int(written)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __iter__(self) -> Any:
        return iter(self._file)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def in_child(work: Callable[[], None], root: Path, kill_at: int = 0, room: int | None = None) -> tuple[int, list[str]]:
    """Do the work in a fork of this process: its exit code (0; 137 when it was killed; 1 when it raised) and the calls
    it made."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code, calls = 1, Calls(str(root), kill_at, room)
        try:
            calls.install()
            work()
            code = 0
        except OSError:
            pass
        except BaseException as error:
            calls.seen.append(f"raised {error!r}")
        finally:
            os.set_blocking(writing, True)
            calls.root = "\0"
            with os.fdopen(writing, "w") as out:
                out.write("\n".join(calls.seen))
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading) as found:
        seen = found.read().splitlines()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen
