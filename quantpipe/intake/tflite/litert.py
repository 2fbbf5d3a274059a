"""The one place that knows LiteRT's package: its flatbuffer schema and its interpreter, loaded when they are needed."""

from __future__ import annotations

import importlib
from functools import cache
from typing import Any

EXTRA = "tflite"
PACKAGES = ("ai_edge_litert.schema_py_generated", "ai_edge_litert.interpreter", "flatbuffers")


def missing() -> str | None:
    """Return why .tflite files can be neither written nor run here, and what to install; None where they can."""
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            return (
                f"the tflite form needs LiteRT's package, and {name} cannot be loaded ({error}): "
                f'pip install "quantpipe-onnx[{EXTRA}]"'
            )
    return None


@cache
def schema() -> Any:
    """Return the module of the flatbuffer schema."""
    return importlib.import_module("ai_edge_litert.schema_py_generated")


@cache
def flatbuffers() -> Any:
    """Return the module that packs flatbuffers."""
    return importlib.import_module("flatbuffers")


@cache
def interpreter() -> Any:
    """Return the module of the interpreter."""
    return importlib.import_module("ai_edge_litert.interpreter")
