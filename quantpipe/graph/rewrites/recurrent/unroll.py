"""A recurrent layer of a fixed length, written as its steps.

The product of the input with its weights is one MatMul for all steps. What a step adds to it is the product of the
state, one matrix for all steps, so that a quantizer sees weights and activations where the layer had neither.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.rewrites.recurrent.cells import WRITERS, State, Step, weights_of
from quantpipe.graph.rewrites.recurrent.layer import Direction, Layer, layer_of
from quantpipe.graph.rewrites.recurrent.writer import StepWriter
from quantpipe.graph.rewrites.tools import take_place

MOST_STEPS = 128
"""Of longer layers, the steps would be some thousand nodes."""

STEPS, PLACES, LAST = 0, 1, 2
"""Axes of the outputs that Concat puts together: of steps, of directions in `Y`, and of the batch in front of gates."""


def unrolled(graph: ir.Graph, node: ir.Node) -> None:
    """Write a recurrent layer of constant weights and a fixed length of at most MOST_STEPS as its steps."""
    layer = layer_of(node, MOST_STEPS)
    if layer is None:
        return
    writer = StepWriter(graph, node)
    valid = _valid(writer, layer)
    runs = [_run(writer, layer, way, valid) for way in layer.directions]
    outputs = [*node.outputs, None, None, None][:3]
    if _is_read(outputs[0]):
        axis = writer.constant("places", np.asarray([PLACES], np.int64))
        parts = [
            writer.op("Unsqueeze", _joined(writer, shown, STEPS, f"{way.name}/steps"), axis, name=f"{way.name}/y")
            for way, (shown, _) in zip(layer.directions, runs, strict=True)
        ]
        _put(outputs[0], _joined(writer, parts, PLACES, "y"))
    for output, which in ((outputs[1], "hidden"), (outputs[2], "cell")):
        if _is_read(output):
            _put(output, _joined(writer, [getattr(last, which) for _, last in runs], 0, f"last_{which}"))
    graph.remove(node, safe=True)


def _run(
    writer: StepWriter, layer: Layer, way: Direction, valid: list[ir.Value] | None
) -> tuple[list[ir.Value], State]:
    """(what is shown of each step in the order of the input, the last state)."""
    weights = weights_of(layer, way)
    product = writer.op("MatMul", layer.data, writer.constant(f"{way.name}/input", weights.input), name=f"{way.name}/x")
    gates = product
    if np.any(weights.bias):
        gates = writer.op("Add", product, writer.constant(f"{way.name}/bias", weights.bias), name=f"{way.name}/x_bias")
    state = State(_begin(writer, layer.hidden, way, "hidden"), _begin(writer, layer.cell, way, "cell"))
    order = range(layer.steps)[::-1] if way.reverse else range(layer.steps)
    shown: dict[int, ir.Value] = {}
    for number in order:
        name = f"{way.name}/{number}"
        own = writer.part(gates, STEPS, number, number + 1, name=f"{name}/x")
        made = WRITERS[layer.node.op_type](Step(writer, layer, way, weights, name), own, state)
        zero = writer.constant("zero", np.zeros((1, 1, 1), np.float32)) if valid is not None else None
        if valid is None:
            shown[number] = _of(made)
        else:
            shown[number] = writer.op("Where", valid[number], made.hidden, zero, name=f"{name}/shown_if")
            made = State(
                _kept(writer, valid[number], made.hidden, state.hidden, name=f"{name}/hidden_if"),
                _kept(writer, valid[number], made.cell, state.cell, name=f"{name}/cell_if"),
            )
        state = made
    return [shown[number] for number in range(layer.steps)], state


def _of(state: State) -> ir.Value:
    if state.hidden is None:
        raise ValueError("a step makes a hidden state")
    return state.hidden


def _begin(writer: StepWriter, given: ir.Value | None, way: Direction, which: str) -> ir.Value | None:
    """The state of a direction before its first step, `[1, B, H]`."""
    if given is None:
        return None
    return writer.part(given, STEPS, way.place, way.place + 1, name=f"{way.name}/first_{which}")


def _valid(writer: StepWriter, layer: Layer) -> list[ir.Value] | None:
    """For each step, which samples have it, `[1, B, 1]`; None where all have all."""
    if layer.lengths is None:
        return None
    axes = writer.constant("around", np.asarray([0, 2], np.int64))
    lengths = writer.op("Unsqueeze", layer.lengths, axes, name="lengths")
    found = []
    for number in range(layer.steps):
        at = writer.constant(f"step{number}", np.asarray(number, np.int32))
        found.append(writer.op("Less", at, lengths, name=f"valid/{number}"))
    return found


def _kept(
    writer: StepWriter, valid: ir.Value, made: ir.Value | None, before: ir.Value | None, *, name: str
) -> ir.Value | None:
    """A state that a sample beyond its length keeps."""
    if made is None:
        return None
    if before is None:
        before = writer.constant("zero", np.zeros((1, 1, 1), np.float32))
    return writer.op("Where", valid, made, before, name=name)


def _joined(writer: StepWriter, parts: list[ir.Value], axis: int, name: str) -> ir.Value:
    return parts[0] if len(parts) == 1 else writer.op("Concat", *parts, name=name, axis=axis)


def _is_read(output: ir.Value | None) -> bool:
    return output is not None and (bool(output.uses()) or output.is_graph_output())


def _put(output: ir.Value | None, value: ir.Value) -> None:
    if output is not None:
        take_place(output, value)
