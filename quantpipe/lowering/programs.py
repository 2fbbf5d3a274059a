"""Write integer programs (types/program.py) in ONNX ops on int64, for the simulated and the realized graph alike.

One function writes each step. Where onnxruntime computes int64 wrongly (Clip, Max and Min near multiples of 2^32) the
step takes a way on which its bounds make float64 exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from quantpipe.lowering.integers import WIDE, IntegerWriter
from quantpipe.types import Program, Step, StepOp

AXES_ARE_INPUTS = 18
"""The opset from which ReduceMax takes its axes as an input."""

Values = Sequence[ir.Value]


def write_program(writer: IntegerWriter, program: Program, operands: Values) -> ir.Value:
    """Write all steps of a program on operands q - z, int64; return the last value, int64."""
    values = list(operands)
    for number, step in enumerate(program.steps):
        given = [values[i] for i in step.operands]
        values.append(_WRITERS[step.op](writer, step, given, f"{program.node}/step{number}"))
    return values[-1]


def _second(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    return given[1] if len(given) > 1 else writer.constants(f"{name}/number", _numbers(step))


def _numbers(step: Step) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    return np.asarray(0 if step.numbers is None else step.numbers, np.int64)


def _plain(op: str) -> Callable[..., ir.Value]:
    def write(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
        return writer.builder.op(op, given[0], _second(writer, step, given, name), name=name)

    return write


def _shift(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    return writer.right_shift(given[0], _numbers(step), step.rounding, name, width=WIDE)


def _shift_right(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    """Write (a + (2^b >> 1)) >> b on unsigned integers."""
    b, one = writer.builder, writer.constants("one_uint64", np.uint64(1))
    count = writer.cast(_second(writer, step, given, name), np.uint64, f"{name}/count")
    power = b.op("BitShift", one, count, name=f"{name}/power", direction="LEFT")
    half = b.op("BitShift", power, one, name=f"{name}/half", direction="RIGHT")
    raised = b.op("Add", writer.cast(given[0], np.uint64, f"{name}/bits"), half, name=f"{name}/round")
    shifted = b.op("BitShift", raised, count, name=f"{name}/shifted", direction="RIGHT")
    return writer.cast(shifted, np.int64, name)


def _shift_left(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    count = writer.cast(_second(writer, step, given, name), np.uint64, f"{name}/count")
    bits = writer.cast(given[0], np.uint64, f"{name}/bits")
    shifted = writer.builder.op("BitShift", bits, count, name=f"{name}/shifted", direction="LEFT")
    return writer.cast(shifted, np.int64, name)


def _table(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    """Write Gather, with entries in 32 bits if they fit, since tables of 16-bit codes are long."""
    entries = _numbers(step)
    fits = np.all(np.abs(entries) < 1 << 31)
    table = writer.constants(f"{name}/table", entries.astype(np.int32) if fits else entries)
    found = writer.builder.op("Gather", table, given[0], name=f"{name}/entry")
    return writer.cast(found, np.int64, name) if fits else found


def _clip(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    low, high = (int(v) for v in _numbers(step))
    return writer.cast(writer.clip(given[0], low, high, name), np.int64, f"{name}/clipped")


def _max_over(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    """Write the maximum in float64, which holds every operand."""
    b, real = writer.builder, writer.cast(given[0], np.float64, f"{name}/double")
    if b.opset < AXES_ARE_INPUTS:
        found = b.op("ReduceMax", real, name=f"{name}/max", axes=list(step.axes), keepdims=1)
    else:
        axes = writer.constants(f"{name}/axes", np.asarray(step.axes, np.int64))
        found = b.op("ReduceMax", real, axes, name=f"{name}/max", keepdims=1)
    return writer.cast(found, np.int64, name)


def _sum_over(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    axes = writer.constants(f"{name}/axes", np.asarray(step.axes, np.int64))
    return writer.builder.op("ReduceSum", given[0], axes, name=name, keepdims=1)


def _matmul(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    matrix = writer.constants(f"{name}/matrix", _numbers(step))
    if step.axes[0] < -2:
        after = "xyzuvw"[: -step.axes[0] - 1]
        return writer.builder.op("Einsum", matrix, given[0], name=name, equation=f"ab,...b{after}->...a{after}")
    pair = (given[0], matrix) if step.axes == (-1,) else (matrix, given[0])
    return writer.builder.op("MatMul", *pair, name=name)


def _squeeze(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    axes = writer.constants(f"{name}/axes", np.asarray(step.axes, np.int64))
    return writer.builder.op("Squeeze", given[0], axes, name=name)


def _bits(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    """Return how many powers of two are no larger: compared with all of them along an axis of its own, and counted."""
    b, last = writer.builder, writer.constants("last_axis", np.asarray([-1], np.int64))
    powers = writer.constants("powers_of_two", np.int64(1) << np.arange(63, dtype=np.int64))
    apart = b.op("Unsqueeze", given[0], last, name=f"{name}/apart")
    reached = b.op("GreaterOrEqual", apart, powers, name=f"{name}/reached")
    ones = writer.cast(reached, np.int64, f"{name}/ones")
    return b.op("ReduceSum", ones, last, name=name, keepdims=0)


def _sqrt(writer: IntegerWriter, step: Step, given: Values, name: str) -> ir.Value:
    """Write the floor of the square root in float64, which is the exact integer below 2^52."""
    b, real = writer.builder, writer.cast(given[0], np.float64, f"{name}/double")
    root = b.op("Floor", b.op("Sqrt", real, name=f"{name}/root"), name=f"{name}/floor")
    return writer.cast(root, np.int64, name)


_WRITERS: Mapping[StepOp, Callable[..., ir.Value]] = {
    StepOp.CONSTANT: lambda writer, step, given, name: writer.constants(f"{name}/number", _numbers(step)),
    StepOp.ADD: _plain("Add"),
    StepOp.SUB: _plain("Sub"),
    StepOp.MUL: _plain("Mul"),
    StepOp.DIV: _plain("Div"),
    StepOp.SHIFT: _shift,
    StepOp.SHIFT_RIGHT: _shift_right,
    StepOp.SHIFT_LEFT: _shift_left,
    StepOp.TABLE: _table,
    StepOp.CLIP: _clip,
    StepOp.MAX_OVER: _max_over,
    StepOp.SUM_OVER: _sum_over,
    StepOp.MATMUL: _matmul,
    StepOp.SQUEEZE: _squeeze,
    StepOp.BITS: _bits,
    StepOp.SQRT: _sqrt,
}
