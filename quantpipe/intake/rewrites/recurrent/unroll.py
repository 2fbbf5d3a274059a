"""A recurrent layer of a fixed length, written as its steps.

The product of the input with its weights is one MatMul for all steps. What a step adds to it is the product of the
state, one matrix for all steps, so that a quantizer sees weights and activations where the layer had neither.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.intake.rewrites.recurrent.cells import WRITERS, CellStep, weights_of
from quantpipe.intake.rewrites.recurrent.layer import Direction, RecurrentLayer, layer_of
from quantpipe.intake.rewrites.recurrent.ports import STEPS, Run, first_state, gates_of, joined, masked, put_outputs
from quantpipe.intake.rewrites.recurrent.writer import StepWriter

MOST_STEPS = 128
"""Of longer layers, the steps would be some thousand nodes."""


def unrolled(graph: ir.Graph, node: ir.Node) -> None:
    """Write a recurrent layer of constant weights and a fixed length of at most MOST_STEPS as its steps."""
    layer = layer_of(node, MOST_STEPS)
    if layer is None or layer.steps is None:
        return
    writer = StepWriter(graph, node)
    valid = _valid(writer, layer, layer.steps)
    put_outputs(writer, layer, [_run(writer, layer, way, range(layer.steps), valid=valid) for way in layer.directions])
    graph.remove(node, safe=True)


def _run(
    writer: StepWriter, layer: RecurrentLayer, way: Direction, steps: range, *, valid: list[ir.Value] | None
) -> Run:
    weights = weights_of(layer, way)
    gates, state = gates_of(writer, layer, way, weights), first_state(writer, layer, way)
    shown: dict[int, ir.Value | None] = {}
    for number in steps[::-1] if way.reverse else steps:
        name = f"{way.name}/{number}"
        own = writer.part(gates, STEPS, number, number + 1, name=f"{name}/x")
        made = WRITERS[layer.node.op_type](CellStep(writer, layer, way, weights, name), own, state)
        if valid is None:
            shown[number], state = made.hidden, made
        else:
            shown[number], state = masked(writer, valid[number], made, state, name=name)
    parts = [value for number in steps if (value := shown[number]) is not None]  # every step makes a hidden state
    return Run(joined(writer, parts, STEPS, f"{way.name}/steps"), state)


def _valid(writer: StepWriter, layer: RecurrentLayer, steps: int) -> list[ir.Value] | None:
    """Return which samples have each step, `[1, B, 1]`; None if all samples have all steps."""
    if layer.lengths is None:
        return None
    axes = writer.constant("around", np.asarray([0, 2], np.int64))
    lengths = writer.op("Unsqueeze", layer.lengths, axes, name="lengths")
    found = []
    for number in range(steps):
        at = writer.constant(f"step{number}", np.asarray(number, np.int32))
        found.append(writer.op("Less", at, lengths, name=f"valid/{number}"))
    return found
