"""A model in any form, as a file: quantpipe reads files, because large models stay in theirs."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import onnx
import onnx_ir

from quantpipe.api.torch_module import exported, is_module
from quantpipe.artifacts import write_bytes
from quantpipe.errors import ModelError

Model = str | os.PathLike[str] | bytes | onnx.ModelProto | Any
"""A path, the content of a file, a model in memory, or a torch.nn.Module."""

MOST_BYTES = onnx.checker.MAXIMUM_PROTOBUF
"""Of a model in one file; the weights of a larger one go to a data file beside it."""


def model_file(model: Model, folder: Path, samples: Any = None) -> Path:
    """Return the file of a model; one that is in memory is written to `folder`, under a name made of its content.

    Raises:
        ModelError: For an object that is no model, and for a model in memory with external weights whose place is
            unknown.
    """
    if isinstance(model, str | os.PathLike):
        return Path(model).expanduser().absolute()
    if isinstance(model, bytes):
        return _written(model, folder)
    if is_module(model):
        model = exported(model, samples)
    if not isinstance(model, onnx.ModelProto):
        raise ModelError(
            f"it is a {type(model).__name__}; legal are the path of an ONNX file, its content as bytes, an "
            "onnx.ModelProto, and a torch.nn.Module",
            stage="model",
        )
    outside = [t.name for t in model.graph.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    if outside:
        raise ModelError(
            f"{len(outside)} tensors, the first {outside[0]!r}, have their data in files, and a model in memory does "
            "not name their folder. Give the path of the model, or call onnx.load_external_data_for_model first",
            stage="model",
        )
    if model.ByteSize() < MOST_BYTES:
        return _written(model.SerializeToString(), folder)
    return _written_apart(model, folder)


def _written(content: bytes, folder: Path) -> Path:
    path = folder / f"model-{hashlib.sha256(content).hexdigest()[:12]}.onnx"
    if not path.is_file():
        write_bytes(path, content)
    return path


def _written_apart(model: onnx.ModelProto, folder: Path) -> Path:
    """Write the model with the weights in a data file; the caller's object stays as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    onnx_ir.save(onnx_ir.from_proto(model), path, external_data=f"{path.name}.data")
    return path
