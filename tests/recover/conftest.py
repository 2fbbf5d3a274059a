from __future__ import annotations

from tests.e2e.conftest import program, zygote

__all__ = ["program", "zygote"]
