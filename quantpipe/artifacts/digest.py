"""Digests of bytes, JSON values, arrays and files: the names by which artifacts know each other.

Values are made plain on the way in: enums, paths, NumPy scalars and arrays become JSON values, and numbers that JSON
does not know (nan, inf) become null.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PlainMapping(dict[str, Any]):
    """A mapping of JSON values, as `plain` makes them, which is not looked through again."""


def plain(value: Any) -> Any:
    """Return the JSON value (dict, list, str, number, bool, None) that represents `value`.

    Raises TypeError if there is no such value.
    """
    if isinstance(value, PlainMapping):
        return value
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value):
        # What two equal values may differ in (a place in a file) is no part of what they are.
        named = [field.name for field in dataclasses.fields(value) if field.compare]
        return {name: plain(getattr(value, name)) for name in named}
    if isinstance(value, Set):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [plain(item) for item in value]
    raise TypeError(f"an artifact cannot hold a {type(value).__name__}: {value!r}")


def digest_bytes(data: bytes | memoryview) -> str:
    """Return `sha256:<hex>` of the bytes."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_json(payload: Any) -> str:
    """Return the digest of the canonical JSON (sorted keys, no spaces, ASCII): equal values give equal digests."""
    return digest_plain(plain(payload))


def digest_plain(payload: Any) -> str:
    """Return `digest_json` of a value that `plain` has made, without a second conversion."""
    return digest_bytes(json.dumps(payload, sort_keys=True, separators=(",", ":"), allow_nan=False).encode())


def digest_array(array: NDArray[Any]) -> str:
    """Return the digest, `sha256:` and hex digits, of dtype, shape and elements in C order.

    The memory layout does not matter.
    """
    if array.dtype.hasobject:
        raise TypeError("an array of Python objects has no stable digest")
    digest = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return "sha256:" + digest.hexdigest()


def digest_file(path: str | os.PathLike[str]) -> str:
    """Return the digest of a file's bytes, read in pieces; OSError if it cannot be read."""
    with open(path, "rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
