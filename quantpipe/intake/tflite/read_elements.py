"""Read TFLite's functions of elements and rows, and its conversions between integers and real values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper

from quantpipe.intake.tflite.contents import NUMPY, FileOperator
from quantpipe.intake.tflite.intake import Reader, TfliteIntake, UnreadOperator
from quantpipe.intake.tflite.layout import place
from quantpipe.intake.tflite.operators import ACTIVATIONS, ELEMENTWISE, EXTREMES

_ONNX: Mapping[str, str] = {
    **{own: op for op, (own, _) in ELEMENTWISE.items()},
    "CEIL": "Ceil",
    "ROUND": "Round",
    "SIGN": "Sign",
    "HARD_SWISH": "HardSwish",
    "PRELU": "PRelu",
    "LOGICAL_AND": "And",
    "LOGICAL_OR": "Or",
    "LOGICAL_NOT": "Not",
    "EQUAL": "Equal",
    "LESS": "Less",
    "LESS_EQUAL": "LessOrEqual",
    "GREATER": "Greater",
    "GREATER_EQUAL": "GreaterOrEqual",
    "SELECT": "Where",
    "SELECT_V2": "Where",
    "ADD_N": "Sum",
}
"""Operator -> the ONNX op of the same elements."""

_EXTREMES = {own: op for op, own in EXTREMES.items()}


def elementwise(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read an operator over elements."""
    rank = intake.rank(operator.outputs[0])
    if operator.op == "SELECT" and intake.rank(operator.inputs[0]) != rank:
        raise UnreadOperator("its condition selects rows; legal is one for each element")
    order = intake.common_order(operator.inputs, rank)
    inputs = [intake.aligned(number, order) for number in operator.inputs]
    intake.make(operator, order, _ONNX[operator.op], inputs)


def extreme(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read MAXIMUM and MINIMUM; one of a single constant bounds the other operand."""
    first, second = operator.inputs
    end = intake.scalar(second)
    whole = intake.rank(first) == intake.rank(operator.outputs[0])
    if end is None or not whole or intake.tensor(first).data is not None or not _is_real(intake, first):
        elementwise(intake, operator)
        return
    order = intake.common_order([first], intake.rank(operator.outputs[0]))
    name = f"{intake.name_of(operator)}/bound"
    bound = intake.constant(name, np.asarray(end, np.float32))
    inputs = [intake.aligned(first, order), *((bound,) if operator.op == "MAXIMUM" else ("", bound))]
    intake.make(operator, order, "Clip", inputs)


def _is_real(intake: TfliteIntake, number: int) -> bool:
    tensor = intake.tensor(number)
    return tensor.quantized or tensor.kind == "FLOAT32"


def clamp(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read RELU6 and its like."""
    order = intake.common_order(operator.inputs, intake.rank(operator.outputs[0]))
    name = intake.name_of(operator)
    value = intake.bounded(intake.value(operator.inputs[0], order), CLAMPS[operator.op], name)
    intake.keep(operator.outputs[0], order, value)


CLAMPS: Mapping[str, tuple[float | None, float | None]] = {
    **{name: ends for name, ends in ACTIVATIONS.items() if name != "NONE"},
    "RELU_0_TO_1": (0.0, 1.0),
}


def function(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read a function with a parameter."""
    order = intake.common_order(operator.inputs, intake.rank(operator.outputs[0]))
    attributes: dict[str, Any] = {}
    if operator.op == "LEAKY_RELU":
        attributes["alpha"] = float(operator.option("alpha", 0.0))
    if operator.op == "GELU" and operator.option("approximate", default=False):
        attributes["approximate"] = "tanh"
    intake.make(operator, order, _FUNCTIONS[operator.op], [intake.value(operator.inputs[0], order)], **attributes)


_FUNCTIONS = {"LEAKY_RELU": "LeakyRelu", "ELU": "Elu", "GELU": "Gelu"}


def composed(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read functions that ONNX has in two ops."""
    order = intake.common_order(operator.inputs, intake.rank(operator.outputs[0]))
    inputs = [intake.aligned(number, order) for number in operator.inputs]
    name = intake.name_of(operator)
    first, last = _COMPOSED[operator.op]
    inner = inputs[0] if first is None else intake.node(first, inputs, name=f"{name}/{first.lower()}")
    intake.make(operator, order, last, [inner, inner] if last == "Mul" else [inner])


_COMPOSED: Mapping[str, tuple[str | None, str]] = {
    "SQUARE": (None, "Mul"),
    "SQUARED_DIFFERENCE": ("Sub", "Mul"),
    "RSQRT": ("Sqrt", "Reciprocal"),
    "NOT_EQUAL": ("Equal", "Not"),
}
"""Operator -> the ONNX op of its operands, and the op of that result (Mul: by itself)."""


def rows(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read a function of the rows along the last axis."""
    data, rank = operator.inputs[0], intake.rank(operator.inputs[0])
    order = intake.common_order([data], rank)
    value, beta = intake.value(data, order), operator.option("beta", 1.0)
    if operator.op == "SOFTMAX" and beta != 1.0:
        name = f"{intake.name_of(operator)}/beta"
        value = intake.node("Mul", [value, intake.constant(f"{name}_factor", np.asarray(beta, np.float32))], name=name)
    attributes = {"p": 2} if operator.op == "L2_NORMALIZATION" else {}
    intake.make(operator, order, _ROWS[operator.op], [value], axis=place(rank - 1, order), **attributes)


_ROWS = {"SOFTMAX": "Softmax", "LOG_SOFTMAX": "LogSoftmax", "L2_NORMALIZATION": "LpNormalization"}


def quantize(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read QUANTIZE: the same values on another grid."""
    source, target = operator.inputs[0], operator.outputs[0]
    if not intake.tensor(target).quantized:
        raise UnreadOperator("its result has no scale")
    order = intake.common_order([source], intake.rank(target))
    intake.keep(target, order, intake.value(source, order))


def dequantize(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read DEQUANTIZE: the real values of integers, or of half precision."""
    source, target = operator.inputs[0], operator.outputs[0]
    order = intake.common_order([source], intake.rank(target))
    if not intake.tensor(source).quantized and intake.tensor(source).kind not in ("FLOAT16", "FLOAT32"):
        raise UnreadOperator("its integers have no scale")
    if intake.tensor(source).data is None and intake.tensor(source).kind == "FLOAT16":
        intake.make(operator, order, "Cast", [intake.value(source, order)], to=int(helper.np_dtype_to_tensor_dtype(
            np.dtype(np.float32))))  # fmt: skip
        return
    intake.keep(target, order, intake.value(source, order))


def cast(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read CAST between types without scales."""
    source, target = (intake.tensor(n[0]) for n in (operator.inputs, operator.outputs))
    if source.quantized or target.quantized:
        raise UnreadOperator(
            f"it takes the integers of {(source if source.quantized else target).name[:60]!r} as numbers, as a table "
            "of a function does; legal are integers without a scale"
        )
    order = intake.common_order([source.number], len(target.shape))
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(NUMPY[target.kind]))
    intake.make(operator, order, "Cast", [intake.value(source.number, order)], to=int(kind))


READERS: Mapping[str, Reader] = {
    **dict.fromkeys(_ONNX, elementwise),
    **dict.fromkeys(_EXTREMES, extreme),
    **dict.fromkeys(CLAMPS, clamp),
    **dict.fromkeys(_FUNCTIONS, function),
    **dict.fromkeys(_COMPOSED, composed),
    **dict.fromkeys(_ROWS, rows),
    "QUANTIZE": quantize,
    "DEQUANTIZE": dequantize,
    "CAST": cast,
}
"""Operator -> what reads it."""
