"""Read a model file, and report clearly what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir

from quantpipe.errors import ModelError, brief
from quantpipe.foreign_formats import foreign_format
from quantpipe.graph.io import SMALL, STAGE
from quantpipe.graph.spooled import spooled
from quantpipe.intake.tflite.read_file import is_tflite, read_tflite
from quantpipe.intake.vet import name_default_opset, vet

LEAST_APART = 1 << 24
"""Bytes of large initializers in a file from which on they are taken out of the protobuf that was read."""


def read_model(path: Path) -> ir.Model:
    """Read an ONNX file, or a .tflite file as ONNX; large external data stay on disk until they are asked for.

    Raises ModelError when the file is missing, empty, of another format, or has no nodes.
    """
    if path.exists() and (other := foreign_format(path)) is not None:
        raise ModelError(other, stage=STAGE, where=str(path))
    if not path.is_file():
        raise ModelError("there is no such file; model.path must name an ONNX model", stage=STAGE, where=str(path))
    try:
        proto = read_tflite(path) if is_tflite(path) else onnx.load(path, load_external_data=False)
        name_default_opset(proto)
        vet(proto, path)
        model = _with_arrays(proto)
        del proto
        ir.external_data.set_base_dir(model.graph, str(path.parent))
    except ModelError:
        raise
    except Exception as error:  # the parsers raise many types for broken input; all mean the same to the user
        raise ModelError(
            f"this is not a readable ONNX model ({type(error).__name__}: {brief(error)}); "
            "model.path must name a file that onnx.load accepts",
            stage=STAGE,
            where=str(path),
        ) from error
    if len(model.graph) == 0 or not model.graph.outputs:
        raise ModelError("the file holds no graph with nodes and outputs", stage=STAGE, where=str(path))
    return model


def _with_arrays(proto: onnx.ModelProto) -> ir.Model:
    """Return a model whose large initializers are arrays; `proto` loses their bytes.

    A protobuf copies its bytes whenever they are read, and keeps them as long as anything of it is in use.
    """
    names = [tensor.name for tensor in proto.graph.initializer]
    large = {t.name: t for t in proto.graph.initializer if _in_array(t)}
    if sum(t.ByteSize() for t in large.values()) < LEAST_APART or len({*names}) < len(names):
        return ir.from_proto(proto)
    arrays = dict(spooled({name: ir.from_proto(t) for name, t in large.items()}))
    abouts = {name: (ir.DataType(t.data_type), t.doc_string) for name, t in large.items()}
    for tensor in large.values():
        tensor.ClearField("raw_data")
    large.clear()
    model = ir.from_proto(onnx.load_from_string(proto.SerializeToString()))
    for name, array in arrays.items():
        dtype, text = abouts[name]
        model.graph.initializers[name].const_value = ir.Tensor(array, dtype, name=name, doc_string=text or None)
    return model


def _in_array(tensor: onnx.TensorProto) -> bool:
    """Return whether a tensor holds many bytes that NumPy reads as they are."""
    if not tensor.HasField("raw_data") or tensor.ByteSize() <= SMALL or tensor.metadata_props:
        return False
    return ir.DataType(tensor.data_type).bitwidth >= 8
