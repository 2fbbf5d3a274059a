"""Files of samples that claim what they do not hold: refused at once, by name, whatever the claim."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from quantpipe.data.labels import as_labels, read_labels
from quantpipe.data.sources.arrays import ArrayFile
from quantpipe.data.sources.npz import NpzDataset
from quantpipe.errors import DataError
from quantpipe.types import TensorInfo

INPUT = [TensorInfo("x", (None, 4), "float32")]


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


def described(shape: object, kind: str = "|u1") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}"


HEADERS = {
    "a billion rows": npy(described((10**9,)), bytes(100)),
    "of nothing": npy(described((10**9, 0))),
    "negative": npy(described((-1, 4)), bytes(100)),
    "beyond 64 bits": npy(described((2**70, 2**70)), bytes(100)),
    "deep": npy("(" * 9000 + ")" * 9000),
    "deep lists": npy("{'descr': " + "[" * 4000 + "]" * 4000 + "}"),
    "no dtype": npy(described((4,), "nonsense"), bytes(4)),
    "objects": npy(described((4,), "|O"), bytes(32)),
    "cut short": npy(described((4, 4), "<f4"), bytes(60)),
    "no header": b"\x93NUMPY\x01\x00\xff\xff",
    "unknown version": b"\x93NUMPY\x09\x00\xff\xff",
}


def test_headers_that_lie(tmp_path: Path) -> None:
    """As a file of its own, and in an archive, stored and compressed."""
    for name, data in HEADERS.items():
        tracemalloc.start()
        (tmp_path / "a.npy").write_bytes(data)
        with pytest.raises(DataError, match=r"a\.npy"):
            ArrayFile(tmp_path / "a.npy", None)
        for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            with zipfile.ZipFile(tmp_path / "a.npz", "w", how) as archive:
                archive.writestr("images.npy", data)
            with pytest.raises(DataError, match="images"):
                ArrayFile(tmp_path / "a.npz", "images")
        assert tracemalloc.get_traced_memory()[1] < 1 << 25, name
        tracemalloc.stop()


def test_archives_that_lie(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    buffer = io.BytesIO()
    np.savez(buffer, images=np.zeros((8, 4), np.float32))
    good = buffer.getvalue()
    encrypted = bytearray(good)
    encrypted[6] |= 1  # the flag in the local header, and that in the directory
    encrypted[good.index(b"PK\x01\x02") + 8] |= 1
    for data in (bytes(encrypted), good[:-10], good[:60], b"PK\x05\x06" + bytes(18)):
        path.write_bytes(data)
        with pytest.raises(DataError, match=r"a\.npz"):
            NpzDataset(path=str(path)).splits(INPUT, None, 0)


def test_a_member_that_claims_more_than_it_can_unpack_to(tmp_path: Path) -> None:
    path, size = tmp_path / "a.npz", 4 * 10**9
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("images.npy", npy(described((10**9, 4)), bytes(1000)))
    data = bytearray(path.read_bytes())
    head = len(npy(described((10**9, 4))))
    place = data.index(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", size + head)
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="which takes 4000000000 bytes, and it holds"):
        ArrayFile(path, "images")


def test_an_archive_without_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz")
    with pytest.raises(DataError, match=r"a\.npz"):
        NpzDataset(path=str(tmp_path / "a.npz")).splits(INPUT, None, 0)
    two = [*INPUT, TensorInfo("z", (None, 4), "float32")]
    np.savez(tmp_path / "b.npz", labels=np.zeros(4, np.int64))
    with pytest.raises(DataError, match=r"b\.npz: .*nothing to give to the model"):
        NpzDataset(path=str(tmp_path / "b.npz")).splits(two, None, 0)


def test_labels_beyond_any_class(tmp_path: Path) -> None:
    path = tmp_path / "labels.csv"
    for text in ("9" * 30, "9" * 5000, "٣", "1_0", "--3", "1e3"):
        path.write_text(f"wnid,index\na,{text}\n")
        with pytest.raises(DataError, match="is not a class index"):
            read_labels(path, ("wnid", "index"))
    path.write_text("wnid,index\na, +3\nb,-1\n")
    assert read_labels(path, ("wnid", "index")) == {"a": 3, "b": -1}
    with pytest.raises(DataError, match="a label is 18446744073709551615"):
        as_labels(np.array([2**64 - 1], np.uint64), 1, "labels")
