"""Model files as artifacts: one file, or a model with its weights in a data file beside it where it is large.

The data file is named after its content (`<model>-<digest>.data`) and written first; so the model file that stands
always finds the very weights it was written with, also after a crash between the two.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import onnx_ir as ir

from quantpipe.artifacts import Origin, is_current, write_bytes, write_pieces
from quantpipe.graph.io import model_bytes
from quantpipe.graph.outside import Place, heavy_weights, is_heavy, layout, packed, relocated

DIGITS = 16
"""Hexadecimal digits of the content's SHA-256 in a data file's name."""


def write_model(path: Path, model: ir.Model, origin: Origin) -> None:
    """Write a model with its origin. Weights that lie in files go to a data file beside it, one at a time in memory.

    Data files that an earlier model at `path` used are removed. Raises StorageError when the disk is full.
    """
    if not is_heavy(model):
        write_bytes(path, model_bytes(model), origin)
        _remove_data(path, keep=None)
        return
    weights = heavy_weights(model)
    digest = hashlib.sha256()
    for piece in packed(weights):
        digest.update(piece)
    data = path.with_name(f"{path.stem}-{digest.hexdigest()[:DIGITS]}.data")
    write_pieces(data, packed(weights), origin)
    places = {name: Place(data, *span) for name, span in layout(weights).items()}
    write_bytes(path, relocated(model, places, data.parent), origin)
    _remove_data(path, keep=data)


def is_model_current(path: Path, origin: Origin) -> bool:
    """Whether the model and the data files it refers to are there, undamaged, and made from `origin`."""
    return is_current(path, origin) and all(is_current(data, origin) for data in data_files(path))


def data_files(path: Path) -> list[Path]:
    """The files that hold the weights of the model at `path`; none for a model in one piece."""
    tensors = onnx.load(path, load_external_data=False).graph.initializer
    return sorted({path.with_name(e.value) for t in tensors for e in t.external_data if e.key == "location"})


def _beside(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{path.stem}-*.data"))


def _remove_data(path: Path, keep: Path | None) -> None:
    for stale in _beside(path):
        if stale != keep:
            stale.unlink()
            stale.with_name(f"{stale.name}.origin.json").unlink(missing_ok=True)
