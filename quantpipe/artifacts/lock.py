"""One process per run folder. The lock is the kernel's (flock), so it ends with its owner, however that ends."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from quantpipe.artifacts.unit import complete, sweep
from quantpipe.errors import ArtifactError, StorageError

_log = logging.getLogger(__name__)
_held: set[int] = set()


class FileLock:
    """An exclusive lock on a file, held between `__enter__` and `__exit__`; the file itself stays.

    With `wait` it is waited for; without, a lock that another holds is an ArtifactError naming the owner.
    """

    def __init__(self, path: str | os.PathLike[str], *, wait: bool = False) -> None:
        self._path, self._wait, self._descriptor = Path(path), wait, -1

    def __enter__(self) -> Self:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                self._lock()
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise StorageError(
                f"the lock cannot be taken ({error.strerror or error})", where=str(self._path)
            ) from error
        _held.add(self._descriptor)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        _held.discard(self._descriptor)
        with contextlib.suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX if self._wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip() or "unknown"
            raise ArtifactError(
                f"another run is at work here (process {owner}). Wait for it, stop it, or choose another folder "
                "(hydra.run.dir)",
                where=str(self._path.parent),
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP):
                raise
            # Some network file systems know no locks. A run there is as safe as its user is careful.
            _log.warning(
                "%s: this file system knows no locks; see that no second run uses the folder", self._path.parent
            )


class RunLock(FileLock):
    """The lock of a run folder (`<folder>/.lock`).

    Before anything is read, its owner completes the units of files that a killed owner had committed, and removes its
    half-written files. It does so in the folder itself and in `places` (patterns of folders below it).
    """

    def __init__(self, folder: str | os.PathLike[str], places: Sequence[str] = ("*",)) -> None:
        super().__init__(Path(folder) / ".lock")
        self._folder, self._places = Path(folder), tuple(places)

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            folders = [self._folder, *(p for pattern in self._places for p in sorted(self._folder.glob(pattern)))]
            for folder in folders:
                complete(folder)
            for folder in folders:
                sweep(folder)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self


def _forget_in_child() -> None:
    """Drop the parent's locks in a forked worker, which would hold them after a kill -9 of the parent."""
    while _held:
        os.close(_held.pop())


os.register_at_fork(after_in_child=_forget_in_child)
