"""Write a dense layer whose input gets a scale from the samples of each run.

DynamicQuantizeLinear gives uint8 integers of the input, by the extremes of the whole tensor and zero. MatMulInteger
multiplies them by the integer weight; the sums become floats, to which the bias is added. All forms write these ops,
so that runtimes fuse them alike.

Files of this feature, all `run_scales.py`: `annotate` (which layers), `lowering` (how they are written), `verify`
(checks the written nodes).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from quantpipe.arrays import Array
from quantpipe.graph.view import Node
from quantpipe.lowering import fragments as fr
from quantpipe.lowering.context import Context
from quantpipe.oprules import rule_of
from quantpipe.types import Kernel

Write = Callable[[str, Array], ir.Value]


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


def _by_run(context: Context, tensor: str) -> list[ir.Value]:
    """Return the integers of a tensor, their scale and their zero point; all layers that read it share them."""
    if tensor not in context.by_run:
        outputs = [f"{tensor}_run_q", f"{tensor}_run_scale", f"{tensor}_run_zero_point"]
        made = context.builder.results(
            "DynamicQuantizeLinear", context.real(tensor), name=f"{tensor}/by_run", outputs=outputs
        )
        context.by_run[tensor] = made
    return context.by_run[tensor]
