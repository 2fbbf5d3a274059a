"""Libraries of custom ops that every session of this process registers (`model.custom_ops`).

Nodes of such ops stay in float. A library stays registered until the process ends.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from quantpipe.errors import ConfigError, brief

KEY = "model.custom_ops"
GETTER = "get_library_path"
"""The function by which a Python package names its library, as onnxruntime_extensions does."""

_USED: dict[str, str] = {}
"""File -> how it was named."""


def use_custom_ops(libraries: Collection[str]) -> None:
    """Make every later session of this process register these libraries.

    A library is a file, or a Python package whose function `get_library_path` names the file. Raises ConfigError for
    one that does not exist.
    """
    for library in libraries:
        _USED.setdefault(_file(library), library)


def custom_ops() -> tuple[str, ...]:
    """Return the libraries in use: what another process needs for `use_custom_ops`."""
    return tuple(_USED)


def in_use(library: str) -> bool:
    """Return whether a file or package is among the libraries in use; nothing is imported."""
    return library in _USED.values() or str(Path(library).expanduser().resolve()) in _USED


def register_custom_ops(options: Any) -> None:
    """Register the libraries with a session's options. Raises ConfigError with the runtime's reason."""
    for library in _USED:
        try:
            options.register_custom_ops_library(library)
        except Exception as error:  # onnxruntime raises its own family of types
            raise ConfigError(
                f"names {library}, which onnxruntime cannot register ({brief(error)}); legal are libraries of custom "
                "ops that were built for this onnxruntime and this processor",
                where=KEY,
            ) from error


def _file(library: str) -> str:
    path = Path(library).expanduser()
    if path.is_file():
        return str(path.resolve())
    if library.isidentifier():
        try:
            found = getattr(importlib.import_module(library), GETTER)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"names {library!r}, which is no file, and no installed package with a function {GETTER} "
                f"({brief(error)}); legal are the path of a library, and such a package (onnxruntime_extensions)",
                where=KEY,
            ) from error
        return str(found())
    raise ConfigError(
        f"names {library!r}; there is no such file. Legal are the path of a library of custom ops (.so, .dll, .dylib), "
        "and the name of a package that has one (onnxruntime_extensions)",
        where=KEY,
    )
