"""Integer programs (functions of rows: Softmax, normalizations, means over axes) in C: a loop over int64 per step.

The steps are defined in `types/program.py`. Each has bounds that no input exceeds, so no sum and no product overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Node
from quantpipe.realize.c import helpers
from quantpipe.realize.c.c_buffers import CWalk
from quantpipe.realize.c.memory import Buffer
from quantpipe.realize.c.narrow import narrowed
from quantpipe.realize.c.nest import broadcast_strides, collapsed, index, loops, strides_of
from quantpipe.realize.c.source import CSource, integer
from quantpipe.types import DType, Form, Kernel, Program, Step, StepOp

TABLES = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)
"""Types of entries, the narrowest first."""


def program(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write all steps of a program, and the narrowing after them."""
    plan = walk.plan.kernels[node.name]
    assert isinstance(plan, Program)  # noqa: S101  (the walk asks for programs only; narrows the type)
    values = [_centred(walk, node, kernel, number) for number in range(plan.operands)]
    for number, step in enumerate(plan.steps):
        given = [values[place] for place in step.operands]
        values.append(_written(walk.source, step, given, f"{node.name}, step {number}"))
    last, out = values[-1], walk.result(kernel)
    if plan.output is None:
        body = loops([out.count], f"y[i0] = ({out.ctype})x0[i0];")
    else:
        several = plan.output.multiplier.size > 1 or plan.output.by_channel is not None
        channel = walk.channel(kernel.output) if several else (0,) * len(out.shape)
        sizes, (place, own) = collapsed(out.shape, [strides_of(out.shape), channel])
        text = narrowed(walk.source, plan.output, f"x0[{index(place)}]", channel=index(own))
        body = loops(sizes, f"y[{index(place)}] = ({out.ctype})({text});")
    walk.source.call(f"{node.op} {node.name}", body, [last], out)


def _centred(walk: CWalk, node: Node, kernel: Kernel, number: int) -> Buffer:
    """Return an operand less its zero point, in 64 bits."""
    operand = kernel.operands[number]
    data = walk.operand(kernel, number)
    read = kernel.output if operand.rescaled else operand.tensor
    zero = walk.plan.quantizers[read].zero_point if operand.form is Form.QUANTIZED else 0
    made = _new(walk.source, data.shape)
    body = loops([data.count], f"y[i0] = (int64_t)x0[i0] - ({zero});")
    walk.source.call(f"{node.name}, operand {number}", body, [data], made)
    return made


def _written(source: CSource, step: Step, given: Sequence[Buffer], title: str) -> Buffer:
    if step.op is StepOp.CONSTANT:
        values = _numbers(step)
        return Buffer(source.array(values, DType.INT64), DType.INT64, values.shape, external=True)
    if step.op is StepOp.SQUEEZE:
        axes = {axis % len(given[0].shape) for axis in step.axes}
        return given[0].renamed(tuple(n for axis, n in enumerate(given[0].shape) if axis not in axes))
    if step.op in (StepOp.MAX_OVER, StepOp.SUM_OVER):
        return _over(source, step, given[0], title)
    if step.op is StepOp.MATMUL:
        return _matmul(source, step, given[0], title)
    return _each(source, step, given, title)


def _each(source: CSource, step: Step, given: Sequence[Buffer], title: str) -> Buffer:
    """Write an element-wise step; missing operands are among its numbers."""
    numbers = _numbers(step)
    inside = step.op not in (StepOp.TABLE, StepOp.CLIP) and len(given) < 2
    shapes = [b.shape for b in given] + ([numbers.shape] if inside else [])
    made = _new(source, np.broadcast_shapes(*shapes))
    places = [broadcast_strides(shape, made.shape) for shape in shapes]
    sizes, (own, *rest) = collapsed(made.shape, [strides_of(made.shape), *places])
    reads = [f"x{n}[{index(rest[n])}]" for n in range(len(given))]
    if inside:
        several = numbers.size > 1
        reads.append(f"{source.array(numbers, DType.INT64)}[{index(rest[-1])}]" if several else _literal(numbers))
    text = EACH[step.op](source, step, reads)
    source.call(f"{title}: {step.op}", loops(sizes, f"y[{index(own)}] = {text};"), given, made)
    return made


def _over(source: CSource, step: Step, data: Buffer, title: str) -> Buffer:
    """Write the maximum or the sum along axes, which keep one element."""
    axes = {axis % len(data.shape) for axis in step.axes}
    made = _new(source, tuple(1 if axis in axes else n for axis, n in enumerate(data.shape)))
    strides = strides_of(data.shape)
    kept = [0 if axis in axes else s for axis, s in enumerate(strides)]
    sizes, (own, begin) = collapsed(made.shape, [strides_of(made.shape), kept])
    along = sorted(axes)
    inner, (steps,) = collapsed([data.shape[axis] for axis in along], [[strides[axis] for axis in along]])
    read = f"x0[{index(begin)}" + "".join(f" + j{n} * {s}" for n, s in enumerate(steps)) + "]"
    sums = step.op is StepOp.SUM_OVER
    lines = [f"int64_t acc = {'0' if sums else 'INT64_MIN'};"]
    lines += [f"int {', '.join(f'j{n}' for n in range(len(inner)))};"] if inner else []
    lines += [f"for (j{n} = 0; j{n} < {size}; j{n}++)" for n, size in enumerate(inner)]
    lines += [f"    acc {'+=' if sums else '= acc >'} {read}{';' if sums else f' ? acc : {read};'}"]
    body = "\n".join([*lines, f"y[{index(own)}] = acc;"])
    source.call(f"{title}: {step.op}", loops(sizes, body) if sizes else f"{{\n{body}\n}}", [data], made)
    return made


def _matmul(source: CSource, step: Step, data: Buffer, title: str) -> Buffer:
    """Write the product with a constant matrix; of each result only the terms from its first factor to its last."""
    matrix = _numbers(step).T if step.axes == (-1,) else _numbers(step)
    axis = len(data.shape) + step.axes[0]
    made = _new(source, (*data.shape[:axis], len(matrix), *data.shape[axis + 1 :]))
    held = [np.flatnonzero(row) for row in matrix]
    ends = np.asarray([(h[0], h[-1] + 1) if len(h) else (0, 0) for h in held], np.int64)
    before, after = prod(data.shape[:axis]), prod(data.shape[axis + 1 :])
    ones = all(np.all(row[a:b] == 1) for row, (a, b) in zip(matrix, ends, strict=True))
    factor = "" if ones else f"{source.array(matrix, DType.INT64)}[i1 * {matrix.shape[1]} + j] * "
    limits = source.array(ends, DType.INT32)
    read = f"x0[(i0 * {data.shape[axis]} + j) * {after} + i2]"
    body = (
        f"int64_t acc = 0;\nint j;\nfor (j = {limits}[2 * i1]; j < {limits}[2 * i1 + 1]; j++)\n"
        f"    acc += {factor}{read};\ny[(i0 * {len(matrix)} + i1) * {after} + i2] = acc;"
    )
    source.call(f"{title}: {step.op}", loops([before, len(matrix), after], body), [data], made)
    return made


def _new(source: CSource, shape: tuple[int, ...]) -> Buffer:
    """Return a new buffer of 64 bits; its name follows from how many steps there are."""
    return Buffer(f"p{len(source.steps)}", DType.INT64, shape)


def _numbers(step: Step) -> NDArray[np.int64]:
    return np.asarray(0 if step.numbers is None else step.numbers, np.int64)


def _literal(numbers: NDArray[np.int64]) -> str:
    return f"({integer(int(numbers.reshape(-1)[0]))})"


def _plain(sign: str) -> Callable[[CSource, Step, Sequence[str]], str]:
    return lambda source, step, reads: f"{reads[0]} {sign} {reads[1]}"


def _helper(name: str) -> Callable[[CSource, Step, Sequence[str]], str]:
    return lambda source, step, reads: f"{source.use(name)}({', '.join(reads)})"


def _one(name: str) -> Callable[[CSource, Step, Sequence[str]], str]:
    return lambda source, step, reads: f"{source.use(name)}({reads[0]})"


def _shift(source: CSource, step: Step, reads: Sequence[str]) -> str:
    return f"{source.use(helpers.SHIFT[step.rounding.value])}({reads[0]}, (int)({reads[1]}))"


def _table(source: CSource, step: Step, reads: Sequence[str]) -> str:
    entries = _numbers(step)
    fits = (t for t in TABLES if entries.min() >= t.qmin and entries.max() <= t.qmax)
    return f"{source.array(entries, next(fits))}[{reads[0]}]"


def _clip(source: CSource, step: Step, reads: Sequence[str]) -> str:
    low, high = (integer(int(v)) for v in _numbers(step))
    return f"{source.use('qp_clamp')}({reads[0]}, {low}, {high})"


EACH: Mapping[StepOp, Callable[[CSource, Step, Sequence[str]], str]] = {
    StepOp.ADD: _plain("+"),
    StepOp.SUB: _plain("-"),
    StepOp.MUL: _plain("*"),
    StepOp.DIV: _plain("/"),
    StepOp.SHIFT: _shift,
    StepOp.SHIFT_RIGHT: _helper("qp_down"),
    StepOp.SHIFT_LEFT: _helper("qp_up"),
    StepOp.TABLE: _table,
    StepOp.CLIP: _clip,
    StepOp.BITS: _one("qp_bits"),
    StepOp.SQRT: _one("qp_sqrt"),
}
"""Step -> its expression; C's division drops the fraction, towards zero."""
