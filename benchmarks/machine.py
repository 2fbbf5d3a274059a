"""The processor that figures were measured on."""

from __future__ import annotations

import os
import platform
from pathlib import Path


def processor() -> str:
    """Return the processor's name, and whether it adds products of uint8 and int8 exactly (VNNI).

    tests/processors/hidden.py hides instruction sets, which /proc/cpuinfo does not show.
    """
    path = Path("/proc/cpuinfo")
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    flags = next((line for line in lines if line.startswith("flags")), "")
    if hidden := os.environ.get("HIDDEN"):
        return f"{name}, without VNNI ({'AVX-512 and VNNI' if hidden == 'avx512' else 'VNNI'} hidden)"
    return f"{name}, {'with' if 'vnni' in flags else 'without'} VNNI"
