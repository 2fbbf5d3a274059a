"""Writing artifacts: whole or not at all, each with its origin.

JSON carries the origin in a top-level `origin` key, text in leading comment lines, npz in an `__origin__` entry, any
other file in a side file `<name>.origin.json`. A file is written beside its target and renamed onto it.
"""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts.digest import digest_array, digest_bytes, digest_json, plain
from quantpipe.artifacts.origin import Origin
from quantpipe.errors import StorageError

ORIGIN_KEY = "origin"
NPZ_ORIGIN = "__origin__"
TEMP_SUFFIX = ".quantpipe-tmp"


def write_bytes(path: str | os.PathLike[str], data: bytes | memoryview, origin: Origin | None = None) -> None:
    """Put `data` at `path`, whole or not at all, surviving a crash and a power cut once this returns.

    With an `origin`, a side file `<name>.origin.json` says where the bytes came from. It is written last: a crash in
    between leaves an old side file whose content digest does not fit, so the artifact counts as not current.
    Raises StorageError, with the old file untouched, when the disk is full or the folder cannot be written.
    """
    write_pieces(path, [data], origin)


def write_pieces(
    path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview], origin: Origin | None = None
) -> None:
    """`write_bytes` for what is too large to hold: the pieces come one after the other, and are hashed on the way."""
    target, content = Path(path), _Hashed(pieces)
    temp = target.with_name(f".{target.name[:100]}.{os.getpid()}.{secrets.token_hex(4)}{TEMP_SUFFIX}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write_synced(temp, content)
            temp.replace(target)
        except BaseException:
            temp.unlink(missing_ok=True)
            raise
        _sync_folder(target.parent)
    except OSError as error:
        raise StorageError(
            f"it could not be written whole ({error.strerror or error}); what was there before is "
            "untouched. Free some space or choose another folder (hydra.run.dir), then run the same command again",
            where=str(target),
        ) from error
    if origin is not None:
        write_origin(target, origin, content.digest)


def write_origin(path: str | os.PathLike[str], origin: Origin, content: str | None = None) -> None:
    """Write the side file of an artifact that cannot carry its origin; no `content` digest for a file that grows."""
    _write_json(side_file(Path(path)), {ORIGIN_KEY: origin.header(content)})


def write_json(path: str | os.PathLike[str], payload: Mapping[str, Any], origin: Origin) -> None:
    """Write a JSON object, with its origin under the key `origin` (which `payload` must not use)."""
    body = plain(payload)
    if ORIGIN_KEY in body:
        raise ValueError(f"{path}: the key '{ORIGIN_KEY}' is taken by the artifact's origin")
    _write_json(path, {ORIGIN_KEY: origin.header(digest_json(body)), **body})


def write_text(path: str | os.PathLike[str], text: str, origin: Origin, comment: str = "#") -> None:
    """Write text after comment lines that hold the origin. `comment` opens a line (`#`, `//`, or `<!--` for HTML)."""
    text = text.encode("utf-8", "backslashreplace").decode()  # names of files need not be text
    markup = comment == "<!--"
    lines = []
    for key, value in origin.header(digest_bytes(text.encode())).items():
        encoded = json.dumps(value, sort_keys=True)
        # In a markup comment nothing may look like its end.
        encoded = encoded.replace("<", "\\u003c").replace(">", "\\u003e") if markup else encoded
        lines.append(f"{comment} origin.{key}: {encoded}{' -->' if markup else ''}\n")
    write_bytes(path, ("".join(lines) + text).encode())


def write_npz(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]], origin: Origin) -> None:
    """Write a compressed npz with an `__origin__` string entry. Equal arrays give equal bytes.

    Written entry by entry, because `np.savez` takes names as keyword arguments and so refuses a tensor named `file`.
    """
    if NPZ_ORIGIN in arrays:
        raise ValueError(f"{path}: the entry '{NPZ_ORIGIN}' is taken by the artifact's origin")
    header = np.array(json.dumps(origin.header(digest_arrays(arrays)), sort_keys=True))
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, array in {NPZ_ORIGIN: header, **arrays}.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = zipfile.ZIP_DEFLATED
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
    write_bytes(path, buffer.getbuffer())


def digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Digest of named arrays, in any order."""
    return digest_json({name: digest_array(np.asanyarray(array)) for name, array in arrays.items()})


def side_file(path: Path) -> Path:
    """Where the origin of a file stands that cannot carry one."""
    return path.with_name(path.name + ".origin.json")


def _write_json(path: str | os.PathLike[str], payload: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(payload, indent=1, allow_nan=False) + "\n").encode())


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
