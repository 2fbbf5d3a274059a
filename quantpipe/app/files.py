"""Find the files that are shipped with the program: configuration, experiments, the embedded model."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]


def folder_of(name: str) -> Path:
    """Return conf/ or experiments/: inside the installed package, or next to it in a checkout."""
    inside = PACKAGE / name
    return inside if inside.is_dir() else PACKAGE.parent / name


def asset(name: str) -> str:
    """Return the path of a file that comes with the package."""
    return str(PACKAGE / "assets" / name)
