"""One process per run folder; the kernel frees the lock of a dead owner."""

from __future__ import annotations

import errno
import fcntl
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from quantpipe.artifacts import FileLock, RunLock
from quantpipe.errors import ArtifactError

HOLD = """
import os, sys, time
from quantpipe.artifacts import RunLock
with RunLock(sys.argv[1]):
    worker = len(sys.argv) > 2 and os.fork()
    if not worker:  # with a second argument this is the worker, which outlives its parent
        sys.stdout.write("held\\n"); sys.stdout.flush()
    time.sleep(5 if len(sys.argv) > 2 else 60)
    os._exit(0)
"""


def _holder(folder: Path, *extra: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), *extra], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    return process


def test_a_second_process_is_refused_with_the_owners_pid(tmp_path: Path) -> None:
    owner = _holder(tmp_path / "run")
    try:
        with pytest.raises(ArtifactError, match=f"process {owner.pid} on ") as caught, RunLock(tmp_path / "run"):
            pass
        assert str(tmp_path / "run") in str(caught.value)
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        owner.stdout.close()  # type: ignore[union-attr]
    with RunLock(tmp_path / "run"):  # kill -9 frees it
        pass


def test_orphaned_workers_do_not_keep_the_lock(tmp_path: Path) -> None:
    owner = _holder(tmp_path, "fork")
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    with RunLock(tmp_path):
        pass
    owner.stdout.close()  # type: ignore[union-attr]


def test_it_can_be_taken_again_and_is_released_by_errors(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), RunLock(tmp_path):
        with pytest.raises(ArtifactError, match=f"process {os.getpid()} on "), RunLock(tmp_path):
            pass
        raise RuntimeError
    with RunLock(tmp_path):
        pass


def test_forked_children_leave_the_lock_to_the_parent(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        child = multiprocessing.get_context("fork").Process(target=os.getpid)
        child.start()
        child.join()
        with pytest.raises(ArtifactError), RunLock(tmp_path):
            pass


def test_half_written_files_of_a_killed_run_are_cleared(tmp_path: Path) -> None:
    (tmp_path / "realize").mkdir()
    leftovers = [tmp_path / ".a.json.1.ab.quantpipe-tmp", tmp_path / "realize" / ".model.onnx.1.cd.quantpipe-tmp"]
    for path in (*leftovers, tmp_path / "keep.tmp"):
        path.write_text("")
    with RunLock(tmp_path):
        assert not any(path.exists() for path in leftovers) and (tmp_path / "keep.tmp").exists()


def test_a_waiting_lock_waits(tmp_path: Path) -> None:
    order: list[str] = []

    def second() -> None:
        with FileLock(tmp_path / "x", wait=True):
            order.append("second")

    with FileLock(tmp_path / "x"):
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.2)
        order.append("first")
    thread.join(5)
    assert order == ["first", "second"]


def test_a_file_system_without_locks_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with caplog.at_level(logging.WARNING), RunLock(tmp_path):
        assert "knows no locks" in caplog.text
