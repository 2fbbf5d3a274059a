"""This machine's processor with instruction sets hidden (hidden.c), at full speed.

python -m tests.processors.hidden avx512 COMMAND ...    # the command as on x86 with AVX2, without AVX-512 and VNNI
python -m tests.processors.hidden vnni COMMAND ...      # with AVX-512, without VNNI
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).with_name("hidden.c")
KINDS = ("vnni", "avx512")


def lacking() -> str | None:
    """Why instruction sets cannot be hidden here; None where they can."""
    path = Path("/proc/cpuinfo")
    if not path.exists() or "cpuid_fault" not in path.read_text(encoding="utf-8").split():
        return "the processor has no cpuid_fault, so none of its instruction sets can be hidden"
    return None if shutil.which("cc") else "cc, a C compiler, is not installed"


@cache
def library() -> Path:
    """The compiled library, in a folder for this process."""
    folder = tempfile.TemporaryDirectory(prefix="hidden-")
    atexit.register(folder.cleanup)
    target = Path(folder.name) / "hidden.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", str(SOURCE), "-o", str(target), "-ldl"], check=True)
    return target


def environment(kind: str) -> dict[str, str]:
    """The variables that hide instruction sets from a command and its children."""
    if kind not in KINDS:
        raise ValueError(f"{kind!r} is not one of {', '.join(KINDS)}")
    # Programs with AddressSanitizer end where another library is loaded first.
    return {**os.environ, "LD_PRELOAD": str(library()), "HIDDEN": kind, "ASAN_OPTIONS": "verify_asan_link_order=0"}


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in KINDS:
        sys.exit(__doc__)
    if (reason := lacking()) is not None:
        sys.exit(reason)
    sys.exit(subprocess.run(sys.argv[2:], env=environment(sys.argv[1]), check=False).returncode)
