"""Write tables, products of two activations and transposed convolutions in the simulated graph."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from quantpipe.graph.build import ir_dtype
from quantpipe.graph.view import Node
from quantpipe.lowering import Context
from quantpipe.lowering import fragments as fr
from quantpipe.lowering import transpose as tr
from quantpipe.lowering.device import op_of, write_call
from quantpipe.lowering.programs import write_program
from quantpipe.simulate.arithmetic import Arithmetic
from quantpipe.types import Accumulate, Contract, Form, Kernel, Lookup, Program


def lookup(dialect: Arithmetic, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write table[q - smallest code] - z of the output as float, gathered by the integers themselves."""
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Lookup)  # noqa: S101  (the planner pairs families with plans; narrows the type)
    b, data = context.builder, context.plan.quantizers[kernel.operands[0].tensor]
    out = context.plan.quantizers[kernel.output]
    value = context.get(data.tensor, kernel.operands[0].form)
    least = dialect._scalar(context, f"{data.tensor}.code", np.float32(data.zero_point - data.dtype.qmin))
    codes = b.op("Cast", b.op("Add", value, least, name=f"{node.name}/code"), name=f"{node.name}/index", to=int(INDEX))
    if plan.axis is not None:
        codes = b.op("Add", codes, b.constant(f"{node.name}/rows", fr.table_rows(context, plan, kernel)),
                     name=f"{node.name}/row")  # fmt: skip
    centred = plan.table.reshape(-1).astype(np.float32) - np.float32(out.zero_point)
    table = dialect._scalar(context, f"{node.name}.table", centred)
    return b.op("Gather", table, codes, name=node.name, output=fr.stored_name(kernel))


def program(dialect: Arithmetic, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write a function of rows, step by step in int64; return the stored result as float."""
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Program)  # noqa: S101  (the planner pairs families with plans; narrows the type)
    writer, out = dialect._writer(context), context.plan.quantizers[kernel.output]
    operands = [
        writer.cast(context.operand(o, kernel.output), np.int64, f"{node.name}/operand{n}")
        for n, o in enumerate(kernel.operands)
    ]
    result = write_program(writer, plan, operands)
    if plan.output is not None:
        acc = writer.cast(result, np.float64, f"{node.name}/double", f"{node.outputs[0]}_acc")
        dialect._wide.add(acc.name or "")
        return dialect._requantize(context, plan.output, acc, kernel.output)
    single = writer.cast(result, np.float32, f"{node.name}/single")
    zero = dialect._scalar(context, f"{out.tensor}.zero", np.float32(out.zero_point))
    return context.builder.op("Sub", single, zero, name=f"{node.name}/centre", output=fr.stored_name(kernel))


def contract(dialect: Arithmetic, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write MatMul of two stored tensors: in float32 if exact, else in int32, of 16 bits in float64.

    The result is the accumulator, or the stored result where it is narrowed.
    """
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Contract)  # noqa: S101
    b = context.builder
    operands = [context.get(o.tensor, Form.QUANTIZED) for o in kernel.operands]
    if plan.exact_in_float32:
        acc = b.copy(node, operands, [f"{node.outputs[0]}_acc"])[0]
    elif max(context.plan.quantizers[o.tensor].dtype.bits for o in kernel.operands) > 8:
        doubled = [dialect._double(context, v, f"{node.name}/operand{n}") for n, v in enumerate(operands)]
        acc = b.copy(node, doubled, [f"{node.outputs[0]}_acc"])[0]
        dialect._wide.add(acc.name or "")
    else:
        stored, zeros = [], []
        for number, (operand, value) in enumerate(zip(kernel.operands, operands, strict=True)):
            q = context.plan.quantizers[operand.tensor]
            name = f"{node.name}/operand{number}"
            zero = dialect._scalar(context, f"{q.tensor}.zero", np.float32(q.zero_point))
            shifted = b.op("Add", value, zero, name=f"{name}/q")
            stored.append(b.op("Cast", shifted, name=f"{name}/stored", to=int(ir_dtype(q.dtype))))
            typed = np.asarray(q.zero_point, q.dtype.numpy)
            zeros.append(dialect._scalar(context, f"{q.tensor}.zero_{q.dtype}", typed))
        product = b.op("MatMulInteger", *stored, *zeros, name=node.name, output=f"{node.outputs[0]}_product")
        acc = dialect._double(context, product, node.outputs[0])
    if plan.output is None:
        return acc
    return dialect._requantize(context, plan.output, acc, kernel.output, layout=node.outputs[0])


def transposed(dialect: Arithmetic, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write ConvTranspose, in as many parts as float32 needs to stay exact.

    The result is the accumulator, or the stored result where it is narrowed.
    """
    plan = context.plan.kernels[node.name]
    assert isinstance(plan, Accumulate)  # noqa: S101
    weight = context.plan.weights[plan.weight]
    data = context.get(kernel.operands[0].tensor, Form.QUANTIZED)
    parts = tr.parts_of(context.plan, plan, kernel)

    def write(name: str, values: np.ndarray[tuple[int, ...], np.dtype[np.float32]]) -> ir.Value:
        return dialect._weight(context, name, values)

    acc = tr.accumulate(context, node, data, weight.centred(), parts=parts, write=write)
    if plan.bias is not None:
        bias = fr.along_channels(plan.bias, context.graph, node.outputs[0])
        dtype = np.float32 if len(parts) == 1 else np.float64
        acc = context.builder.op(
            "Add", acc, dialect._weight(context, f"{node.name}.bias", bias.astype(dtype)), name=f"{node.name}/bias"
        )
    if len(parts) > 1:
        dialect._wide.add(acc.name or "")
    acc = dialect._limit(context, acc, plan.limit, plan.bound, tensor=kernel.output, node=node)
    if plan.output is None:
        return acc
    return dialect._requantize(context, plan.output, acc, kernel.output, layout=node.outputs[0])


def device(dialect: Arithmetic, context: Context, node: Node, kernel: Kernel) -> ir.Value:
    """Write a kernel of a plug-in package on stored integers; return the result less its zero point, as float."""
    b, op = context.builder, op_of(kernel)
    stored: dict[str, ir.Value] = {}
    for operand in kernel.operands:
        q, name = context.plan.quantizers[operand.tensor], f"{node.name}/operand{operand.port}"
        zero = dialect._scalar(context, f"{q.tensor}.zero", np.float32(q.zero_point))
        shifted = b.op("Add", context.get(operand.tensor, Form.QUANTIZED), zero, name=f"{name}/q")
        stored[op.inputs[operand.port]] = b.op("Cast", shifted, name=f"{name}/stored", to=int(ir_dtype(q.dtype)))
    if kernel.weight is not None and op.weight is not None:
        weight = context.plan.weights[kernel.weight]
        stored[op.weight] = dialect._weight(context, f"{weight.tensor}.stored", weight.values)
    made = write_call(
        context, node, function=op.integers, stored=stored, output=f"{node.name}/integers",
        constants=lambda name, value: dialect._scalar(context, name, value),
    )  # fmt: skip
    out = context.plan.quantizers[kernel.output]
    real = b.op("Cast", made, name=f"{node.name}/single", to=int(ir.DataType.FLOAT))
    zero = dialect._scalar(context, f"{out.tensor}.zero", np.float32(out.zero_point))
    return b.op("Sub", real, zero, name=f"{node.name}/centre", output=fr.stored_name(kernel))


def rescaled(dialect: Arithmetic, context: Context, tensor: str, target: str, *, value: ir.Value) -> ir.Value:
    """Write clamp(rint((q - z)·s / s')) in the float32 order of a DequantizeLinear before a QuantizeLinear.

    `value` and the result are integers less their zero points.
    """
    b, source, out = context.builder, context.plan.quantizers[tensor], context.plan.quantizers[target]
    name = f"{tensor}/to/{target}"
    real = b.op("Mul", value, dialect._scalar(context, f"{tensor}.scale", source.scale), name=f"{name}/real")
    steps = b.op("Div", real, dialect._scalar(context, f"{target}.scale", out.scale), name=f"{name}/steps")
    rounded = b.op("Round", steps, name=f"{name}/round")
    return dialect._clip(context, rounded, out.low, out.high, name=name, output=f"{name}/q")


INDEX = ir.DataType.INT32
