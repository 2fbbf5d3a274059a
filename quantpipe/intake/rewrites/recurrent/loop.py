"""A recurrent layer of any length, written as a loop (Scan) over its steps.

The product of the input with its weights is one MatMul for all steps, before the loop. The body is one step of the
cell: it multiplies the hidden state by one constant matrix, which it reads from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.convenience import convert_attributes

from quantpipe.graph.edit import is_op, outside
from quantpipe.intake.rewrites.recurrent.cells import WRITERS, CellState, CellStep, weights_of
from quantpipe.intake.rewrites.recurrent.layer import Direction, RecurrentLayer, layer_of
from quantpipe.intake.rewrites.recurrent.ports import Run, first_state, gates_of, masked, of_valid, put_outputs
from quantpipe.intake.rewrites.recurrent.writer import StepWriter

FLOAT, BOOL = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.BOOL)


def looped(graph: ir.Graph, node: ir.Node, *, cells: bool = False) -> None:
    """Write a recurrent layer of constant weights as a loop for each direction, in place.

    `cells`: each loop shows every cell state, as it shows every hidden state.
    """
    layer = layer_of(node)
    if layer is None:
        return
    writer = StepWriter(graph, node)
    valid = None if layer.lengths is None else _valid(writer, layer, layer.lengths)
    runs = [_run(graph, writer, layer, way, valid=valid, cells=cells) for way in layer.directions]
    put_outputs(writer, layer, runs)
    graph.remove(node, safe=True)


def weights_outside(graph: ir.Graph, node: ir.Node) -> None:
    """Move the matrices that a body multiplies by out of it, where a quantizer finds them."""
    if not is_op(node, "Scan"):
        return
    body = node.attributes["body"].as_graph()
    for inner in body:
        if is_op(inner, "MatMul") and inner.inputs[1] is not None:
            outside(graph, body, inner.inputs[1].name or "")


class BodyWriter(StepWriter):
    """Write nodes into the body of a loop; constants stay outside, where all bodies and a quantizer find them."""

    def __init__(self, outside: StepWriter) -> None:
        self._outside, self.name = outside, outside.name
        self.nodes: list[ir.Node] = []

    def op(self, op: str, *inputs: ir.Value | None, name: str, **attributes: Any) -> ir.Value:
        """Append a node to the body; its output has its name."""
        full = f"{self.name}/{name}"
        node = ir.Node("", op, list(inputs), attributes=convert_attributes(attributes), num_outputs=1, name=full)
        node.outputs[0].name = f"{full}_out"
        self.nodes.append(node)
        return node.outputs[0]

    def constant(self, name: str, values: NDArray[Any] | np.generic) -> ir.Value:
        """Return a constant of the layer, written outside of the body, once per name."""
        return self._outside.constant(name, values)


def _run(
    graph: ir.Graph, writer: StepWriter, layer: RecurrentLayer, way: Direction, *, valid: ir.Value | None, cells: bool
) -> Run:  # fmt: skip
    weights = weights_of(layer, way)
    gates = gates_of(writer, layer, way, weights)
    before = _begin(writer, layer, way, gates)
    states = [v for v in (before.hidden, before.cell) if v is not None]
    scanned = [gates] if valid is None else [gates, valid]
    rows = ("steps", "cells") if cells and layer.kind.cell else ("steps",)
    body = _body(writer, layer, way, [v.type for v in scanned], cells=len(rows) > 1)
    names = [f"{writer.name}/{way.name}/{which}" for which in (*("hidden", "cell")[: len(states)], *rows)]
    turned = [int(way.reverse)]
    loop = ir.Node(
        "",
        "Scan",
        [*states, *scanned],
        attributes=[
            ir.AttrGraph("body", body),
            *convert_attributes({
                "num_scan_inputs": len(scanned),
                "scan_input_directions": turned * len(scanned),
                "scan_output_directions": turned * len(rows),
            }),
        ],
        outputs=[ir.Value(name=name, type=FLOAT) for name in names],
        name=f"{writer.name}/{way.name}/loop",
    )  # fmt: skip
    graph.insert_before(layer.node, loop)
    return Run(loop.outputs[len(states)], CellState(*loop.outputs[: len(states)]))


def _body(
    writer: StepWriter, layer: RecurrentLayer, way: Direction, types: Sequence[ir.TypeProtocol | None], *, cells: bool
) -> ir.Graph:
    """Return the body of one step: its inputs are states, gates `[B, G·H]` and samples with this step `[B, 1]`."""
    inside = BodyWriter(writer)
    at = f"{way.name}/step"

    def port(name: str, type_: ir.TypeProtocol | None, *shape: int | None) -> ir.Value:
        return ir.Value(name=f"{writer.name}/{at}/{name}", type=type_ or FLOAT, shape=ir.Shape(list(shape)))

    carried = (1, None, layer.size)
    state = CellState(
        port("hidden_before", FLOAT, *carried), port("cell_before", FLOAT, *carried) if layer.kind.cell else None
    )
    scanned = [port(name, t, None, None) for name, t in zip(("gates_at", "valid_at"), types, strict=False)]
    axis = inside.constant("step_axis", np.asarray([0], np.int64))
    gates, *valid = (
        inside.op("Unsqueeze", v, axis, name=f"{at}/{name}") for v, name in zip(scanned, ("x", "valid"), strict=False)
    )
    made = WRITERS[layer.node.op_type](CellStep(inside, layer, way, weights_of(layer, way), at), gates, state)
    shown, after = (made.hidden, made) if not valid else masked(inside, valid[0], made, state, name=at)
    rows = [inside.op("Squeeze", shown, axis, name=f"{at}/row")]
    if cells and made.cell is not None:
        told = made.cell if not valid else of_valid(inside, valid[0], made.cell, name=f"{at}/cell_shown")
        rows.append(inside.op("Squeeze", told, axis, name=f"{at}/cell_row"))
    # A value may be one output only: what is shown and kept is the same in most layers.
    kept = [v for v in (after.hidden, after.cell) if v is not None]
    # The runtime asks for the shapes of what leaves a body where it cannot infer that of what enters.
    for value, shape in (*((v, carried) for v in kept), *((row, (None, layer.size)) for row in rows)):
        value.type, value.shape = FLOAT, ir.Shape(list(shape))
    given = [v for v in (state.hidden, state.cell) if v is not None]
    return ir.Graph([*given, *scanned], [*kept, *rows], nodes=inside.nodes, name=f"{writer.name}/{at}")


def _begin(writer: StepWriter, layer: RecurrentLayer, way: Direction, gates: ir.Value) -> CellState:
    """Return the states before the first step; zeros are written out, `[1, B, H]`."""
    given, zero = first_state(writer, layer, way), None
    if given.hidden is None or (layer.kind.cell and given.cell is None):
        samples = writer.op("Shape", gates, name=f"{way.name}/samples", start=1, end=2)
        one, size = (writer.constant(name, np.asarray([n], np.int64)) for name, n in (("1", 1), ("size", layer.size)))
        shape = writer.op("Concat", one, samples, size, name=f"{way.name}/state_shape", axis=0)
        zero = writer.op("ConstantOfShape", shape, name=f"{way.name}/zeros")
    return CellState(given.hidden or zero, (given.cell or zero) if layer.kind.cell else None)


def _valid(writer: StepWriter, layer: RecurrentLayer, lengths: ir.Value) -> ir.Value:
    """Return which samples have which step, `[T, B, 1]` bool."""
    steps = writer.op("Shape", layer.data, name="steps", start=0, end=1)
    none, scalar = writer.constant("none", np.asarray(0, np.int64)), writer.constant("scalar", np.zeros(0, np.int64))
    one = writer.constant("one_step", np.asarray(1, np.int64))
    count = writer.op("Reshape", steps, scalar, name="steps_count")
    numbers = writer.op("Range", none, count, one, name="step_numbers")
    axes = writer.constant("behind", np.asarray([1, 2], np.int64))
    times = writer.op("Unsqueeze", numbers, axes, name="step_times")
    long = writer.op("Cast", lengths, name="lengths_long", to=int(ir.DataType.INT64))
    around = writer.constant("around", np.asarray([0, 2], np.int64))
    ends = writer.op("Unsqueeze", long, around, name="lengths")
    found = writer.op("Less", times, ends, name="valid")
    found.type = BOOL
    return found
