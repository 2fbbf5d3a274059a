"""What can be answered before anything is loaded: a named file that is missing, or a model of another format.

Libraries take seconds to load on a slow disk. Only plain values are looked at (no lists of a sweep, no references), and
only keys that are always files; whatever is in doubt is left to the checks of the configuration, which come later and
use the same words.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from quantpipe.foreign_formats import foreign_format

_DATA = "no such file or folder (from {key})."
FILES = {
    "model.path": ("model", "there is no such file; model.path must name an ONNX model"),
    **{f"dataset.{part}path": ("data", _DATA) for part in ("", "calibrate.", "search.", "evaluate.")},
}
"""Key -> where and what is wrong, in words."""

_PLAIN = re.compile(r"[\w/.:@%~-]+")


def missing_file(arguments: Sequence[str], folder: Path) -> str | None:
    """Return what is wrong with a file that the command line names, or None."""
    if any(argument.startswith("-") for argument in arguments):
        return None  # --help and --cfg answer whatever else is given
    for argument in arguments:
        key, _, value = argument.partition("=")
        if key not in FILES or not _PLAIN.fullmatch(value) or value == "null":
            continue
        path = folder / Path(value).expanduser()
        where, what = FILES[key]
        if not path.exists():
            return f"{where}: {path}: {what.format(key=key)}"
        if key == "model.path" and (other := foreign_format(path)) is not None:
            return f"{where}: {path}: {other}"
    return None
