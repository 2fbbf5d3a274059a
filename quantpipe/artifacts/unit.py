"""Several files that belong together, put in place as one: whatever happens, all of the old ones are there or all new.

The new files are written next to their targets and synced. Then a commit record, itself put in place by one rename,
names them all; from that moment on the unit counts as written. The files are renamed onto their targets, obsolete files
are removed, and the record goes last. A crash before the record leaves the old files. A crash after it leaves a record
that `complete` carries out: the lock of a run folder does so before anything is read.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from quantpipe.artifacts.digest import digest_json
from quantpipe.artifacts.encode import dumped, json_bytes, npz_bytes, side_bytes, side_file, text_bytes
from quantpipe.artifacts.origin import Origin
from quantpipe.errors import StorageError

TEMP_SUFFIX = ".quantpipe-tmp"
RECORD = ".commit.json"
"""The commit record of the unit that is being put in place below a folder."""


class ArtifactUnit:
    """Files at or below `folder` that are written together, when the `with` block ends; none if it raises.

    A unit of one file needs no record: one rename puts it in place. Raises StorageError, with the old files
    untouched, when the disk is full or a folder cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._staged: dict[Path, Path] = {}
        self._removed: list[Path] = []
        self.digests: dict[Path, str] = {}
        """Of the staged files, side files aside."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._discard()
        elif self._staged or self._removed:
            self._commit()

    def pieces(self, path: Path, pieces: Iterable[bytes | memoryview], origin: Origin | None = None) -> None:
        """Stage a file that comes in pieces, which are hashed on the way; with an `origin`, its side file, too."""
        content = _Hashed(pieces)
        self._stage(path, content)
        self.digests[path] = content.digest
        if origin is not None:
            self._stage(side_file(path), [memoryview(side_bytes(origin, content.digest))])

    def bytes(self, path: Path, data: bytes | memoryview, origin: Origin | None = None) -> None:
        """Stage a file; with an `origin`, its side file, too."""
        self.pieces(path, [data], origin)

    def json(self, path: Path, payload: Mapping[str, Any], origin: Origin) -> None:
        """Stage a JSON object with its origin."""
        self.pieces(path, [json_bytes(path, payload, origin)])

    def text(self, path: Path, text: str, origin: Origin, comment: str = "#") -> None:
        """Stage a text with its origin; `comment` opens a comment line."""
        self.pieces(path, [text_bytes(text, origin, comment)])

    def npz(self, path: Path, arrays: Mapping[str, NDArray[Any]], origin: Origin, *, compressed: bool = True) -> None:
        """Stage arrays with their origin."""
        self.pieces(path, [npz_bytes(path, arrays, origin, compressed=compressed)])

    def remove(self, path: Path) -> None:
        """Delete the file once the others are in place; it may be gone already."""
        self._removed.append(path)

    def _stage(self, target: Path, content: Iterable[memoryview]) -> None:
        temp = target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}{TEMP_SUFFIX}")
        with _told(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            self._staged[target] = temp
            _write_synced(temp, content)

    def _commit(self) -> None:
        first = next(iter(self._staged), self._folder)
        complete(self._folder)  # where no lock is taken, a killed writer's record may still be there
        if len(self._staged) == 1 and not self._removed:
            with _told(first):
                try:
                    self._staged[first].replace(first)
                except BaseException:
                    self._discard()
                    raise
                _sync_folder(first.parent)
            return
        with _told(first):
            try:
                for folder in dict.fromkeys(path.parent for path in self._staged):
                    _sync_folder(folder)
                self._write_record()
            except BaseException:
                if not (self._folder / RECORD).exists():  # an interrupt right behind its rename does not undo it
                    self._discard()
                raise
        complete(self._folder)

    def _write_record(self) -> None:
        moves = [[self._relative(temp), self._relative(target)] for target, temp in self._staged.items()]
        body = {"put": moves, "remove": [self._relative(path) for path in self._removed]}
        with ArtifactUnit(self._folder) as record:
            record.bytes(self._folder / RECORD, dumped(body | {"digest": digest_json(body)}))

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._folder).as_posix()

    def _discard(self) -> None:
        for temp in self._staged.values():
            with contextlib.suppress(OSError):
                temp.unlink(missing_ok=True)


def complete(folder: Path) -> None:
    """Carry out the commit record in a folder, if there is one. Doing so twice, or half before a crash, is the same.

    A record that is damaged names nothing for certain and is dropped: every file still has its own digest.
    """
    record = folder / RECORD
    try:
        found = _record(record)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = ([], [])
    with _told(folder, "its files could not be put in place", "the next run in this folder does so"):
        if not record.exists():
            return
        changed = {folder: None}
        for temp, target in found[0]:
            changed[target.parent] = None
            with contextlib.suppress(FileNotFoundError):  # renamed before a crash
                temp.replace(target)
        for path in found[1]:
            changed[path.parent] = None
            path.unlink(missing_ok=True)
        for place in changed:
            with contextlib.suppress(FileNotFoundError):
                _sync_folder(place)
        record.unlink(missing_ok=True)
        _sync_folder(folder)


def _record(path: Path) -> tuple[list[tuple[Path, Path]], list[Path]]:
    """Return (files to rename, files to remove) of a commit record; ValueError or similar when it is incomplete."""
    body = json.loads(path.read_bytes())
    digest = body.pop("digest")
    if digest != digest_json(body):
        raise ValueError("damaged")

    def inside(name: str) -> Path:
        parts = PurePosixPath(name)
        if parts.is_absolute() or ".." in parts.parts:
            raise ValueError("points out of its folder")
        return path.parent / parts

    return [(inside(a), inside(b)) for a, b in body["put"]], [inside(name) for name in body["remove"]]


def sweep(folder: Path) -> None:
    """Delete what a killed owner had not committed. Only when every record that could name it is carried out."""
    for leftover in folder.glob(f".*{TEMP_SUFFIX}") if folder.is_dir() else ():
        leftover.unlink(missing_ok=True)


class _Hashed:
    """Pieces of a file, and the digest of those that have been handed out."""

    def __init__(self, pieces: Iterable[bytes | memoryview]) -> None:
        self._pieces, self._hash = pieces, hashlib.sha256()

    def __iter__(self) -> Iterator[memoryview]:
        for piece in self._pieces:
            view = memoryview(piece)
            self._hash.update(view)
            yield view

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


@contextlib.contextmanager
def _told(
    where: Path, what: str = "it could not be written whole", then: str = "what was there before is untouched"
) -> Iterator[None]:
    """Turn OSErrors into StorageErrors."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{what} ({error.strerror or error}); {then}. Free some space or choose another folder (hydra.run.dir), "
            "then run the same command again",
            where=str(where),
        ) from error


def _write_synced(path: Path, pieces: Iterable[memoryview]) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        for piece in pieces:
            rest = piece
            while rest:  # the kernel takes at most 2 GB a call, and less when the disk fills up
                rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable, as far as the file system can (some cannot sync a folder)."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF):
            raise
    finally:
        os.close(descriptor)
