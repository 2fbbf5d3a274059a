"""Rows of an array in a .npy or .npz file, read on demand so that memory does not grow with the file.

A plain .npy file and an uncompressed member of a .npz file are memory-mapped for each read and released after it. A
compressed member cannot be mapped: it is unpacked once, into a temporary file that the system removes by itself.
"""

from __future__ import annotations

import io
import math
import shutil
import struct
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from quantpipe.errors import DataError, QuantpipeError, StorageError, brief, nearest

MOST_ROWS = 50_000_000
"""More samples than any data set has; what is kept per sample would not fit into memory."""
DEFLATE = 1100  # times smaller than what it holds a compressed member can be, at most
ZIP_LOCAL_HEADER = 30  # bytes before the name, which ends with the lengths of name and extra field


@dataclass(frozen=True)
class Header:
    """Shape, axis order and dtype of a stored array; `size` is the length of the header itself."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    size: int


def member_names(path: Path) -> tuple[str, ...] | None:
    """Return the keys of a .npz file, or None when `path` is a single array (.npy).

    Raises DataError if it is neither.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{what}; legal is a .npz or .npy file.", where=str(path))
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                return tuple(name.removesuffix(".npy") for name in archive.namelist())
        with path.open("rb") as file:
            npy.read_magic(file)
    except Exception as error:  # zipfile and numpy raise many types for a damaged file
        raise DataError(f"is neither a .npz nor a .npy file, or damaged ({brief(error)}).", where=str(path)) from error
    return None


class ArrayFile:
    """One stored array. `key` is the member of a .npz file, None for a .npy file. DataError if absent or damaged."""

    def __init__(self, path: Path, key: str | None) -> None:
        self._path, self._key = path, key
        self.where = f"{path}[{key}]" if key else str(path)
        self._unpacked: IO[bytes] | None = None
        try:
            with self._open() as stream:
                self._header = _read_header(stream)
            self._offset = self._data_offset()
            self._refuse_false_size()
        except KeyError:
            names = member_names(path) or ()
            raise DataError(
                f"has no array {key!r}{nearest(str(key), names)}; it holds {', '.join(names) or 'nothing'}. "
                "Set dataset.keys.images and dataset.keys.labels.",
                where=str(path),
            ) from None
        except QuantpipeError:
            raise
        except Exception as error:  # zipfile and numpy raise many types for a damaged file
            raise self._damaged(error) from error
        if self.dtype.hasobject or self.dtype.kind not in "biuf":
            raise DataError(f"holds {self.dtype}; legal are numbers (integers, floats, booleans).", where=self.where)
        if not self.shape:
            raise DataError("is a single number; legal is an array with one row per sample.", where=self.where)

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape that the file's header states."""
        return self._header.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """Return the NumPy type that the file's header states."""
        return self._header.dtype

    def rows(self, indices: NDArray[np.int64]) -> NDArray[Any]:
        """Return a copy of the rows `indices`, `[n, …]` in the file's type."""
        if not self.shape[0]:
            return np.empty((len(indices), *self.shape[1:]), self.dtype)
        try:
            file, offset = self._mappable()
            mapped = np.memmap(
                file,
                dtype=self.dtype,
                mode="r",
                offset=offset,
                shape=self.shape,
                order="F" if self._header.fortran else "C",
            )
            return np.ascontiguousarray(np.asarray(mapped)[indices])
        except QuantpipeError:
            raise
        except Exception as error:
            raise self._damaged(error) from error

    def _mappable(self) -> tuple[Any, int]:
        """Return a file (or its path) that holds the plain array, and where in it the array begins."""
        if self._offset is not None:
            return self._path, self._offset
        if self._unpacked is None:
            self._unpacked = self._unpack()
        return self._unpacked, self._header.size

    def _unpack(self) -> IO[bytes]:
        with self._open() as stream:
            target = tempfile.TemporaryFile(prefix="quantpipe-")  # noqa: SIM115 (lives as long as this object)
            try:
                shutil.copyfileobj(stream, target, 1 << 20)
                target.flush()
            except OSError as error:
                target.close()
                raise StorageError(
                    f"could not be unpacked into {tempfile.gettempdir()} ({error}); free space there, set TMPDIR, or "
                    "store the file uncompressed (numpy.savez).",
                    where=self.where,
                ) from error
            return target

    def _open(self) -> IO[bytes]:
        """Return the array's bytes, header included, as a stream."""
        if self._key is None:
            return self._path.open("rb")
        with zipfile.ZipFile(self._path) as archive:  # a member's stream keeps the file open by itself
            name = f"{self._key}.npy"
            return archive.open(name if name in archive.namelist() else self._key)

    def _data_offset(self) -> int | None:
        """Return the offset of the array in the file; None when it is compressed."""
        if self._key is None:
            return self._header.size
        with zipfile.ZipFile(self._path) as archive:
            name = f"{self._key}.npy"
            info = archive.getinfo(name if name in archive.namelist() else self._key)
        if info.compress_type != zipfile.ZIP_STORED:
            return None
        with self._path.open("rb") as file:
            file.seek(info.header_offset)
            name_length, extra_length = struct.unpack("<HH", file.read(ZIP_LOCAL_HEADER)[-4:])
        return int(info.header_offset + ZIP_LOCAL_HEADER + name_length + extra_length + self._header.size)

    def _refuse_false_size(self) -> None:
        """Raise DataError where the header claims other data than exist, before anything is allocated."""
        if self.dtype.hasobject or not self.shape:
            return  # refused for that
        claimed = math.prod(self.shape) * self.dtype.itemsize
        stored, most = self._stored_bytes()
        if claimed > min(stored, most) or (self._key is not None and claimed != stored):
            raise DataError(
                f"its header says {self.dtype} of shape {list(self.shape)[:8]}, which takes {claimed} bytes, and it "
                f"holds {min(stored, most)}; the file is damaged or was cut short.",
                where=self.where,
            )
        if self.shape[0] > MOST_ROWS or (self.shape[0] and not claimed):
            raise DataError(
                f"has the shape {list(self.shape)[:8]}; legal are up to {MOST_ROWS} rows, one per sample, that hold "
                "something.",
                where=self.where,
            )

    def _stored_bytes(self) -> tuple[int, int]:
        """Return (bytes after the header, as the archive declares; the maximum bytes that are possible)."""
        size = self._path.stat().st_size
        if self._key is None:
            return size - self._header.size, size
        with zipfile.ZipFile(self._path) as archive:
            name = f"{self._key}.npy"
            info = archive.getinfo(name if name in archive.namelist() else self._key)
        most = size if info.compress_type == zipfile.ZIP_STORED else DEFLATE * min(info.compress_size, size) + DEFLATE
        return info.file_size - self._header.size, most

    def _damaged(self, error: Exception) -> DataError:
        return DataError(
            f"cannot be read: the file is damaged or not a NumPy array ({brief(error)}).", where=self.where
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return without the temporary file: another process unpacks for itself."""
        return {**self.__dict__, "_unpacked": None}


def _read_header(stream: IO[bytes]) -> Header:
    """Return the header of the .npy format, versions 1 and 2 (all that NumPy writes for plain numbers)."""
    head = io.BytesIO(stream.read(1 << 16))
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(head)
    if version not in readers:
        raise ValueError(f"version {version} of the .npy format")
    shape, fortran, dtype = readers[version](head)
    if any(d < 0 for d in shape):
        raise ValueError(f"a shape of {list(shape)[:8]}")
    return Header(tuple(shape), bool(fortran), np.dtype(dtype), head.tell())
