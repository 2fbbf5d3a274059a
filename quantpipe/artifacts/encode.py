"""The bytes of an artifact: its content with its origin, as each kind of file carries it.

JSON has the origin in a top-level `origin` key, and text in leading comment lines. Npz has it in an `__origin__` entry
and, as a comment of the archive, the digest of all bytes before it. Any other file has a side file
`<name>.origin.json`.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.artifacts.digest import digest_array, digest_bytes, digest_json, digest_plain, plain
from quantpipe.artifacts.origin import Origin

ORIGIN_KEY = "origin"
NPZ_ORIGIN = "__origin__"
SEAL_BYTES = len(digest_bytes(b""))
"""Length of the comment that ends a sealed npz file."""


def side_file(path: Path) -> Path:
    """Return where the origin of a file stands that cannot carry one."""
    return path.with_name(path.name + ".origin.json")


def side_bytes(origin: Origin, content: str | None) -> bytes:
    """Return a side file; no `content` digest for a file that grows."""
    return dumped({ORIGIN_KEY: origin.header(content)})


def json_bytes(path: Path, payload: Mapping[str, Any], origin: Origin) -> bytes:
    """Return a JSON object with its origin; `path` is for messages.

    Raises ValueError where `payload` uses the key `origin`.
    """
    body = plain(payload)
    if ORIGIN_KEY in body:
        raise ValueError(f"{path}: the key '{ORIGIN_KEY}' is taken by the artifact's origin")
    return dumped({ORIGIN_KEY: origin.header(digest_plain(body)), **body})


def dumped(payload: Mapping[str, Any]) -> bytes:
    """Return a JSON file, laid out as all of them are."""
    return (json.dumps(payload, indent=1, allow_nan=False) + "\n").encode()


def text_bytes(text: str, origin: Origin, comment: str) -> bytes:
    """Return text after comment lines that hold the origin.

    `comment` opens a line (`#`, `//`, or `<!--` for HTML).
    """
    text = text.encode("utf-8", "backslashreplace").decode()  # names of files need not be text
    return (text_header(origin.header(digest_bytes(text.encode())), comment) + text).encode()


def text_header(header: Mapping[str, Any], comment: str) -> str:
    """Return the comment lines that open a text file."""
    markup = comment == "<!--"
    lines = []
    for key, value in header.items():
        encoded = json.dumps(value, sort_keys=True)
        # In a markup comment nothing may look like its end.
        encoded = encoded.replace("<", "\\u003c").replace(">", "\\u003e") if markup else encoded
        lines.append(f"{comment} origin.{key}: {encoded}{' -->' if markup else ''}\n")
    return "".join(lines)


LARGE = 1 << 27
"""Bytes of arrays from which a file is never compressed."""


def npz_bytes(path: Path, arrays: Mapping[str, NDArray[Any]], origin: Origin, *, compressed: bool = True) -> bytes:
    """Return an npz file with an `__origin__` string entry, sealed.

    Equal arrays give equal bytes. Floats hardly get smaller, at 30 MB a second: compress what is kept, below `LARGE`.

    Entries are written one by one, because `np.savez` takes names as keyword arguments and so rejects a tensor named
    `file`.
    """
    if NPZ_ORIGIN in arrays:
        raise ValueError(f"{path}: the entry '{NPZ_ORIGIN}' is taken by the artifact's origin")
    header = np.array(json.dumps(origin.header(digest_arrays(arrays)), sort_keys=True))
    buffer = io.BytesIO()
    small = sum(np.asanyarray(array).nbytes for array in arrays.values()) < LARGE
    kind = zipfile.ZIP_DEFLATED if compressed and small else zipfile.ZIP_STORED
    with zipfile.ZipFile(buffer, "w", kind, compresslevel=1) as archive:
        for name, array in {NPZ_ORIGIN: header, **arrays}.items():
            entry = zipfile.ZipInfo(f"{name}.npy")
            entry.compress_type = kind
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asanyarray(array), allow_pickle=False)
        archive.comment = bytes(SEAL_BYTES)
    # The view ends here: Python 3.12.1 crashes where the garbage collector finds one in a reference cycle.
    with buffer.getbuffer() as view, view[:-SEAL_BYTES] as content:
        view[-SEAL_BYTES:] = digest_bytes(content).encode()
    return buffer.getvalue()


def digest_arrays(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Return the digest, `sha256:` and hex digits, of named arrays in any order."""
    return digest_json({name: digest_array(np.asanyarray(array)) for name, array in arrays.items()})
