"""Model files as artifacts: one file, or, if large, a model with its weights in a data file next to it.

The data file is named after its content (`<model>-<digest>.data`), and all files are put in place as one unit. So the
model file always finds the weights it was written with, also after a crash in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx_ir as ir

from quantpipe.artifacts import ArtifactUnit, Origin, is_current
from quantpipe.artifacts.encode import side_file
from quantpipe.errors import DamagedError
from quantpipe.graph.external_weights import FilePlace, heavy_weights, is_heavy, layout, packed, relocated
from quantpipe.graph.io import model_bytes

DIGITS = 16
"""Hexadecimal digits of the content's SHA-256 in a data file's name."""


def write_model(path: Path, model: ir.Model, origin: Origin) -> None:
    """Write a model with its origin. External weights go to a data file next to it, one at a time in memory.

    Data files that an earlier model at `path` used are removed. Raises StorageError when the disk is full.
    """
    with ArtifactUnit(path.parent) as unit:
        stage_model(unit, path, model, origin)


def stage_model(unit: ArtifactUnit, path: Path, model: ir.Model, origin: Origin) -> None:
    """Write a model with its origin as a part of a unit that is written as a whole."""
    data = None
    if not is_heavy(model):
        unit.bytes(path, model_bytes(model), origin)
    else:
        weights = heavy_weights(model)
        digest = hashlib.sha256()
        for piece in packed(weights):
            digest.update(piece)
        data = path.with_name(f"{path.stem}-{digest.hexdigest()[:DIGITS]}.data")
        unit.pieces(data, packed(weights), origin)
        places = {name: FilePlace(data, *span) for name, span in layout(weights).items()}
        unit.bytes(path, relocated(model, places, data.parent), origin)
    for stale in _beside(path):
        if stale != data:
            unit.remove(stale)
            unit.remove(side_file(stale))


def is_model_current(path: Path, origin: Origin, damaged: Callable[[DamagedError], None] | None = None) -> bool:
    """Return whether the model and the data files it refers to are there, undamaged, and made from `origin`."""
    return is_current(path, origin, damaged) and all(is_current(data, origin, damaged) for data in data_files(path))


def data_files(path: Path) -> list[Path]:
    """Return the files that hold the weights of the model at `path`; none for a model in one piece."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    return sorted({path.with_name(e.value) for t in tensors for e in t.external_data if e.key == "location"})


def _beside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.stem}-*.data"))
