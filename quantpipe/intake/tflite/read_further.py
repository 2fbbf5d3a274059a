"""Read TFLite's rarer operators, each by ops of ONNX that compute the same: blocks of a batch, sums, indices, masks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import TensorProto, helper

from quantpipe.intake.tflite.contents import NUMPY, FileOperator
from quantpipe.intake.tflite.intake import Reader, TfliteIntake, UnreadOperator
from quantpipe.intake.tflite.layout import place, plain
from quantpipe.intake.tflite.read_products import axis_of

WHOLE = ("INT32", "INT64")


def to_batch(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read SPACE_TO_BATCH_ND: the places of a block become samples."""
    data, name = operator.inputs[0], intake.name_of(operator)
    block, pads = _blocks(intake, operator)
    shape, count = intake.tensor(data).shape, len(block)
    rows = np.zeros((len(shape), 2), np.int64)
    rows[1 : 1 + count] = pads
    value = intake.value(data)
    if np.any(rows):
        numbers = intake.constant(f"{name}/pads", rows.T.reshape(-1))
        value = intake.node("Pad", [value, numbers], name=f"{name}/padded")
    sizes = [shape[1 + a] + int(rows[1 + a].sum()) for a in range(count)]
    if any(size % b for size, b in zip(sizes, block, strict=True)):
        raise UnreadOperator(f"blocks of {block} do not divide the sizes {sizes}")
    apart = [-1, *(n for size, b in zip(sizes, block, strict=True) for n in (size // b, b)), *shape[1 + count :]]
    value = _reshaped(intake, value, apart, f"{name}/apart")
    rest = range(1 + 2 * count, len(apart))
    order = [*range(2, 1 + 2 * count, 2), 0, *range(1, 1 + 2 * count, 2), *rest]
    value = intake.node("Transpose", [value], name=f"{name}/turned", perm=order)
    together = [-1, *(size // b for size, b in zip(sizes, block, strict=True)), *shape[1 + count :]]
    _reshape_to(intake, operator, value, together)


def from_batch(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read BATCH_TO_SPACE_ND: samples become the places of a block, whose ends are cut off."""
    data, name = operator.inputs[0], intake.name_of(operator)
    block, crops = _blocks(intake, operator)
    shape, count = intake.tensor(data).shape, len(block)
    apart = [*block, -1, *shape[1:]]
    value = _reshaped(intake, intake.value(data), apart, f"{name}/apart")
    pairs = [axis for a in range(count) for axis in (count + 1 + a, a)]
    order = [count, *pairs, *range(2 * count + 1, len(apart))]
    value = intake.node("Transpose", [value], name=f"{name}/turned", perm=order)
    sizes = [shape[1 + a] * b for a, b in enumerate(block)]
    together = [-1, *sizes, *shape[1 + count :]]
    if not np.any(crops):
        _reshape_to(intake, operator, value, together)
        return
    value = _reshaped(intake, value, together, f"{name}/whole")
    columns = (crops[:, 0], np.asarray(sizes) - crops[:, 1], np.arange(1, 1 + count))
    parts = ("starts", "ends", "axes")
    cuts = [intake.constant(f"{name}/{p}", np.asarray(c, np.int64)) for p, c in zip(parts, columns, strict=True)]
    intake.make(operator, plain(len(shape)), "Slice", [value, *cuts])


def _blocks(intake: TfliteIntake, operator: FileOperator) -> tuple[list[int], np.ndarray[Any, np.dtype[np.int64]]]:
    """The sizes of a block, and the two ends of each of its axes."""
    block, ends = (intake.numbers(n) for n in operator.inputs[1:3])
    rank = intake.rank(operator.inputs[0])
    if not block or len(block) >= rank or min(block) < 1 or len(ends) != 2 * len(block) or min(ends) < 0:
        raise UnreadOperator(f"its blocks are {block} with the ends {ends} for {rank} axes")
    return block, np.asarray(ends, np.int64).reshape(-1, 2)


def _reshaped(intake: TfliteIntake, value: str, shape: list[int], name: str) -> str:
    return intake.node("Reshape", [value, intake.constant(f"{name}/shape", np.asarray(shape, np.int64))], name=name)


def _reshape_to(intake: TfliteIntake, operator: FileOperator, value: str, shape: list[int]) -> None:
    numbers = intake.constant(f"{intake.name_of(operator)}/shape", np.asarray(shape, np.int64))
    intake.make(operator, plain(len(shape)), "Reshape", [value, numbers])


def gather_places(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read GATHER_ND."""
    data, indices = operator.inputs
    if intake.tensor(indices).kind not in WHOLE:
        raise UnreadOperator(f"its indices are {intake.tensor(indices).kind}; legal are {' and '.join(WHOLE)}")
    name = f"{intake.name_of(operator)}/places"
    places = intake.node("Cast", [intake.value(indices)], name=name, to=TensorProto.INT64)
    intake.make(operator, plain(intake.rank(operator.outputs[0])), "GatherND", [intake.value(data), places])


def running_sum(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read CUMSUM."""
    data, rank = operator.inputs[0], intake.rank(operator.inputs[0])
    order = intake.common_order([data], rank)
    axis = np.asarray(place(axis_of(intake.numbers(operator.inputs[1])[0], rank), order), np.int64)
    inputs = [intake.value(data, order), intake.constant(f"{intake.name_of(operator)}/axis", axis)]
    ends = {key: int(operator.option(key, default=False)) for key in ("exclusive", "reverse")}
    intake.make(operator, order, "CumSum", inputs, **ends)


def floor_division(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read FLOOR_DIV of real values."""
    if intake.tensor(operator.inputs[0]).kind != "FLOAT32":
        raise UnreadOperator("it divides integers; legal are real values")
    order = intake.common_order(operator.inputs, intake.rank(operator.outputs[0]))
    inputs = [intake.aligned(number, order) for number in operator.inputs]
    quotient = intake.node("Div", inputs, name=f"{intake.name_of(operator)}/quotient")
    intake.make(operator, order, "Floor", [quotient])


def remainder(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read FLOOR_MOD of integers, whose result has the sign of the divisor."""
    if intake.tensor(operator.inputs[0]).kind not in WHOLE:
        raise UnreadOperator("it divides real values; legal are integers")
    order = intake.common_order(operator.inputs, intake.rank(operator.outputs[0]))
    intake.make(operator, order, "Mod", [intake.aligned(number, order) for number in operator.inputs])


def zeros(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read ZEROS_LIKE."""
    data, rank = operator.inputs[0], intake.rank(operator.inputs[0])
    order = intake.common_order([data], rank)
    sizes = intake.node("Shape", [intake.value(data, order)], name=f"{intake.name_of(operator)}/sizes")
    kind = np.dtype(np.float32 if intake.tensor(data).quantized else NUMPY[intake.tensor(data).kind])
    zero = helper.make_tensor("value", helper.np_dtype_to_tensor_dtype(kind), [1], [0])
    intake.make(operator, order, "ConstantOfShape", [sizes], value=zero)


def filled(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read FILL: one value in a shape that is a constant."""
    sizes = np.asarray(intake.numbers(operator.inputs[0]), np.int64)
    shape = intake.constant(f"{intake.name_of(operator)}/sizes", sizes)
    intake.make(operator, plain(len(sizes)), "Expand", [intake.value(operator.inputs[1]), shape])


def truth(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read REDUCE_ANY and REDUCE_ALL."""
    data, rank, name = operator.inputs[0], intake.rank(operator.inputs[0]), intake.name_of(operator)
    axes = sorted({axis_of(axis, rank) for axis in intake.numbers(operator.inputs[1])})
    keep = bool(operator.option("keepDims", default=False))
    number = intake.node("Cast", [intake.value(data)], name=f"{name}/number", to=TensorProto.FLOAT)
    places = intake.constant(f"{name}/axes", np.asarray(axes, np.int64))
    op = "ReduceMax" if operator.op == "REDUCE_ANY" else "ReduceMin"
    found = intake.node(op, [number, places], name=f"{name}/found", keepdims=int(keep), noop_with_empty_axes=1)
    made = rank if keep else rank - len(axes)
    intake.make(operator, plain(made), "Cast", [found], to=TensorProto.BOOL)


def one_hot(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read ONE_HOT of constant values."""
    indices, depth, on, off = operator.inputs
    pair = [intake.tensor(n).data for n in (off, on)]
    rank = intake.rank(operator.outputs[0])
    if any(p is None or p.size != 1 for p in pair) or any(intake.tensor(n).quantized for n in (on, off)):
        raise UnreadOperator("its values are computed at run time, or have a scale; legal are two constants")
    name = intake.name_of(operator)
    values = intake.constant(f"{name}/values", np.asarray([p.reshape(-1)[0] for p in pair if p is not None]))
    count = intake.constant(f"{name}/depth", np.asarray(intake.numbers(depth)[0], np.int64))
    axis = operator.option("axis", -1)
    places = intake.node("Cast", [intake.value(indices)], name=f"{name}/places", to=TensorProto.INT64)
    none = intake.constant(f"{name}/none", np.asarray(0, np.int64))
    below = intake.node("Less", [places, none], name=f"{name}/below")  # ONNX counts those from the end
    inputs = [intake.node("Where", [below, count, places], name=f"{name}/kept"), count, values]
    intake.make(operator, plain(rank), "OneHot", inputs, axis=axis_of(axis, rank))


READERS: Mapping[str, Reader] = {
    "SPACE_TO_BATCH_ND": to_batch,
    "BATCH_TO_SPACE_ND": from_batch,
    "GATHER_ND": gather_places,
    "CUMSUM": running_sum,
    "FLOOR_DIV": floor_division,
    "FLOOR_MOD": remainder,
    "ZEROS_LIKE": zeros,
    "FILL": filled,
    **dict.fromkeys(("REDUCE_ANY", "REDUCE_ALL"), truth),
    "ONE_HOT": one_hot,
}
"""Operator -> what reads it."""
