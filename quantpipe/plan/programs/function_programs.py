"""Which program forms which op in which way, and how its result becomes a kernel's numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from quantpipe.arrays import Ints
from quantpipe.errors import HardwareError
from quantpipe.oprules import OpRule
from quantpipe.oprules.geometry import window_counts, window_elements
from quantpipe.oprules.rows import is_mean, local_response, longest_row, normalization, row_axes, row_count
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.programs import exponentials as ex
from quantpipe.plan.programs.division import quotient
from quantpipe.plan.programs.local_response import local_response_normalized
from quantpipe.plan.programs.log_softmax import log_softmax
from quantpipe.plan.programs.norms import normalized
from quantpipe.plan.programs.softmax import divided_softmax, tflite_softmax
from quantpipe.plan.programs.windows_divided import divided_average
from quantpipe.plan.programs.writer import ProgramValue, ProgramWriter
from quantpipe.plan.requantize import limits, real_of, refuse_wide_products, requantize, shared_among
from quantpipe.types import DType, Form, FunctionKind, Kernel, Program, RequantizeKind, Rounding, Scales

MEAN_BITS = 12
"""Bits of fraction that a mean keeps on its way through an integer division."""

Made = tuple[ProgramValue, float | None]
"""The last value, and the real units of one of its steps; None where it is the stored integer itself."""
Maker = Callable[[PlanBuilder, Kernel, ProgramWriter], Made]


def plan_program(builder: PlanBuilder, kernel: Kernel, rule: OpRule) -> Program:
    """Plan a function of rows as the device forms it.

    Raises HardwareError where the result would be passed on as an accumulator, or a value could leave its type.
    """
    kind = builder.function(kernel) or rule.kinds[0]
    if kernel.form is Form.RAW or any(o.form is not Form.QUANTIZED for o in kernel.operands):
        raise HardwareError(
            "its integer form reads and gives stored integers; declare stored types of 8 or 16 bits in its `in` and "
            f"`out`, or keep it in float with annotate.float_nodes=[{kernel.node}]",
            stage="plan",
            where=kernel.node,
        )
    read = [builder.quantizers[kernel.output if o.rescaled else o.tensor] for o in kernel.operands]
    writer = ProgramWriter(kernel.node, [(q.low, q.high) for q in read])
    result, scale = PROGRAMS[kernel.op, kind](builder, kernel, writer)
    out = builder.quantizers[kernel.output]
    output = None if scale is None else requantize(builder, kernel, np.asarray(scale, np.float64), out)
    if output is not None and output.fixed is not None and _is_shared(builder, kernel):
        # As of any other average: the multiplier of one element is divided, and what is left over is dropped.
        one = np.float64(read[0].scale) / np.float64(out.scale)
        fixed = shared_among(builder, kernel, one, row_count(builder.graph.by_name[kernel.node], builder.graph))
        output = replace(output, fixed=fixed, multiplier=real_of(fixed))
    refuse_wide_products(kernel, output, max(-result.low, result.high))
    own = np.asarray(out.scale if scale is None else scale, np.float32)
    return Program(kernel.node, kind, len(read), tuple(writer.steps), own, result.peak, output)


def _tflite_softmax(builder: PlanBuilder, kernel: Kernel, writer: ProgramWriter) -> Made:
    node, data = builder.graph.by_name[kernel.node], builder.quantizers[kernel.operands[0].tensor]
    axes, count = row_axes(node, builder.graph), longest_row(node, builder.graph, FunctionKind.TFLITE, data.dtype.bits)
    return tflite_softmax(writer, data, builder.quantizers[kernel.output], axes, count=count), None


def _divided_softmax(exponentials: Callable[[float, int], Ints], rounding: Rounding = Rounding.FLOOR) -> Maker:
    def make(builder: PlanBuilder, kernel: Kernel, writer: ProgramWriter) -> Made:
        node, data = builder.graph.by_name[kernel.node], builder.quantizers[kernel.operands[0].tensor]
        axes, count = row_axes(node, builder.graph), longest_row(node, builder.graph)
        out, scale = builder.quantizers[kernel.output], float(data.scale)
        entries = partial(exponentials, scale)
        return divided_softmax(writer, out, entries, axes, count=count, rounding=rounding), None

    return make


def _log_softmax(builder: PlanBuilder, kernel: Kernel, writer: ProgramWriter) -> Made:
    node, data = builder.graph.by_name[kernel.node], builder.quantizers[kernel.operands[0].tensor]
    return log_softmax(writer, data, row_axes(node, builder.graph), count=longest_row(node, builder.graph))


def _differences(span: int) -> Ints:
    return np.arange(-span, 1, dtype=np.int64)


def _norm(builder: PlanBuilder, kernel: Kernel, writer: ProgramWriter) -> Made:
    data, what = builder.quantizers[kernel.operands[0].tensor], builder.graph.by_name[kernel.node]
    return normalized(writer, data, normalization(what, builder.graph), _finest(builder, kernel))


def _finest(builder: PlanBuilder, kernel: Kernel) -> float:
    """Return the smallest step, in real units, that the device can narrow to the result's; 0 for any."""
    how = builder.narrowing(kernel)
    shifts = how.kind is RequantizeKind.SHIFT
    return math.ldexp(float(builder.quantizers[kernel.output].scale), -how.max_shift) if shifts else 0.0


def _local_response(builder: PlanBuilder, kernel: Kernel, writer: ProgramWriter) -> Made:
    node, data = builder.graph.by_name[kernel.node], builder.quantizers[kernel.operands[0].tensor]
    shape = builder.graph.shapes[node.inputs[0]]
    return local_response_normalized(writer, data, local_response(node), shape, finest=_finest(builder, kernel))


def _division(builder: PlanBuilder, kernel: Kernel, writer: ProgramWriter) -> Made:
    a, b, out = (builder.quantizers[t] for t in (*(o.tensor for o in kernel.operands), kernel.output))
    return quotient(writer, a, b, out)


def _sum(builder: PlanBuilder, kernel: Kernel, writer: ProgramWriter) -> Made:
    """The sum over axes; a mean has its count in the scale."""
    node, data = builder.graph.by_name[kernel.node], builder.quantizers[kernel.operands[0].tensor]
    axes, count = row_axes(node, builder.graph), row_count(node, builder.graph)
    total = writer.sum_over(writer.operand(), axes, count)
    if total.peak > DType.INT32.qmax:
        raise writer.refused(f"its sums over {count} elements may reach {total.peak}, beyond int32")
    scale = float(data.scale) / (count if is_mean(node) else 1)
    if is_mean(node) and not _is_shared(builder, kernel):
        # A shift divides by no such count: the sum, with bits of fraction, is divided before it is narrowed.
        fraction = max(0, min(MEAN_BITS, 30 - total.peak.bit_length()))
        total = writer.div(writer.mul(total, 1 << fraction), count)
        scale = math.ldexp(float(data.scale), -fraction)
    return total if node.attr("keepdims", 1) else writer.squeeze(total, axes), scale


def _average(builder: PlanBuilder, kernel: Kernel, writer: ProgramWriter) -> Made:
    """The average of each window, stored as its operand is."""
    node, out = builder.graph.by_name[kernel.node], builder.quantizers[kernel.output]
    elements, counts = window_elements(node, builder.graph), window_counts(node, builder.graph)
    return divided_average(writer, out.zero_point, elements, counts, bounds=limits(kernel, out)), None


def _is_shared(builder: PlanBuilder, kernel: Kernel) -> bool:
    """Whether it is a mean whose count can sit in the multiplier or the shift."""
    node = builder.graph.by_name[kernel.node]
    count = row_count(node, builder.graph) if is_mean(node) else 0
    return is_mean(node) and not (builder.spec.scales is Scales.POWER_OF_TWO and count & (count - 1))


PROGRAMS: Mapping[tuple[str, FunctionKind], Maker] = {
    ("Softmax", FunctionKind.TFLITE): _tflite_softmax,
    ("Softmax", FunctionKind.TABLE): _divided_softmax(
        lambda scale, span: ex.table_exponentials(scale, span, 16), Rounding.HALF_UP
    ),
    ("Softmax", FunctionKind.SHIFT): _divided_softmax(lambda s, span: ex.shift_exponentials(s, _differences(span))),
    ("Softmax", FunctionKind.POLYNOMIAL): _divided_softmax(
        lambda s, span: ex.polynomial_exponentials(s, _differences(span))
    ),
    ("LogSoftmax", FunctionKind.TABLE): _log_softmax,
    ("Div", FunctionKind.DIVISION): _division,
    ("AveragePool", FunctionKind.DIVISION): _average,
    ("ReduceMean", FunctionKind.SUM): _sum,
    ("ReduceSum", FunctionKind.SUM): _sum,
    ("LRN", FunctionKind.INTEGER_SQRT): _local_response,
    **{
        (op, FunctionKind.INTEGER_SQRT): _norm
        for op in ("LayerNormalization", "RMSNormalization", "InstanceNormalization", "LpNormalization")
    },
}
"""(op, kind) -> what writes its program. A test joins it with the kinds of OP_RULES."""
