"""A file is there whole or not at all, whatever happens to its writer."""

from __future__ import annotations

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from quantpipe.artifacts import Origin, write_bytes, write_json
from quantpipe.errors import StorageError


def _only(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def _full(*_: object) -> int:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["write", "fsync"])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    path = tmp_path / "report.json"
    write_json(path, {"a": 1}, Origin("report"))
    before = path.read_bytes()
    monkeypatch.setattr(os, call, _full)
    with pytest.raises(StorageError, match="No space left on device") as caught:
        write_json(path, {"a": 2}, Origin("report"))
    assert str(path) in str(caught.value) and caught.value.exit_code == 2
    assert path.read_bytes() == before and _only(tmp_path) == ["report.json"]


def test_a_disk_that_fills_up_half_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real, calls = tmp_path / "a.bin", os.write, []

    def short(descriptor: int, data: memoryview) -> int:
        calls.append(len(data))
        return real(descriptor, data[:10]) if len(calls) < 3 else _full()

    write_bytes(path, b"old")
    monkeypatch.setattr(os, "write", short)
    with pytest.raises(StorageError):
        write_bytes(path, b"x" * 100)
    assert calls == [100, 90, 80] and path.read_bytes() == b"old" and _only(tmp_path) == ["a.bin"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    write_bytes(tmp_path / "a.bin", bytes(range(100)))
    assert (tmp_path / "a.bin").read_bytes() == bytes(range(100))


def test_an_interrupt_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "a.bin", b"x")
    assert _only(tmp_path) == []


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "folder").write_text("")
    with pytest.raises(StorageError, match=r"Not a directory|File exists"):
        write_bytes(tmp_path / "folder" / "a.bin", b"x")


def test_a_file_system_that_cannot_sync_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    write_bytes(tmp_path / "a.bin", b"x")
    assert (tmp_path / "a.bin").read_bytes() == b"x"


def test_long_names_and_usual_permissions(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 240)
    write_bytes(path, b"x")
    (tmp_path / "plain").write_text("")
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_killed_writer_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    code = (
        "import sys; from quantpipe.artifacts import write_bytes\n"
        "for i in range(10**9): write_bytes(sys.argv[1], bytes([i % 251]) * 300_000)"
    )
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
        before = path.stat().st_mtime_ns if path.exists() else 0
        deadline = time.monotonic() + 20
        while (not path.exists() or path.stat().st_mtime_ns == before) and time.monotonic() < deadline:
            time.sleep(0.002)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        data = path.read_bytes()
        assert len(data) == 300_000 and len(set(data)) == 1
