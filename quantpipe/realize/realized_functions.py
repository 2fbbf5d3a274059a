"""Write tables, products of two activations and transposed convolutions in the realized forms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import along
from quantpipe.graph.build import ir_dtype
from quantpipe.graph.view import Node
from quantpipe.lowering import Context
from quantpipe.lowering import fragments as fr
from quantpipe.lowering import transpose as tr
from quantpipe.lowering.device import op_of, write_call
from quantpipe.lowering.integers import IntegerWriter
from quantpipe.lowering.programs import write_program
from quantpipe.realize.stored import Stored, kernels_only, no_accumulators
from quantpipe.types import Accumulate, Contract, DType, Form, Kernel, Lookup, Program, Requantize, Sum


def gathered(dialect: Stored, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write table[q - smallest code]: works for every function, and needs only Gather of the device."""
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Lookup)  # noqa: S101  (the planner pairs families with plans; narrows the type)
    b, data = context.builder, context.plan.quantizers[kernel.operands[0].tensor]
    codes = b.op("Cast", context.get(data.tensor, Form.QUANTIZED), name=f"{node.name}/index", to=int(ir.DataType.INT32))
    offset: NDArray[np.int32] | np.int32 = np.int32(-data.dtype.qmin)
    if plan.axis is not None:
        offset = offset + fr.table_rows(context, plan, kernel)
    if np.any(offset):
        codes = b.op("Add", codes, dialect.constant(context, f"{node.name}_offset", offset), name=f"{node.name}/code")
    table = dialect.constant(context, f"{node.name}_table", plan.table.reshape(-1))
    return b.op("Gather", table, codes, name=node.name, output=fr.stored_name(kernel))


def programmed(dialect: Stored, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write a function of rows, step by step in int64, and narrow an accumulator in float32."""
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Program)  # noqa: S101
    result = program_result(dialect, context, kernel, plan)
    if plan.output is not None:
        real = context.builder.op("Cast", result, name=f"{node.name}/acc", to=int(ir.DataType.FLOAT))
        return requantized(dialect, context, node, kernel, r=plan.output, acc=real)
    stored = int(ir_dtype(context.plan.quantizers[kernel.output].dtype))
    return context.builder.op("Cast", result, name=node.name, output=fr.stored_name(kernel), to=stored)


def program_result(dialect: Stored, context: Context, kernel: Kernel, plan: Program) -> ir.Value:
    """Write the steps of a program on stored integers less their zero points; return the last value, int64."""
    writer = IntegerWriter(context.builder, lambda name, value: dialect.constant(context, name, value))
    operands = _centred(dialect, context, writer, kernel)
    return write_program(writer, plan, operands)


def is_wide_product(context: Context, kernel: Kernel) -> bool:
    """Return whether a product of two stored tensors has one of more than 8 bits."""
    return any(context.plan.quantizers[o.tensor].dtype.bits > 8 for o in kernel.operands)


def _centred(dialect: Stored, context: Context, writer: IntegerWriter, kernel: Kernel) -> list[ir.Value]:
    """Write q - z of each operand, int64."""
    operands = []
    for number, operand in enumerate(kernel.operands):
        name = f"{kernel.node}/operand{number}"
        q = context.plan.quantizers[kernel.output if operand.rescaled else operand.tensor]
        value = writer.cast(context.operand(operand, kernel.output), np.int64, f"{name}/int64")
        if q.zero_point:
            zero = dialect.constant(context, f"{q.tensor}_zero_int64", np.int64(q.zero_point))
            value = context.builder.op("Sub", value, zero, name=f"{name}/centred")
        operands.append(value)
    return operands


def linear_matmul(dialect: Stored, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write QLinearMatMul of two stored tensors."""
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Contract)  # noqa: S101
    if plan.output is None:
        raise no_accumulators(node.name)
    out = context.plan.quantizers[kernel.output]
    kernels_only(plan.output, out, node.name)
    operands: list[ir.Value] = []
    for operand in kernel.operands:
        grid = dialect.grid(context, context.plan.quantizers[operand.tensor])
        operands += [context.get(operand.tensor, Form.QUANTIZED), *grid]
    tight = plan.output.low > out.dtype.qmin or plan.output.high < out.dtype.qmax
    name = f"{out.tensor}_wide" if tight else f"{out.tensor}_q"
    grid = dialect.grid(context, out)
    result = context.builder.op("QLinearMatMul", *operands, *grid, name=node.name, output=name)
    return dialect.clip(context, result, out, plan.output.low, high=plan.output.high) if tight else result


def integer_matmul(dialect: Stored, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write the accumulator of a MatMul of two stored tensors: int32 for 8-bit ones, int64 for wider ones."""
    if is_wide_product(context, kernel):
        writer = IntegerWriter(context.builder, lambda name, value: dialect.constant(context, name, value))
        return context.builder.op(
            "MatMul", *_centred(dialect, context, writer, kernel), name=node.name, output=f"{node.outputs[0]}_acc"
        )
    operands = [context.get(o.tensor, Form.QUANTIZED) for o in kernel.operands]
    zeros = [dialect.grid(context, context.plan.quantizers[o.tensor])[1] for o in kernel.operands]
    output = f"{node.outputs[0]}_acc"
    return context.builder.op("MatMulInteger", *operands, *zeros, name=node.name, output=output)


def transposed_accumulator(dialect: Stored, context: Context, node: Node, kernel: Kernel, *, wide: bool) -> ir.Value:
    """Write a ConvTranspose of stored integers with bias, by exact float32 sums of the centred input.

    The accumulator is int32, or int64 if `wide`.
    """
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Accumulate)  # noqa: S101
    b, q = context.builder, context.plan.quantizers[kernel.operands[0].tensor]
    data = b.op("Cast", context.get(q.tensor, Form.QUANTIZED), name=f"{node.name}/real", to=int(ir.DataType.FLOAT))
    if q.zero_point:
        zero = dialect.constant(context, f"{q.tensor}_zero_float", np.float32(q.zero_point))
        data = b.op("Sub", data, zero, name=f"{node.name}/centred")
    weight = context.plan.weights[plan.weight]
    site = context.topology.weight_of[weight.tensor]

    def write(name: str, values: NDArray[np.float32]) -> ir.Value:
        stored = dialect.weight(context, weight, values.astype(weight.values.dtype))
        real = b.op("Cast", stored, name=f"{name}/real", to=int(ir.DataType.FLOAT))
        if not weight.has_zero_point:
            return real
        offset = along(weight.zero_point.astype(np.float32), site.channel_axis, values.ndim)
        return b.op(
            "Sub", real, dialect.constant(context, f"{weight.tensor}_zero_float", offset), name=f"{name}/centred"
        )

    acc = tr.accumulate(context, node, data, weight.values, parts=tr.parts_of(context.plan, plan, kernel), write=write)
    integers = DType.INT64 if wide else DType.INT32
    acc = b.op("Cast", acc, name=f"{node.name}/{integers}", to=int(ir_dtype(integers)))
    if plan.bias is None:
        return acc
    bias = fr.along_channels(plan.bias.astype(integers.numpy), context.graph, node.outputs[0])
    return b.op("Add", acc, dialect.constant(context, f"{node.name}_bias_q", bias), name=f"{node.name}/bias")


def transposed(dialect: Stored, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write ConvTranspose for the forms that requantize in float32."""
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Accumulate)  # noqa: S101
    acc = transposed_accumulator(dialect, context, node, kernel, wide=plan.bound > DType.INT32.qmax)
    real = context.builder.op("Cast", acc, name=f"{node.name}/acc", to=int(ir.DataType.FLOAT))
    if plan.output is None:
        scale = fr.along_channels(plan.acc_scale, context.graph, node.outputs[0])
        parameter = dialect.constant(context, f"{node.name}_acc_scale", scale)
        return context.builder.op("Mul", real, parameter, name=f"{node.name}/scaled", output=kernel.output, claim=True)
    return requantized(dialect, context, node, kernel, r=plan.output, acc=real)


def requantized(
    dialect: Stored, context: Context, node: Node, kernel: Kernel, *, r: Requantize, acc: ir.Value
) -> ir.Value:
    """Write clamp(rint(acc · multiplier) + z) on a float32 accumulator, stored."""
    b, tensor = context.builder, kernel.output
    kernels_only(r, context.plan.quantizers[tensor], node.name)
    multiplier = fr.along_channels(r.multiplier, context.graph, node.outputs[0])
    scaled = b.op("Mul", acc, dialect.constant(context, f"{tensor}_multiplier", multiplier), name=f"{tensor}/scaled")
    rounded = b.op("Round", scaled, name=f"{tensor}/round")
    return fitted(dialect, context, kernel, r, rounded=rounded, zero_point=r.zero_point)


def fitted(
    dialect: Stored, context: Context, kernel: Kernel, r: Requantize, *, rounded: ir.Value, zero_point: int
) -> ir.Value:
    """Write integral float32 values, plus a zero point, clipped and stored."""
    b, tensor = context.builder, kernel.output
    if zero_point:
        zero = dialect.constant(context, f"{tensor}_zero", np.float32(zero_point))
        rounded = b.op("Add", rounded, zero, name=f"{tensor}/zero")
    bounds = [
        dialect.constant(context, f"{tensor}_{side}_float", np.float32(bound))
        for side, bound in (("low", r.low), ("high", r.high))
    ]
    clipped = b.op("Clip", rounded, *bounds, name=f"{tensor}/clip")
    stored = int(ir_dtype(context.plan.quantizers[tensor].dtype))
    return b.op("Cast", clipped, name=f"{tensor}/store", output=f"{tensor}_q", to=stored)


def device(dialect: Stored, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write a plug-in package's kernel as a node of its own, which devices know and others read as a function."""
    op = op_of(kernel)
    stored = {op.inputs[o.port]: context.get(o.tensor, Form.QUANTIZED) for o in kernel.operands}
    if kernel.weight is not None and op.weight is not None:
        stored[op.weight] = dialect.weight(context, context.plan.weights[kernel.weight])
    return write_call(
        context, node, function=op.written, stored=stored, output=fr.stored_name(kernel),
        constants=lambda name, value: dialect.constant(context, name, value),
    )  # fmt: skip


def difference(dialect: Stored, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write Sub of two stored tensors by the formula of the addition kernel, with a negative ratio."""
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Sum)  # noqa: S101
    if plan.output is None or not plan.is_kernel_arithmetic:
        raise no_accumulators(node.name)
    kernels_only(plan.output, context.plan.quantizers[kernel.output], node.name)
    operands = [context.get(t.tensor, t.form) for t in plan.terms]
    total = fr.free_sum(context, node, plan, operands, constants=lambda name, v: dialect.constant(context, name, v))
    rounded = context.builder.op("Round", total, name=f"{node.name}/round")
    return fitted(dialect, context, kernel, plan.output, rounded=rounded, zero_point=0)
