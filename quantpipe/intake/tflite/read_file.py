"""Read a .tflite file as an ONNX model of the same network, with the file's own integers and scales."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from quantpipe.errors import ModelError
from quantpipe.intake.tflite import read_elements, read_further, read_moves, read_products
from quantpipe.intake.tflite.contents import NO_TENSOR, NUMPY, STAGE, contents_of, refused
from quantpipe.intake.tflite.intake import Reader, TfliteIntake, UnreadOperator, unread
from quantpipe.intake.tflite.layout import Order, plain
from quantpipe.intake.tflite.operators import IDENTIFIER
from quantpipe.intake.tflite.read_tables import is_inside, recorded_functions, write_function

READERS: Mapping[str, Reader] = {
    **read_products.READERS,
    **read_elements.READERS,
    **read_moves.READERS,
    **read_further.READERS,
}
"""Operator -> what reads it."""

DAMAGE = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError, struct.error)
"""What operands and options that do not fit an operator raise."""

STATE = "it keeps values between runs"
REASONS: Mapping[str, str] = {
    **dict.fromkeys(("VAR_HANDLE", "READ_VARIABLE", "ASSIGN_VARIABLE", "SVDF", "CALL_ONCE"), STATE),
    **dict.fromkeys(("IF", "WHILE", "CALL"), "it runs another graph of the file"),
    **dict.fromkeys(
        ("LSTM", "RNN", "UNIDIRECTIONAL_SEQUENCE_LSTM", "UNIDIRECTIONAL_SEQUENCE_RNN", "BIDIRECTIONAL_SEQUENCE_LSTM"),
        "a fused recurrent layer",
    ),
    "LOCAL_RESPONSE_NORMALIZATION": "kernels of LiteRT differ in their window",
    **dict.fromkeys(("RANDOM_STANDARD_NORMAL", "RANDOM_UNIFORM", "MULTINOMIAL"), "it draws random numbers"),
}
"""Operators that are not read, with reasons; others are of no known ONNX form."""

METADATA = "tflite_places"
"""The metadata of the ONNX model: `FilePlaces` as JSON."""
SUFFIX = ".tflite"


def is_tflite(path: Path) -> bool:
    """Return whether a path names a TensorFlow Lite file: by its content, or else by its suffix."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(8)[4:] == IDENTIFIER or path.suffix.lower() == SUFFIX


def read_tflite(path: Path) -> onnx.ModelProto:
    """Return the network of a .tflite file as ONNX; inputs and outputs have the file's order of axes.

    Raises ModelError for a file of another format, or that contradicts itself. Operators without a form in ONNX are
    named all at once.
    """
    where = str(path)
    contents = contents_of(path.read_bytes(), where)
    unknown = {operator.op for operator in contents.operators} - set(READERS)
    if unknown:
        raise unread(unknown, READERS, REASONS, where)
    for tensor in contents.tensors:
        if tensor.kind not in NUMPY:
            raise refused(where, f"has the tensor {tensor.name[:60]!r} of the type {tensor.kind}", ", ".join(NUMPY))
    try:
        intake = TfliteIntake(contents)
    except UnreadOperator as error:
        raise refused(where, f"has an input that cannot be read: {error.reason}") from error
    functions = recorded_functions(contents)
    for operator in contents.operators:
        try:
            known = functions.get(operator.outputs[0]) if operator.outputs else None
            if known is not None:
                write_function(intake, operator.outputs[0], known)
            elif not is_inside(functions, operator.outputs):
                READERS[operator.op](intake, operator)
        except UnreadOperator as error:
            raise _at(operator.op, contents.tensors[operator.outputs[0]].name, error.reason, where) from error
        except DAMAGE as error:
            named = contents.tensors[operator.outputs[0]].name if operator.outputs else f"number {operator.number}"
            least = [n for n in operator.inputs if n != NO_TENSOR]
            reason = f"its {len(least)} inputs and options do not fit it ({type(error).__name__}: {error})"
            raise _at(operator.op, named, reason[:300], where) from error
    model = intake.model()
    placed = {name: [n, list(o)] for n, held in intake.integers.items() for o, name in held.items()}
    for name, number in contents.outputs.items():  # of two names of one tensor, the second
        if contents.tensors[number].quantized:
            placed.setdefault(name, [number, list(plain(len(contents.tensors[number].shape)))])
    file_places = {"tensors": placed, "inputs": dict(contents.inputs), "outputs": dict(contents.outputs)}
    model.metadata_props.add(key=METADATA, value=json.dumps(file_places))
    return model


@dataclass(frozen=True)
class FilePlaces:
    """Say where a .tflite file has what was read from it, by names in the ONNX model.

    `tensors` maps integer values to a tensor of the file and the order of its axes; `inputs` and `outputs` map ports to
    tensors.
    """

    tensors: Mapping[str, tuple[int, Order]]
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def places_of(metadata: Mapping[str, str]) -> FilePlaces | None:
    """Return where the file has what was read from it; None for a model of another format."""
    if METADATA not in metadata:
        return None
    found: dict[str, Any] = json.loads(metadata[METADATA])
    tensors = {name: (int(number), tuple(order)) for name, (number, order) in found["tensors"].items()}
    return FilePlaces(tensors, found["inputs"], found["outputs"])


def _at(op: str, tensor: str, reason: str, where: str) -> ModelError:
    return ModelError(
        f"{reason}; legal is what the reader of .tflite files has an ONNX form for (docs: quantized models)",
        stage=STAGE,
        where=f"{where}, {op} that makes {tensor.split(';')[0][:60]!r}",
    )
