"""Write a layer whose input gets a scale from the samples of each run.

DynamicQuantizeLinear gives uint8 integers of the input, by the extremes of the whole tensor and zero. MatMulInteger
multiplies them by the integer weight; the sums become floats, to which the bias is added. A recurrent layer is one op,
which does so with its input and with the state of each step. All forms write these ops, so that runtimes fuse them
alike.

Files of this feature, all `run_scales.py`: `annotate` (which layers), `lowering` (how they are written), `verify`
(checks the written nodes).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array
from quantpipe.graph.external_weights import beside
from quantpipe.graph.op_tables import DYNAMIC_CELLS
from quantpipe.graph.view import MS_DOMAIN, Node
from quantpipe.lowering import fragments as fr
from quantpipe.lowering.context import Context
from quantpipe.oprules import rule_of
from quantpipe.types import Kernel

Write = Callable[[str, Array], ir.Value]

OPTIONAL = 5
"""Inputs of a recurrent layer after its weights: bias, lengths, initial state, initial cell state, peepholes."""


def weigh_by_run(
    context: Context, node: Node, kernel: Kernel, *, write: Write, weight: Callable[[Array], ir.Value]
) -> ir.Value:
    """Write such a layer; return its float result.

    `write` writes a constant, `weight` the integers of the weight as `[K, N]`.
    """
    b, plan, result = context.builder, context.plan.weights[kernel.weight or ""], node.outputs[0]
    name, (stored, step, zero) = node.name, _by_run(context, kernel.operands[0].tensor)
    inputs = [stored, weight(fr.matrix_weight(node, plan.values)), zero]
    if np.any(plan.zero):
        inputs.append(write(f"{plan.tensor}_zero_point", plan.zero.astype(plan.values.dtype)))
    sums = b.op("MatMulInteger", *inputs, name=name, output=f"{result}_product")
    real = b.op("Cast", sums, name=f"{name}/real", output=f"{result}_sums", to=int(ir.DataType.FLOAT))
    scale = b.op("Mul", step, write(f"{plan.tensor}_scale", plan.scale), name=f"{name}/scale")
    rule = rule_of(node)
    port = None if rule is None else rule.bias
    bias = node.inputs[port] if port is not None and port < len(node.inputs) else ""
    if not bias:
        return b.op("Mul", real, scale, name=f"{name}/scaled", output=result, claim=True)
    scaled = b.op("Mul", real, scale, name=f"{name}/scaled")
    return b.op("Add", scaled, context.real(bias), name=f"{name}/bias", output=result, claim=True)


def write_dynamic_cell(context: Context, node: Node, *, write: Write) -> list[ir.Value]:
    """Write a recurrent layer whose input and state get scales of each run; return its float results.

    Its weights are `[D, K, 4·H]`, with a scale and a zero point for each row, `[D, 4·H]`.
    """
    held = [context.plan.weights[t] for t in context.topology.cell_of[node.name].weights]
    directions, outputs, _ = held[0].values.shape
    stored, numbers = [], []
    for weight in held:
        laid = beside(np.ascontiguousarray(weight.values.transpose(0, 2, 1)), weight.values)
        scale, zero = (np.broadcast_to(a, (directions, outputs)) for a in (weight.scale, weight.zero))
        stored.append(write(f"{weight.tensor}_q", laid))
        numbers.append(write(f"{weight.tensor}_scale", np.ascontiguousarray(scale)))
        numbers.append(write(f"{weight.tensor}_zero_point", zero.astype(weight.values.dtype)))
    others = [context.real(t) for t in node.inputs[1 + len(held) :]]
    others += [None] * (OPTIONAL - len(others))
    return context.builder.results(
        DYNAMIC_CELLS[node.op],
        *(context.real(node.inputs[0]), *stored, *others, *numbers),
        name=node.name,
        outputs=node.outputs,
        domain=MS_DOMAIN,
        attributes={name: value for name, value in node.attributes.items() if name != "layout"},
        claim=True,
    )


def _by_run(context: Context, tensor: str) -> list[ir.Value]:
    """Return the integers of a tensor, their scale and their zero point; all layers that read it share them."""
    if tensor not in context.by_run:
        outputs = [f"{tensor}_run_q", f"{tensor}_run_scale", f"{tensor}_run_zero_point"]
        made = context.builder.results(
            "DynamicQuantizeLinear", context.real(tensor), name=f"{tensor}/by_run", outputs=outputs
        )
        context.by_run[tensor] = made
    return context.by_run[tensor]
