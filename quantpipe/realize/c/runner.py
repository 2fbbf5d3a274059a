"""Compile a C form by the compiler of this machine, and run it on samples."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.realize.c.c_buffers import CWalk
from quantpipe.realize.c.program import entering
from quantpipe.realize.protocol import Feeds

NAMES = ("cc", "gcc", "clang")
STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Werror")
"""The file has to be free of warnings."""
SECONDS = 0.3
"""What a measurement of the latency lasts, about."""


def compiler() -> str | None:
    """Return the C compiler of this machine: the variable CC, else the first of the usual names."""
    names = [own] if (own := os.environ.get("CC")) else NAMES
    return next((found for name in names if (found := shutil.which(name)) is not None), None)


def missing_compiler() -> str:
    """Return advice for a machine without a compiler."""
    return f"there is no C compiler on this machine (looked for {', '.join(NAMES)}); install one, or name it in CC"


def build(text: str, folder: Path, *defines: str, flags: Sequence[str] = ()) -> Path:
    """Return a program made of a C file in `folder`, with the definitions given.

    `flags` are more flags of the compiler. Raises HardwareError where the compiler rejects the file.
    """
    found = compiler()
    if found is None:
        raise HardwareError(missing_compiler(), stage="evaluate")
    name = "-".join(defines).lower() or "plain"
    source, program = folder / f"{name}.c", folder / name
    source.write_text(text)
    command = [found, *STRICT, *flags, *(f"-D{d}" for d in defines), "-o", str(program), str(source), "-lm"]
    made = subprocess.run(command, capture_output=True, text=True, check=False)
    if made.returncode:
        raise HardwareError(f"{found} rejects the C file: {made.stderr.strip()[:500]}", stage="evaluate", where=name)
    return program


class CRunner:
    """Run a C file: it gives the integers of every tensor."""

    def __init__(self, text: str, walk: CWalk, flags: Sequence[str] = ()) -> None:
        self._walk, self._names, self._text, self._flags = walk, entering(walk), text, tuple(flags)
        self._folder = tempfile.TemporaryDirectory(prefix="quantpipe-c-")
        place = Path(self._folder.name)
        try:
            self._traced = build(text, place, "QUANTPIPE_MAIN", "QUANTPIPE_TRACE", flags=flags)
        except BaseException:
            self.close()
            raise

    @property
    def tensors(self) -> Collection[str]:
        """Return the tensors whose integers `run` gives."""
        return list(dict.fromkeys(name for name, _ in self._walk.traced))

    def takes(self, inputs: Feeds) -> bool:
        """Return whether samples have the shape that the file is made for, the number of samples aside."""
        shapes = {name: self._walk.graph.shapes[name] for name in self._names}
        same = all(np.shape(inputs[name])[1:] == shape[1:] for name, shape in shapes.items())
        return same and all(np.shape(inputs[name])[0] % shape[0] == 0 for name, shape in shapes.items() if shape)

    def run(self, inputs: Feeds) -> Mapping[str, NDArray[Any]]:
        """Return the stored integers of every tensor for some samples."""
        whole = self._called(self._traced, self._bytes(inputs))
        size = sum(b.count * b.width for _, b in self._walk.traced)
        count = len(whole) // size
        if count * size != len(whole):
            raise HardwareError(f"the C program gave {len(whole)} bytes, {size} a sample were due", stage="evaluate")
        table = np.frombuffer(whole, np.uint8).reshape(count, size)
        found: dict[str, NDArray[Any]] = {}
        at = 0
        for name, buffer in self._walk.traced:
            part = np.ascontiguousarray(table[:, at : at + buffer.count * buffer.width])
            at += buffer.count * buffer.width
            kind = np.dtype(buffer.ctype.removesuffix("_t"))
            shape = buffer.shape if count == 1 else (count * buffer.shape[0], *buffer.shape[1:])
            found.setdefault(name, part.view(kind).reshape(shape))
        return found

    def latency(self, inputs: Feeds) -> float | None:
        """Return the milliseconds of one run, from how much longer many take than one."""
        plain = build(self._text, Path(self._folder.name), "QUANTPIPE_MAIN", flags=self._flags)
        data = self._bytes({name: values[: self._batch(name)] for name, values in inputs.items()})

        def seconds(times: int) -> float:
            start = time.perf_counter()
            self._called(plain, data, str(times))
            return time.perf_counter() - start

        once = seconds(1)
        few = 8
        each = max(seconds(1 + few) - once, 1e-7) / few
        many = max(few, min(100_000, int(SECONDS / each)))
        return 1000 * max(seconds(1 + many) - once, 0.0) / many

    def close(self) -> None:
        """Remove the programs."""
        self._folder.cleanup()

    def _batch(self, name: str) -> int | None:
        shape = self._walk.graph.shapes.get(name, ())
        return shape[0] if shape else None

    def _bytes(self, inputs: Feeds) -> bytes:
        """Return the integers of all samples, sample by sample."""
        parts: list[NDArray[np.uint8]] = []
        for name, buffer in zip(self._names, self._walk.inputs, strict=True):
            q = self._walk.plan.quantizers[name]
            stored = intmath.quantize(inputs[name], q.scale, q.zero_point, qmin=q.qmin, qmax=q.qmax, dtype=q.dtype)
            parts.append(np.ascontiguousarray(stored).reshape(-1, buffer.count).view(np.uint8))
        return np.concatenate(parts, axis=1).tobytes()

    def _called(self, program: Path, data: bytes, *arguments: str) -> bytes:
        done = subprocess.run([str(program), *arguments], input=data, capture_output=True, check=False)
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip()[-500:]
            raise HardwareError(f"the C program ended with {done.returncode}: {told}", stage="evaluate")
        return done.stdout
