"""Model files: reading them with clear errors, hashing, and turning models into bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import onnx
import onnx_ir as ir

from quantpipe.errors import ModelError

STAGE = "model"


def read_model(path: Path) -> ir.Model:
    """Read an ONNX file; large external data stay on disk until they are asked for.

    Raises ModelError when the file is missing, empty, not ONNX, or has no nodes.
    """
    if not path.is_file():
        raise ModelError("there is no such file; model.path must name an ONNX model", stage=STAGE, where=str(path))
    try:
        model = ir.load(path)
    except Exception as error:  # the parsers raise many types for broken input; all mean the same to the user
        raise ModelError(
            f"this is not a readable ONNX model ({type(error).__name__}: {_first_line(error)}); "
            "model.path must name a file that onnx.load accepts",
            stage=STAGE,
            where=str(path),
        ) from error
    if len(model.graph) == 0 or not model.graph.outputs:
        raise ModelError("the file holds no graph with nodes and outputs", stage=STAGE, where=str(path))
    return model


def file_hash(path: Path, model: ir.Model) -> str:
    """`sha256:` of the file's bytes, and of its external data files where it has any."""
    digest = hashlib.sha256(path.read_bytes())
    externals = {
        Path(tensor.path)
        for value in model.graph.initializers.values()
        if isinstance(tensor := value.const_value, ir.ExternalTensor)
    }
    for file in sorted(f for f in externals if f.is_file()):
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 22):
                digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def load_external(model: ir.Model, path: Path) -> None:
    """Bring external data into memory, in place: the runtime gets models as bytes and could not find the files.

    Raises ModelError when a data file is missing or too short.
    """
    try:
        ir.external_data.load_to_model(model)
    except Exception as error:  # missing file, short file, no permission: all mean the same to the user
        raise ModelError(
            f"its external data cannot be read ({type(error).__name__}: {_first_line(error)}); "
            "the data files must lie beside the model",
            stage=STAGE,
            where=str(path),
        ) from error


def model_proto(model: ir.Model) -> onnx.ModelProto:
    """The protobuf form of a model."""
    proto = ir.to_proto(model)
    if not isinstance(proto, onnx.ModelProto):
        raise ModelError("the model could not be serialized", stage=STAGE)
    return proto


def model_bytes(model: ir.Model) -> bytes:
    """A model as the bytes of an ONNX file."""
    data: bytes = model_proto(model).SerializeToString()
    return data


def _first_line(error: Exception) -> str:
    text = str(error).strip()
    return text.splitlines()[0][:200] if text else "no details"
