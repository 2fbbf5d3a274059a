"""Write the inputs of the steps of a recurrent layer, and its outputs from their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantpipe.graph.edit import take_place
from quantpipe.intake.rewrites.recurrent.cells import CellState, Weights
from quantpipe.intake.rewrites.recurrent.layer import Direction, RecurrentLayer
from quantpipe.intake.rewrites.recurrent.writer import StepWriter

STEPS, PLACES = 0, 1
"""Axes of what is put together: of steps, and of directions in `Y`."""


@dataclass(frozen=True)
class Run:
    """Hold what a direction gives: its hidden states in the order of the input, `[T, B, H]`, and its last state."""

    shown: ir.Value
    last: CellState


def gates_of(writer: StepWriter, layer: RecurrentLayer, way: Direction, weights: Weights) -> ir.Value:
    """Write the product of the input with its weights, biases included, for all steps, `[T, B, G·H]`."""
    gates = writer.op("MatMul", layer.data, writer.constant(f"{way.name}/input", weights.input), name=f"{way.name}/x")
    gates.type = ir.TensorType(ir.DataType.FLOAT)
    if np.any(weights.bias):
        gates = writer.op("Add", gates, writer.constant(f"{way.name}/bias", weights.bias), name=f"{way.name}/x_bias")
        gates.type = ir.TensorType(ir.DataType.FLOAT)
    return gates


def first_state(writer: StepWriter, layer: RecurrentLayer, way: Direction) -> CellState:
    """Write the state of a direction before its first step, `[1, B, H]` each; None where it is zero."""

    def begin(given: ir.Value | None, which: str) -> ir.Value | None:
        if given is None:
            return None
        return writer.part(given, STEPS, way.place, way.place + 1, name=f"{way.name}/first_{which}")

    return CellState(begin(layer.hidden, "hidden"), begin(layer.cell, "cell"))


def masked(
    writer: StepWriter, valid: ir.Value, made: CellState, before: CellState, *, name: str
) -> tuple[ir.Value, CellState]:
    """Write the shown state and the next state of samples that may have ended: zeros, and the previous state.

    `valid` (`[1, B, 1]` bool) are samples that have this step; `made` is the state of the step, and `before` the
    previous one (None: zero). The result is (the hidden state as shown, the state for the next step).
    """
    zero = writer.constant("zero", np.zeros((1, 1, 1), np.float32))

    def kept(new: ir.Value | None, old: ir.Value | None, which: str) -> ir.Value | None:
        return None if new is None else writer.op("Where", valid, new, old or zero, name=f"{name}/{which}_if")

    assert made.hidden is not None  # noqa: S101  (a step makes one)
    shown = of_valid(writer, valid, made.hidden, name=f"{name}/shown")
    return shown, CellState(kept(made.hidden, before.hidden, "hidden"), kept(made.cell, before.cell, "cell"))


def of_valid(writer: StepWriter, valid: ir.Value, value: ir.Value, *, name: str) -> ir.Value:
    """Write what a step shows: zeros of samples that have ended."""
    zero = writer.constant("zero", np.zeros((1, 1, 1), np.float32))
    return writer.op("Where", valid, value, zero, name=f"{name}_if")


def put_outputs(writer: StepWriter, layer: RecurrentLayer, runs: Sequence[Run]) -> None:
    """Put what the directions give, in their order, where the outputs of the layer's node stood."""
    whole, hidden, cell = [*layer.node.outputs, None, None, None][:3]
    if _is_read(whole):
        axis = writer.constant("places", np.asarray([PLACES], np.int64))
        parts = [
            writer.op("Unsqueeze", run.shown, axis, name=f"{way.name}/y")
            for way, run in zip(layer.directions, runs, strict=True)
        ]
        _put(whole, joined(writer, parts, PLACES, "y"))
    for output, which in ((hidden, "hidden"), (cell, "cell")):
        if _is_read(output):
            _put(output, joined(writer, [getattr(run.last, which) for run in runs], 0, f"last_{which}"))


def joined(writer: StepWriter, parts: Sequence[ir.Value], axis: int, name: str) -> ir.Value:
    """Write parts as one, along an axis; a single one is that itself."""
    return parts[0] if len(parts) == 1 else writer.op("Concat", *parts, name=name, axis=axis)


def _is_read(output: ir.Value | None) -> bool:
    return output is not None and (bool(output.uses()) or output.is_graph_output())


def _put(output: ir.Value | None, value: ir.Value) -> None:
    if output is not None:
        take_place(output, value)
