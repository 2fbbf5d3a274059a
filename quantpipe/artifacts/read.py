"""Reading artifacts, refusing by name what is damaged or belongs to another model, data or configuration."""

from __future__ import annotations

import io
import json
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts.digest import digest_bytes, digest_file, digest_json
from quantpipe.artifacts.encode import NPZ_ORIGIN, ORIGIN_KEY, SEAL_BYTES, digest_arrays, dumped, side_file, text_header
from quantpipe.artifacts.origin import Origin
from quantpipe.errors import ArtifactError, DamagedError

_BINARY = (".onnx", ".data", ".c", ".tflite", ".cache", ".md")
"""Endings of files that carry no origin of their own."""
_HEADER_KEYS = {"format", "kind", "digest", "inputs"}
_NOT_NPZ = (
    ValueError, EOFError, OSError, LookupError, RuntimeError, OverflowError, struct.error, zlib.error,
    zipfile.BadZipFile,
)  # fmt: skip
"""What reading a damaged npz file may end with (RuntimeError: flags that speak of a password)."""
_HEADER_LINE = re.compile(r"^\S+ origin\.(?P<key>\w+): (?P<value>.*?)(?: -->)?$")
_SHOWN_DIFFERENCES = 8
_REMEDY = "Remove the file to have it made again, or choose another folder (hydra.run.dir)"


def read_json(path: str | os.PathLike[str], expected: Origin | None = None) -> dict[str, Any]:
    """Return the payload of `write_json`.

    A file without an origin (from elsewhere) is accepted when nothing is expected. Raises ArtifactError when it is
    missing, damaged, or of another origin than `expected`.
    """
    payload, header = _load_json(Path(path))
    _check(Path(path), header, expected, lambda: digest_json(payload))
    return payload


def read_text(path: str | os.PathLike[str], expected: Origin | None = None) -> str:
    """Return the text of `write_text`, without its header; ArtifactError as in `read_json`."""
    text, header = _load_text(Path(path))
    _check(Path(path), header, expected, lambda: digest_bytes(text.encode()))
    return text


def read_npz(path: str | os.PathLike[str], expected: Origin | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of `write_npz`, by name; ArtifactError as in `read_json`."""
    arrays, header = _load_npz(Path(path))
    _check(Path(path), header, expected, lambda: digest_arrays(arrays))
    return arrays


def read_kept(path: Path, expected: Origin, damaged: Callable[[DamagedError], None]) -> dict[str, NDArray[Any]] | None:
    """Return the arrays that an earlier run kept; None for no file, or one of another origin.

    A damaged file counts as none, after `damaged` has its error.
    """
    if not path.is_file():
        return None
    try:
        return read_npz(path, expected)
    except DamagedError as error:
        damaged(error)
    except ArtifactError:
        pass
    return None


def read_bytes(path: str | os.PathLike[str], expected: Origin | None = None) -> bytes:
    """Return the bytes of `write_bytes(…, origin)`; ArtifactError as in `read_json`."""
    data = _read(Path(path))
    _check(Path(path), _load_side_file(Path(path)), expected, lambda: digest_bytes(data))
    return data


def read_origin(path: str | os.PathLike[str]) -> Origin | None:
    """Return the origin that an artifact carries, or None when it carries none (a file from elsewhere)."""
    path = Path(path)
    header = _load_side_file(path)
    if header is None:
        if path.suffix in _BINARY:
            return None
        loader: _Loader = _LOADERS.get(path.suffix, _load_text)
        header = loader(path)[1]
    return None if header is None else _origin(path, header)


def is_current(
    path: str | os.PathLike[str], origin: Origin, damaged: Callable[[DamagedError], None] | None = None
) -> bool:
    """Return whether the artifact is there, undamaged and made from exactly `origin`, so that its stage can be skipped.

    `damaged` gets the error of an artifact that is there and not whole.
    """
    path = Path(path)
    if not path.is_file():
        return False
    try:
        _read_whole(path, origin)
    except DamagedError as error:
        if damaged is not None:
            damaged(error)
        return False
    except ArtifactError:
        return False
    return True


def damage(path: str | os.PathLike[str]) -> DamagedError | None:
    """Return the fault of an existing artifact, whatever it was made from."""
    path = Path(path)
    try:
        if path.is_file():
            _read_whole(path, None)
    except DamagedError as error:
        return error
    return None


def _read_whole(path: Path, origin: Origin | None) -> None:
    """Read all of an artifact, byte by byte: also what a reader of its content would pass over must be as written."""
    side = side_file(path)
    if side.is_file():
        _check(path, _load_side_file(path), origin, lambda: _digest_file(path))
        _check_json_layout(side)
        return
    if path.suffix in _BINARY:
        raise _damaged(path, f"{side.name}, which has its origin, is missing")
    _READERS.get(path.suffix, read_text)(path, origin)
    if path.suffix == ".json":
        _check_json_layout(path)
    elif path.suffix not in _READERS:
        _check_text_layout(path)


def _check_json_layout(path: Path) -> None:
    payload, header = _load_json(path)
    if header is not None and "content" in header and _read(path) != dumped({ORIGIN_KEY: header, **payload}):
        raise _damaged(path, "it is not laid out as it was written")


def _check_text_layout(path: Path) -> None:
    text, header = _load_text(path)
    comment = next((c for c in ("<!--", "#", "//") if _read(path).startswith(c.encode())), "")
    if header is not None and "content" in header and _read(path) != (text_header(header, comment) + text).encode():
        raise _damaged(path, "it is not laid out as it was written")


def _load_json(path: Path) -> tuple[dict[str, Any], Any]:
    try:
        payload = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"it is not whole JSON: {error}") from error
    if not isinstance(payload, dict):
        raise _damaged(path, f"it holds a {type(payload).__name__} where an object belongs")
    header = payload.pop(ORIGIN_KEY, None)
    if header is None and any(isinstance(part, dict) and part.keys() >= _HEADER_KEYS for part in payload.values()):
        raise _damaged(path, f"its origin does not stand under '{ORIGIN_KEY}'")
    return payload, header


def _load_text(path: Path) -> tuple[str, Any]:
    try:
        text = _read(path).decode()
        header: dict[str, Any] = {}
        # The configuration is the header's last line: what follows belongs to the body, whatever it looks like.
        while "config" not in header and (match := _HEADER_LINE.match(text.partition("\n")[0])):
            header[match["key"]] = json.loads(match["value"])
            text = text.partition("\n")[2]
    except ValueError as error:
        raise _damaged(path, str(error)) from error
    if not header and _HEADER_LINE.match(text.partition("\n")[2].partition("\n")[0]):
        raise _damaged(path, "the first line of its origin cannot be read")
    return text, header or None


def _load_npz(path: Path) -> tuple[dict[str, NDArray[Any]], Any]:
    try:
        arrays: dict[str, NDArray[Any]] = {}
        data = _read(path)
        sealed = data[-SEAL_BYTES:] == digest_bytes(data[:-SEAL_BYTES]).encode()
        if not sealed and data[-SEAL_BYTES:].startswith(b"sha256:"):
            raise ValueError("it does not fit the digest at its end")
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if archive.comment and not sealed:  # files of earlier versions have none
                raise ValueError("the digest at its end cannot be read")
            for name in archive.namelist():
                with archive.open(name) as file:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(file, allow_pickle=False)
        header = arrays.pop(NPZ_ORIGIN, None)
        return arrays, None if header is None else json.loads(str(header))
    except _NOT_NPZ as error:
        raise _damaged(path, f"it is not a whole npz file: {error}") from error


def _load_side_file(path: Path) -> Any:
    side = side_file(path)
    return _load_json(side)[1] if side.is_file() else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from error


def _digest_file(path: Path) -> str:
    try:
        return digest_file(path)
    except OSError as error:
        raise _unreadable(path, error) from error


def _origin(path: Path, header: Any) -> Origin:
    try:
        origin, digest = Origin.from_header(header), header["digest"]
        if unknown := set(header) - _HEADER_KEYS - {"content", "config"}:
            raise ValueError(f"{min(unknown)!r} is no part of it")
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _damaged(path, f"its origin header is incomplete ({error!r})") from error
    if origin.digest != digest:
        raise _damaged(path, "its origin header does not fit the header's own digest")
    return origin


def _check(path: Path, header: Any, expected: Origin | None, content: Callable[[], str]) -> None:
    """Raise ArtifactError unless the header is as expected and the content fits the header."""
    stage = None if expected is None else expected.kind
    if header is None:
        if expected is None:
            return
        what = "has no origin, so it may belong to another model or configuration"
        raise ArtifactError(f"{what}. {_REMEDY}", stage=stage, where=str(path))
    found = _origin(path, header)
    if expected is not None and (differing := expected.differences(found)):
        more = len(differing) - _SHOWN_DIFFERENCES
        listed = "; ".join(differing[:_SHOWN_DIFFERENCES]) + (f"; and {more} more" if more > 0 else "")
        what = f"belongs to another model, data or configuration: {listed}"
        raise ArtifactError(f"{what}. {_REMEDY}", stage=stage, where=str(path))
    if "content" in header and header["content"] != content():
        what = "its content does not fit its own digest (if you edited it by hand, delete the origin's 'content' too)"
        raise _damaged(path, what)


def _damaged(path: Path, what: str) -> DamagedError:
    return DamagedError(f"is damaged: {what}. {_REMEDY}", what=what, where=str(path))


def _unreadable(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(f"cannot be read ({error.strerror or error})", where=str(path))


_Loader = Callable[[Path], tuple[Any, Any]]
_READERS: dict[str, Callable[[Path, Origin | None], Any]] = {".json": read_json, ".npz": read_npz}
_LOADERS: dict[str, _Loader] = {".json": _load_json, ".npz": _load_npz}
