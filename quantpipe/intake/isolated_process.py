"""Work on a model that nobody has run yet, in a process of its own.

What ends or stops that process does not end or stop the run. Native code reads the model there for the first time
(opset conversion, clean-up, the runtime). A crash, a loop without end, or more memory than the model can need becomes a
ModelError. The child is forked, so it costs some milliseconds and starts from what is loaded already.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import logging
import os
import pickle
import resource
import select
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from quantpipe.errors import PERHAPS_OURS, ModelError, QuantpipeError, fault

T = TypeVar("T")
Tell = Callable[[str], None]

log = logging.getLogger(__name__)

START_SECONDS = 15.0
"""Until the child must have said that it lives. One that does not was forked while another thread held a lock that it
needs (a program with threads of its own around this one); the work is then done here."""
IDLE_SECONDS = 10.0
"""Without using a processor, in the middle of a step. Work that waits for a lock whose owner was not forked along never
goes on; it is done here, too."""
POLL_SECONDS = 1.0
TAKES_MUCH = "If it really takes that much: model.isolate=false loads it without limits"
HEAD = struct.Struct("<Q")


@dataclass(frozen=True)
class Limits:
    """Limit what native code may take for a model that nobody has run yet.

    `seconds` is the limit of one step of the work; `bytes` is memory beyond the current memory of this process.
    """

    seconds: float
    bytes: int


class _Silent(Exception):
    """The child does not say that it lives, or waits for something that never comes."""


def apart(work: Callable[[Tell], T], ready: Callable[[], object], limits: Limits, where: str) -> T:
    """Return the result of `work`, done in a forked child.

    `work` reports each step that begins through its argument; its result must be picklable. `ready` runs in the child
    first, and shows that native code works there. Raises ModelError where a step exceeds the limits (seconds per step,
    bytes of memory) or ends the process, and any error of `work`.
    """
    if not sys.platform.startswith("linux"):
        return work(lambda step: None)
    try:
        return _in_child(work, ready, limits, where)
    except _Silent:
        log.warning("%s: loaded without a process of its own, because this one has threads that do not allow it", where)
        return work(lambda step: None)


def _in_child(work: Callable[[Tell], T], ready: Callable[[], object], limits: Limits, where: str) -> T:
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None where the descriptor was closed at the start
        stream.flush()
    source, target = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # forking with threads: `ready` is the answer to it
        pid = os.fork()
    if pid == 0:
        os.close(source)
        _child(work, ready, limits, target)
    os.close(target)
    try:
        result: T = _Messages(source, limits, where, pid).result()
        return result
    finally:
        os.close(source)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


# --- the child ------------------------------------------------------------------------------------------------------


def _child(work: Callable[[Tell], Any], ready: Callable[[], object], limits: Limits, target: int) -> NoReturn:
    """Run the work and never return: the interpreter's own end would run the parent's exit handlers."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is interrupted, too, and ends this process
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        faulthandler.disable()
        _die_with_parent()
        silence = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):
            os.dup2(silence, descriptor)  # a native library says its last words there; the parent says what happened
        ready()
        _limit_memory(limits.bytes)
        _send(target, ("step", "start"))
        found = work(lambda step: _send(target, ("step", step)))
        _send(target, ("done", found))
    except QuantpipeError as error:
        _note_causes(error)  # they are not pickled
        _send(target, ("error", error))
    except MemoryError:
        _send(target, ("memory", None))
    except BaseException as error:
        _send(target, ("fault", fault(error)))
    finally:
        os._exit(0)


def _note_causes(error: BaseException) -> None:
    """Add the text of each cause as a note, which a traceback shows."""
    cause = error.__cause__
    while cause is not None:
        error.add_note(f"caused by {type(cause).__name__}: {cause}")
        cause = cause.__cause__


def _send(target: int, message: tuple[str, Any]) -> None:
    data = pickle.dumps(message, protocol=5)
    view = memoryview(HEAD.pack(len(data)) + data)
    while view:
        view = view[os.write(target, view) :]


def _limit_memory(more: int) -> None:
    """Limit own memory to so many bytes beyond the current size; mapped files are not counted."""
    with open("/proc/self/status") as status:
        used = next((int(line.split()[1]) << 10 for line in status if line.startswith("VmData:")), 0)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = used + more
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard < 0 else min(wanted, hard), hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _die_with_parent() -> None:
    """Kill this process however the parent ends, by prctl(PR_SET_PDEATHSIG)."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


# --- the parent -----------------------------------------------------------------------------------------------------


class _Messages:
    """Read the messages of the child, one after the other."""

    def __init__(self, source: int, limits: Limits, where: str, pid: int) -> None:
        self._source, self._limits, self._where, self._pid = source, limits, where, pid
        self._step = ""

    def result(self) -> Any:
        while True:
            kind, content = self._next()
            if kind == "step":
                self._step = content
            elif kind == "done":
                return content
            elif kind == "error":
                raise content
            elif kind == "memory":
                raise self._error(f"needs more memory than {self._limits.bytes >> 20} MiB")
            else:
                raise self._error(f"fails ({content})", PERHAPS_OURS)

    def _next(self) -> tuple[str, Any]:
        size = HEAD.unpack(self._read(HEAD.size))[0]
        found: tuple[str, Any] = pickle.loads(self._read(size))
        return found

    def _read(self, size: int) -> bytes:
        data = bytearray()
        deadline = time.monotonic() + (self._limits.seconds if self._step else START_SECONDS)
        used, since = _used(self._pid), time.monotonic()
        while len(data) < size:
            now = time.monotonic()
            if not select.select([self._source], [], [], min(POLL_SECONDS, max(0.0, deadline - now)))[0]:
                now, before, used = time.monotonic(), used, _used(self._pid)
                since = now if used != before else since
                if (now >= deadline and not self._step) or now - since >= IDLE_SECONDS:
                    raise _Silent
                if now >= deadline:
                    raise self._error(f"is not done after {self._limits.seconds:.0f} s")
                continue
            chunk = os.read(self._source, min(size - len(data), 1 << 20))
            if not chunk:
                raise self._ended()
            data += chunk
        return bytes(data)

    def _ended(self) -> Exception:
        _, status = os.waitpid(self._pid, 0)
        code = os.waitstatus_to_exitcode(status)
        if not self._step:
            return _Silent()
        if code == -signal.SIGKILL:
            return self._error("was killed (by the system, where memory is short)")
        return self._error(
            f"ended the process it ran in ({signal.Signals(-code).name if code < 0 else f'exit {code}'})"
        )

    def _error(self, what: str, more: str = TAKES_MUCH) -> ModelError:
        return ModelError(
            f"{self._step} {what}; legal is a model that onnxruntime can load and run on a few samples. {more}",
            stage="model",
            where=self._where,
        )


def _used(pid: int) -> str:
    """Return the CPU ticks of a process in user and system mode; "" where /proc does not have them."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return " ".join(file.read().rpartition(")")[2].split()[11:13])
    except OSError:
        return ""
