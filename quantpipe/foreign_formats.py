"""Name a file of another format than ONNX, with the command that exports it, and a damaged ONNX file.

Nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO, Final

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
_LFS: Final = b"version https://git-lfs"
_WEB: Final = (b"<!doctype", b"<html")
_GRAPH: Final = 7
"""Number of the field of a ModelProto that holds its graph."""
_SIZES: Final = MappingProxyType({1: 8, 5: 4})
"""Wire type of a protobuf's field -> its bytes, where they are always as many."""


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
        return _damage(path, begin) if suffix == ".onnx" else None
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


def _damage(path: Path, begin: bytes) -> str | None:
    """Return what is wrong with a file that should be ONNX, from its first bytes and from the lengths in it."""
    if not begin:
        return "this file is empty; model.path must name an ONNX model"
    if begin.startswith(_LFS):
        return "this is a pointer of Git LFS, not the model itself; fetch the model with: git lfs pull"
    if begin.lstrip().lower().startswith(_WEB):
        return "this is a web page, not an ONNX model; download the file that the page links to"
    try:
        with path.open("rb") as file:
            wrong = _broken_field(file, os.fstat(file.fileno()).st_size)
    except OSError:
        return None
    if wrong is None:
        return None
    return f"this is not a readable ONNX model ({wrong}); model.path must name a file that onnx.load accepts"


def _broken_field(file: BinaryIO, size: int) -> str | None:
    """Return what breaks the row of fields of a protobuf; contents of fields are skipped, not read."""
    while (at := file.tell()) < size:
        key = _number(file)
        if key is None:
            return "the file ends inside of a field; copy or download it again"
        number, wire = key >> 3, key & 7
        if number == 0 or wire not in (0, 2, *_SIZES):
            return f"its byte {at} begins no field of a protobuf"
        value = _SIZES[wire] if wire in _SIZES else _number(file)
        if value is None:
            return "the file ends inside of a field; copy or download it again"
        length = 0 if wire == 0 else value
        if (missing := file.tell() + length - size) > 0:
            what = "graph" if number == _GRAPH else f"field {number}"
            return f"the file ends {missing:,} bytes early: its {what} has {length:,} bytes; copy or download it again"
        file.seek(length, os.SEEK_CUR)
    return None


def _number(file: BinaryIO) -> int | None:
    """Return the next number of a protobuf, of at most ten bytes; None if the file ends first."""
    value = 0
    for place in range(10):
        byte = file.read(1)
        if not byte:
            return None
        value |= (byte[0] & 0x7F) << 7 * place
        if byte[0] < 0x80:
            break
    return value


def _begin(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(512)
    except OSError:
        return b""
