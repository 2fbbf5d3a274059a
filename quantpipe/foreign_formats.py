"""Name a file of another format than ONNX, with the command that exports it; nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

_TORCH: Final = "in Python: torch.onnx.export(model.eval(), example_inputs, 'model.onnx')"
_TF: Final = "python -m tf2onnx.convert"
_SAFETENSORS: Final = "optimum-cli export onnx --model FOLDER_OR_NAME onnx_folder"

FORMATS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        ".pt": ("a PyTorch file", _TORCH),
        ".pth": ("a PyTorch file", _TORCH),
        ".pt2": ("a program exported by PyTorch", _TORCH),
        ".ckpt": ("a checkpoint, of PyTorch as a rule", _TORCH),
        ".safetensors": ("a file of weights without a graph", _SAFETENSORS),
        ".h5": ("a Keras model", f"{_TF} --keras {{path}} --output model.onnx"),
        ".hdf5": ("a Keras model", f"{_TF} --keras {{path}} --output model.onnx"),
        ".keras": ("a Keras model", "in Python: keras.saving.load_model('{path}').export('model.onnx', format='onnx')"),
        ".pb": (
            "a TensorFlow graph",
            f"{_TF} --graphdef {{path}} --inputs IN:0 --outputs OUT:0 --output model.onnx",
        ),
        ".pdmodel": ("a PaddlePaddle model", "paddle2onnx --model_dir FOLDER --save_file model.onnx"),
        ".mlmodel": ("a Core ML model", "in Python: onnxmltools.convert_coreml(…), or export from its source"),
        ".gguf": ("weights of llama.cpp without a graph", _SAFETENSORS),
    }
)
"""Suffix -> what it is, and the command that exports it to ONNX."""

_MAGIC: Final = ((0, b"\x89HDF", ".h5"), (0, b"GGUF", ".gguf"))
"""Offset in the file, bytes there, and the suffix of the format."""
_TFLITE: Final = b"TFL3"
_ZIP: Final = b"PK\x03\x04"


def foreign_format(path: Path) -> str | None:
    """Return what an existing file or folder is if not ONNX, and how it is exported; None if it may be read.

    The content decides, then the suffix: a file of another suffix that begins like one of these formats is named, too.
    """
    if path.is_dir():
        return _of_folder(path)
    suffix, begin = path.suffix.lower(), _begin(path)
    if begin[4:8] == _TFLITE:
        return None  # read as it is, under any suffix
    known = next((name for offset, magic, name in _MAGIC if begin[offset : offset + len(magic)] == magic), None)
    if known is None and begin[:4] == _ZIP:
        known = suffix if suffix in FORMATS else ".pt" if b"data.pkl" in begin else None
        if known is None:
            return "this is a zip archive; unpack it, and give the .onnx file inside"
    if known is None and suffix in FORMATS:
        known = suffix
    if known is None:
        return None
    what, command = FORMATS[known]
    return f"this is {what}, not an ONNX model; export it first: {command.replace('{path}', str(path))}"


def _of_folder(path: Path) -> str:
    if (path / "saved_model.pb").is_file():
        command = f"{_TF} --saved-model {path} --output model.onnx"
        return f"this is a TensorFlow SavedModel, not an ONNX model; export it first: {command}"
    if (path / "config.json").is_file():
        command = f"optimum-cli export onnx --model {path} onnx_folder"
        return f"this is the folder of a Hugging Face model, not an ONNX model; export it first: {command}"
    inside = sorted(p.name for p in path.glob("*.onnx"))
    named = f"; it has {', '.join(inside[:3])}" if inside else ""
    return f"this is a folder{named}; give the .onnx file"


def _begin(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except OSError:
        return b""
