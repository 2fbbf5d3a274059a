"""The files of a run folder as they lie there: JSON, the model, its external data, and the digests of all of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray
from onnx import numpy_helper

from quantpipe.errors import ArtifactError

Array = NDArray[Any]


class Wrong(Exception):
    """The first thing that is not as the certificate says: a place, and what is found there."""

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
            self.model = onnx.ModelProto.FromString(self._bytes("model.onnx"))
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
            found = self.digest(name)
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
        """Return the elements of an initializer, from the model or from the data file beside it."""
        if proto.data_location != onnx.TensorProto.EXTERNAL:
            array = numpy_helper.to_array(proto)
            return array if array.dtype.kind in "iufb" else np.asarray(array).astype(np.int8)  # packed 4-bit integers
        entries = {e.key: e.value for e in proto.external_data}
        dtype = onnx.helper.tensor_dtype_to_np_dtype(proto.data_type)
        count = int(np.prod(proto.dims, dtype=np.int64))
        path = self._inside(entries.get("location", ""))
        try:
            values = (
                np.memmap(path, dtype, "r", int(entries.get("offset", 0)), (count,)) if count else np.empty(0, dtype)
            )
        except (OSError, ValueError) as error:
            raise ArtifactError(f"the weights of {proto.name} are not there ({error})", stage="verify",
                                where=str(path)) from error  # fmt: skip
        return np.asarray(values).reshape(tuple(proto.dims))

    def digest(self, name: str) -> str:
        """Return `sha256:…` of a file's bytes."""
        try:
            with open(self._inside(name), "rb") as file:
                return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise _unreadable(self.place / name, error) from error

    def _data_names(self) -> set[str]:
        tensors = self.model.graph.initializer
        return {e.value for t in tensors for e in t.external_data if e.key == "location"}

    def _inside(self, name: str) -> Path:
        path = self.place / name
        if path.name != name:
            raise ArtifactError(f"it refers to {name!r}, which is not a file in its folder", stage="verify",
                                where=str(self.place / "model.onnx"))  # fmt: skip
        return path

    def _json(self, name: str) -> dict[str, Any]:
        try:
            content = json.loads(self._bytes(name))
        except (ValueError, RecursionError) as error:
            raise ArtifactError(
                f"it is not whole JSON ({error})", stage="verify", where=str(self.place / name)
            ) from error
        if not isinstance(content, dict):
            raise ArtifactError("it holds no JSON object", stage="verify", where=str(self.place / name))
        return content

    def _bytes(self, name: str) -> bytes:
        try:
            return (self.place / name).read_bytes()
        except OSError as error:
            raise _unreadable(self.place / name, error) from error


def canonical(content: Any) -> str:
    """Return the digest of a JSON value: keys sorted, no blanks, ASCII."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def array_digest(array: Array) -> str:
    """Return the digest of an array's type, shape and elements, as plan.json has it.

    Args:
        array: the array.

    Returns:
        `sha256:` and hex digits.
    """
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return "sha256:" + digest.hexdigest()


def _unreadable(path: Path, error: OSError) -> ArtifactError:
    return ArtifactError(
        f"it cannot be read ({error.strerror or error}); verify needs realize/certificate.json, realize/plan.json and "
        "realize/model.onnx of a run folder",
        stage="verify",
        where=str(path),
    )
