"""The files of a run folder as stored: JSON, the model, its external data, and the digests of all of them."""

from __future__ import annotations

import hashlib
import json
import math
import os
import stat
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import numpy_helper

from quantpipe.errors import ArtifactError

Array = NDArray[Any]
JSON, MODEL, PAGE = 256 << 20, 2 << 30, 1 << 16
"""Bytes of a JSON file and of the model that are read at most; a data file is filled up to pages."""
PARTS = {b"[": 1 << 21, b"{": 1 << 21, b",": 1 << 24}
"""Maximum number of these in a JSON file: what it takes in memory depends on them."""
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}


class Wrong(Exception):
    """The first thing that is not as the certificate claims: a place, and what is found there."""

    def __init__(self, where: str, found: str) -> None:
        super().__init__(f"{where}: {found}")


def expect(holds: bool, where: str, found: str) -> None:
    """Raise Wrong unless something holds."""
    if not holds:
        raise Wrong(where, found)


class Folder:
    """The realized part of a run folder. ArtifactError where a file is missing or is not what its name says."""

    def __init__(self, root: Path) -> None:
        self.place = root / "realize"
        self.certificate = self._json("certificate.json")
        self.plan = self._json("plan.json")
        try:
            self.model = onnx.ModelProto.FromString(self._bytes("model.onnx", MODEL))
        except DecodeError as error:
            raise ArtifactError("it is no ONNX model", stage="verify", where=str(self.place / "model.onnx")) from error

    def check_digests(self) -> None:
        """Raise Wrong where a file is not the one that the certificate is about."""
        claimed = self.certificate.get("digests", {})
        for name, key in (("plan.json", "plan"), ("model.onnx", "model")):
            found = self.digest(name)
            expect(
                found == claimed.get(key), name, f"its digest is {found}, the certificate is about {claimed.get(key)}"
            )
        data = claimed.get("data", {})
        expect(isinstance(data, dict), "certificate.json", "digests.data is no object")
        expect(self._data_names() == set(data), "model.onnx", f"it reads {sorted(self._data_names())}, the "
               f"certificate names {sorted(data)}")  # fmt: skip
        for name, digest in data.items():
            found = self.digest(name, self._reach(name))
            expect(found == digest, name, f"its digest is {found}, the certificate is about {digest}")
        for name, content in (("plan.json", self.plan), ("certificate.json", self.certificate)):
            self._check_origin(name, content)
        hardware = self.plan.get("origin", {}).get("config", {}).get("hardware")
        found = canonical(hardware)
        expect(found == claimed.get("hardware"), "plan.json", "the hardware it was made for has the digest "
               f"{found}, the certificate is about {claimed.get('hardware')}")  # fmt: skip

    def _check_origin(self, name: str, content: Mapping[str, Any]) -> None:
        origin = content.get("origin", {})
        found = canonical({k: v for k, v in content.items() if k != "origin"})
        expect(origin.get("content") == found, name, f"its content has the digest {found}, its origin says "
               f"{origin.get('content')}")  # fmt: skip
        same = self.plan.get("origin", {}).get("digest")
        expect(origin.get("digest") == same, name, "it was made from other inputs than plan.json")

    def tensor(self, proto: onnx.TensorProto) -> Array:
        """Return the elements of an initializer, from the model or from the data file next to it."""
        array = self.elements(proto)
        return array if array.dtype.kind in "iufb" else np.asarray(array).astype(np.int8)  # packed, 2 or 4 bits

    def elements(self, proto: onnx.TensorProto) -> Array:
        """Return the elements of an initializer in their own type, also in one that NumPy does not have."""
        if proto.data_location != onnx.TensorProto.EXTERNAL:
            return numpy_helper.to_array(proto)
        entries = {e.key: e.value for e in proto.external_data}
        dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.data_type)
        path = self._inside(entries.get("location", ""))
        begin, count = int(entries.get("offset", 0)), math.prod(proto.dims)
        size = self._regular(path).st_size
        if min((begin, *proto.dims), default=0) < 0 or begin + count * dtype.itemsize > size:
            raise ArtifactError(
                f"the weights of {proto.name} are not there: bytes {begin} to {begin + count * dtype.itemsize} of a "
                f"file of {size}", stage="verify", where=str(path))  # fmt: skip
        try:
            values = np.memmap(path, dtype, "r", begin, (count,)) if count else np.empty(0, dtype)
        except (OSError, ValueError) as error:
            raise ArtifactError(f"the weights of {proto.name} are not there ({error})", stage="verify",
                                where=str(path)) from error  # fmt: skip
        return np.asarray(values).reshape(tuple(proto.dims))

    def digest(self, name: str, most: int = MODEL) -> str:
        """Return `sha256:…` of a file's bytes; ArtifactError where it has more than `most`."""
        with self._opened(name, most) as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()

    def _reach(self, name: str) -> int:
        """Bytes of a data file up to which the model reads it, filled up to pages."""
        most = 0
        for tensor in self.model.graph.initializer:
            entries = {e.key: e.value for e in tensor.external_data}
            if entries.get("location") == name:
                bits = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize * 8
                most = max(most, int(entries.get("offset", 0)) + math.prod(tensor.dims) * bits // 8)
        return most + PAGE

    def _data_names(self) -> set[str]:
        tensors = self.model.graph.initializer
        return {e.value for t in tensors for e in t.external_data if e.key == "location"}

    def _inside(self, name: str) -> Path:
        path = self.place / name
        if path.name != name:
            raise ArtifactError(f"it refers to {name!r}, which is not a file in its folder", stage="verify",
                                where=str(self.place / "model.onnx"))  # fmt: skip
        return path

    def _regular(self, path: Path) -> os.stat_result:
        """Return what a file is; ArtifactError unless it is a regular file of this folder, or a link to one there."""
        try:
            found = path.stat()
            outside = path.is_symlink() and path.resolve().parent != self.place.resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise _unreadable(path, error) from error
        if outside or not stat.S_ISREG(found.st_mode):
            what = "a link out of the folder" if outside else _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
            raise ArtifactError(f"it is {what}; verify reads regular files of the folder only", stage="verify",
                                where=str(path))  # fmt: skip
        return found

    def _opened(self, name: str, most: int) -> BufferedReader:
        path = self._inside(name)
        size = self._regular(path).st_size
        if size > most:
            raise ArtifactError(f"it has {size} bytes; verify reads at most {most}", stage="verify", where=str(path))
        try:
            return open(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")
        except OSError as error:
            raise _unreadable(path, error) from error

    def _json(self, name: str) -> dict[str, Any]:
        data = self._bytes(name, JSON)
        for part, most in PARTS.items():
            if data.count(part) > most:
                raise ArtifactError(f"it has more than {most} times {part.decode()!r}", stage="verify",
                                    where=str(self.place / name))  # fmt: skip
        try:
            content = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(
                f"it is not whole JSON ({error})", stage="verify", where=str(self.place / name)
            ) from error
        if not isinstance(content, dict):
            raise ArtifactError("it holds no JSON object", stage="verify", where=str(self.place / name))
        return content

    def _bytes(self, name: str, most: int) -> bytes:
        try:
            with self._opened(name, most) as file:
                return file.read(most)
        except OSError as error:
            raise _unreadable(self.place / name, error) from error


def data_digest(data: bytes) -> str:
    """Return `sha256:…` of bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def canonical(content: Any) -> str:
    """Return the digest of a JSON value: keys sorted, no blanks, ASCII."""
    return data_digest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def array_digest(array: Array) -> str:
    """Return the digest of an array's type, shape and elements, as plan.json has it."""
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return "sha256:" + digest.hexdigest()


def _unreadable(path: Path, error: Exception) -> ArtifactError:
    why = getattr(error, "strerror", None) or error
    needed = "verify needs realize/certificate.json, realize/plan.json and realize/model.onnx of a run folder"
    return ArtifactError(f"it cannot be read ({why}); {needed}", stage="verify", where=str(path))
