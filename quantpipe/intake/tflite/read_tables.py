"""Read tables of functions as the functions that they were made of, where the file records these.

The writer has a table (CAST, ADD, GATHER) for a function without an operator of its own, and records the function in
the file's metadata. A table without a record has no float op, because it reads integers as
numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

from quantpipe.intake.tflite.contents import Contents
from quantpipe.intake.tflite.intake import OPSET, TfliteIntake

METADATA = "quantpipe"
"""The name of the metadata that the writer records: JSON."""
FUNCTIONS = "functions"
"""The key of the functions there: number of the table's result -> `RecordedFunction` as a mapping."""
CHAIN = ("GATHER", "ADD", "CAST")
"""Operators of a table, the last one first."""


@dataclass(frozen=True)
class RecordedFunction:
    """Hold the function of a table: an ONNX op with its attributes, further inputs, and bounds of its result.

    `axes`: axis i of the file's tensors is axis `axes[i]` for the op. `skipped` are the results inside the table.
    """

    op: str
    attributes: Mapping[str, float | int | str]
    parameters: tuple[np.ndarray[Any, Any], ...]
    bounds: tuple[float | None, float | None]
    axes: tuple[int, ...]
    source: int
    skipped: frozenset[int]


def recorded_functions(contents: Contents) -> dict[int, RecordedFunction]:
    """Return the functions that a file records, by the number of the table's result; none of a damaged record."""
    try:
        metadata = json.loads(contents.metadata.get(METADATA, b"{}"))
        rows = metadata.get(FUNCTIONS, {})
        found = {int(number): _function(row, int(number), contents) for number, row in rows.items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    return {number: function for number, function in found.items() if function is not None}


def write_function(intake: TfliteIntake, number: int, function: RecordedFunction) -> None:
    """Write the function of a table, and keep its result, the tensor of this number."""
    tensor = intake.tensor(number)
    name = tensor.name.split(";")[0]
    order = tuple(int(a) for a in np.argsort(function.axes))
    inputs = [intake.value(function.source, order)]
    inputs += [intake.constant(f"{name}/parameter", p) for p in function.parameters]
    value = intake.node(function.op, inputs, name=name, **function.attributes)
    if any(bound is not None for bound in function.bounds):
        value = intake.bounded(value, function.bounds, f"{name}/bounded")
    intake.keep(number, order, value)


def _function(row: Mapping[str, Any], number: int, contents: Contents) -> RecordedFunction | None:
    """Return one record, if the file has its table and ONNX its op."""
    makers = {n: operator for operator in contents.operators for n in operator.outputs}
    inner, skipped = number, set[int]()
    for op in CHAIN:
        maker = makers.get(inner)
        if maker is None or maker.op != op:
            return None
        skipped.add(inner)
        inner = maker.inputs[1] if op == "GATHER" else maker.inputs[0]
    schema = onnx.defs.get_schema(str(row["op"]), OPSET)
    attributes = {str(k): v for k, v in row["attributes"].items()}
    legal = all(k in schema.attributes and isinstance(v, float | int | str) for k, v in attributes.items())
    axes = tuple(int(a) for a in row["axes"])
    rank = len(contents.tensors[number].shape)
    if not legal or sorted(axes) != list(range(rank)) or len(schema.outputs) != 1:
        return None
    pairs = zip(row["parameters"], row["shapes"], strict=True)
    parameters = tuple(np.asarray(values, np.float32).reshape([int(n) for n in shape]) for values, shape in pairs)
    low, high = (None if end is None else float(end) for end in row["bounds"])
    return RecordedFunction(schema.name, attributes, parameters, (low, high), axes, inner, frozenset(skipped))


def is_inside(functions: Mapping[int, RecordedFunction], outputs: tuple[int, ...]) -> bool:
    """Return whether an operator with these results is part of a table whose function is recorded."""
    return any(n in function.skipped for n in outputs for function in functions.values())
