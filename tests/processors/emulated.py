"""Other processors, emulated: x86 without VNNI (haswell) and 64-bit Arm. See other_cpu.sh."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

SCRIPT = Path(__file__).with_name("other_cpu.sh")
KINDS = ("haswell", "arm64")


@cache
def lacking(kind: str) -> str | None:
    """Why a processor cannot be emulated here; None where it can. With CI=true nothing is lacking: it fails then."""
    if os.environ.get("CI") == "true":
        return None
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return "the emulated environment is set up from this machine's own, which has to be Linux on x86-64"
    tool = {"haswell": "qemu-x86_64", "arm64": "qemu-aarch64"}[kind]
    if shutil.which(tool) is None and (os.geteuid() != 0 or shutil.which("apt-get") is None):
        return f"{tool} (package qemu-user) is not installed, and only root can install it"
    return None


def run(kind: str, *arguments: str, timeout: float = 1700, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with some arguments on an emulated processor: this environment's, or NumPy and onnxruntime on Arm."""
    interpreter = [sys.executable] if kind == "haswell" else []
    command = ["bash", str(SCRIPT), kind, *interpreter, *arguments]
    # QEMU 7.2 crashes in the sorting code that NumPy has for AVX2.
    given = {**os.environ, "NPY_DISABLE_CPU_FEATURES": "AVX2", **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=given, check=False)
