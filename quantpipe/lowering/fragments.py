"""Pieces of graph that more than one output form writes, and the layout of per-channel numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import Array, along
from quantpipe.graph.external_weights import turned
from quantpipe.graph.view import Graph, Node
from quantpipe.lowering.context import Context, Lowering
from quantpipe.oprules import OP_RULES, Family, rule_of
from quantpipe.types import Form, Kernel, Lookup, Program, Sum

REDUCED_AXES_ARE_INPUTS = 18
"""The opset from which ReduceMax takes its axes as an input."""


def ops_of(*families: Family) -> tuple[str, ...]:
    """Return op types of OP_RULES by family: what a dialect's table joins with."""
    return tuple(op for op, rule in OP_RULES.items() if rule.family in families)


def by_plan(average: Lowering, program: Lowering) -> Lowering:
    """Return what writes an average as it is planned: as a sum that is narrowed, or as a program."""

    def write(context: Context, node: Node, kernel: Kernel) -> ir.Value:
        planned = isinstance(context.plan.kernels[node.name], Program)
        return (program if planned else average)(context, node, kernel)

    return write


def output_axis(graph: Graph, tensor: str) -> int:
    """Return the channel axis of a tensor that a node with per-channel weights makes."""
    node = graph.producers.get(tensor)
    rule = rule_of(node) if node is not None else None
    return rule.output_axis if rule is not None else 1


def along_channels(values: Array, graph: Graph, tensor: str) -> Array:
    """Return per-channel numbers `[C]` shaped to broadcast against `tensor`; scalars stay scalars."""
    return along(values, output_axis(graph, tensor), len(graph.shapes[tensor]))


def moved(context: Context, node: Node, kernel: Kernel) -> list[ir.Value | None]:
    """Return inputs of a same-scale op: data in the kernel's form, everything else (shapes, axes, …) as it is."""
    data = {o.port: o for o in kernel.operands}
    return [
        context.operand(data[p], kernel.output) if p in data else context.real(t) for p, t in enumerate(node.inputs)
    ]


GLOBAL_MAXIMUM = frozenset({"GlobalMaxPool"})
"""Written as a reduction, which has kernels for integers."""


def global_maximum(context: Context, node: Node, value: ir.Value | None, output: str) -> ir.Value:
    """Write the maximum of each channel of a map, as a reduction over its positions; an absent map is None."""
    axes = list(range(2, len(context.graph.shapes[node.inputs[0]])))
    if context.opset < REDUCED_AXES_ARE_INPUTS:
        return context.builder.op("ReduceMax", value, name=node.name, output=output, axes=axes, keepdims=1)
    given = context.builder.constant(f"{node.name}_axes", np.asarray(axes, np.int64))
    return context.builder.op("ReduceMax", value, given, name=node.name, output=output, keepdims=1)


def matrix_weight(node: Node, values: Array) -> Array:
    """Return a dense weight as the right side of a matrix product `[K, N]`; convolution weights unchanged."""
    return turned(values) if values.ndim == 2 and node.attr("transB", 0) else values


def integer_product(
    context: Context,
    node: Node,
    data: ir.Value,
    zero: ir.Value | None,
    *,
    weight: ir.Value,
    part: str | None = None,
    weight_zero: ir.Value | None = None,
) -> ir.Value:
    """Write the int32 accumulator of Conv, Gemm or MatMul without bias.

    Zero points of None are 0; a matrix product may have one `weight_zero` per column. `part` is the name of the product
    if it is one of several.
    """
    name, output = part or node.name, f"{part or node.outputs[0]}_product"
    inputs: tuple[ir.Value | None, ...] = (data, weight, zero, weight_zero)
    while inputs[-1] is None:
        inputs = inputs[:-1]
    if len(context.graph.shapes[node.inputs[1]]) == 2:
        return context.builder.op("MatMulInteger", *inputs, name=name, output=output)
    kept = ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    attributes = {k: node.attr(k) for k in kept if k in node.attributes}
    return context.builder.op("ConvInteger", *inputs, name=name, output=output, **attributes)


def window_ones(context: Context, node: Node) -> tuple[Array, dict[str, Any]]:
    """Return a window sum as a depthwise convolution: weights of one `[C, 1, kh, kw]` and its attributes."""
    channels = context.graph.shapes[node.inputs[0]][1]
    kernel = node.attr("kernel_shape")
    attributes = {k: node.attr(k) for k in ("strides", "pads", "dilations", "auto_pad") if k in node.attributes}
    return np.ones((channels, 1, *kernel)), {"group": channels, "kernel_shape": kernel, **attributes}


def is_window(node: Node) -> bool:
    """Return whether an average runs over a sliding window (else over the whole map)."""
    return "kernel_shape" in node.attributes


def map_axes(context: Context, node: Node) -> Array:
    """Return the spatial axes of a global average."""
    return np.arange(2, len(context.graph.shapes[node.inputs[0]]), dtype=np.int64)


def is_moved(graph: Graph, tensor: str) -> bool:
    """Return whether some node that only moves values reads a tensor."""
    rules = [rule_of(node) for node, _ in graph.consumers.get(tensor, ())]
    return any(rule is not None and rule.family is Family.MOVE for rule in rules)


def free_sum(
    context: Context, node: Node, plan: Sum, operands: list[ir.Value], *, constants: ConstantWriter
) -> ir.Value:
    """Write onnxruntime's QLinearAdd before rounding: q_a·r_a + (q_b·r_b + offset), r = s / s_y.

    Each step is one float32 FMA, which rounds once: product and sum in float64, then to float32. Accumulators are
    treated alike, with a ratio per channel where their weights have scales per channel. `operands` are q of both
    operands (zero point included), of any dtype. The result is in steps of the output scale, not yet rounded.
    """
    b = context.builder
    total = constants(f"{node.name}.offset", np.float64(plan.offset))
    for number in (1, 0):
        name = f"{node.name}/term{number}"
        q = b.op("Cast", operands[number], name=f"{name}/double", to=int(ir.DataType.DOUBLE))
        term = plan.terms[number]
        ratio_of = along_channels(term.ratio.astype(np.float64), context.graph, term.tensor)
        ratio = constants(f"{node.name}.ratio{number}", ratio_of)
        raised = b.op("Add", b.op("Mul", q, ratio, name=f"{name}/scaled"), total, name=f"{name}/sum")
        rounded = b.op("Cast", raised, name=f"{name}/float", to=int(ir.DataType.FLOAT))
        total = b.op("Cast", rounded, name=f"{name}/exact", to=int(ir.DataType.DOUBLE)) if number else rounded
    return total


SUM = "Add"
TRANSPOSED = ("ConvTranspose",)
"""Accumulating ops that are written by `lowering/transpose.py`."""


def signed(context: Context, plan: Sum, number: int, value: ir.Value) -> ir.Value:
    """Write a term of a sum at the common scale, negated where it is subtracted."""
    if np.all(plan.terms[number].ratio >= 0):
        return value
    return context.builder.op("Neg", value, name=f"{plan.node}/term{number}/negated")


ConstantWriter = Callable[[str, Any], ir.Value]
"""Makes a named number available in the graph: a constant in realized forms, an input in the simulated one."""


APPROXIMATED = ("Softmax",)
"""Float ops that onnxruntime replaces by an integer approximation where they stand between DequantizeLinear and
QuantizeLinear: up to a step off, and slower than the op itself."""


def must_stay_real(context: Context, tensor: str) -> bool:
    """Return whether a node left in float would be computed in integers if it read a DequantizeLinear here.

    onnxruntime has an integer approximation of some ops, and quantizes float weights; a node that was kept in float
    would silently not be.
    """
    return weighs_in_float(context, tensor) or any(r.op in APPROXIMATED for r in _float_readers(context, tensor))


def weighs_in_float(context: Context, tensor: str) -> bool:
    """Return whether a node left in float multiplies the tensor by float weights of its own.

    onnxruntime quantizes such weights to int8 by itself where it sees a DequantizeLinear in front (its weight and bias
    quantization, from basic optimization on).
    """
    for reader in _float_readers(context, tensor):
        constants = [t for t in reader.inputs if t and context.graph.is_constant(t)]
        if any(len(context.graph.shapes[t]) >= 2 and context.graph.dtypes[t] == "float32" for t in constants):
            return True
    return False


def _float_readers(context: Context, tensor: str) -> list[Node]:
    """Return the float nodes that read it, also after float nodes that only move it.

    onnxruntime carries the DequantizeLinear through these (its Q/DQ propagation).
    """
    inside = {*context.topology.kernel_of, *context.topology.fused_into}
    found, waiting = [], [tensor]
    while waiting:
        for reader, _ in context.graph.consumers.get(waiting.pop(), ()):
            if reader.name in inside:
                continue
            found.append(reader)
            rule = rule_of(reader)
            if rule is not None and rule.family is Family.MOVE:
                waiting += [t for t in reader.outputs if t]
    return found


TYPED_OPSET = 21
"""The first in which a QuantizeLinear names the type of its result."""


def becomes_unsigned(context: Context, tensor: str) -> bool:
    """Return whether onnxruntime would quantize a tensor of int8 again after a float node that moves it.

    It writes the type of int8 into the new node, then changes the zero point to uint8, and loads its own graph no more
    (1.32, extended optimizations).
    """
    dtype = context.plan.quantizers[tensor].dtype
    rules = [rule_of(reader) for reader in _float_readers(context, tensor)]
    moved = any(rule is not None and rule.family is Family.MOVE for rule in rules)
    return dtype.signed and dtype.bits == 8 and context.opset >= TYPED_OPSET and moved


def stored_name(kernel: Kernel) -> str:
    """Name of the value that carries a kernel's result."""
    return f"{kernel.output}_q" if kernel.form is Form.QUANTIZED else f"{kernel.output}_acc"


def table_rows(context: Context, plan: Lookup, kernel: Kernel) -> NDArray[np.int32]:
    """Return where each channel's row of a flattened table begins, shaped to broadcast against the data."""
    rows, codes = plan.table.shape
    rank = len(context.graph.shapes[kernel.operands[0].tensor])
    return along(np.arange(rows, dtype=np.int32) * np.int32(codes), plan.axis or 0, rank)
