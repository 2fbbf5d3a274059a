"""Additions, products, averages, tables and clamps in C: one result per place."""

from __future__ import annotations

from math import prod

import numpy as np

from quantpipe.graph.view import Node
from quantpipe.lowering import fragments as fr
from quantpipe.oprules.geometry import pads_before
from quantpipe.realize.c.c_buffers import CWalk
from quantpipe.realize.c.memory import Buffer
from quantpipe.realize.c.narrow import limited, narrowed, per_channel, shifted, stored_real, times_fixed
from quantpipe.realize.c.nest import axis_strides, broadcast_strides, collapsed, index, loops, strides_of
from quantpipe.realize.c.source import less
from quantpipe.types import Average, DType, Form, Kernel, Lookup, Move, Product, Requantize, Sum, Term


def add(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write an addition or subtraction, in whichever way its operands come to one scale."""
    plan = walk.plan.kernels[node.name]
    assert isinstance(plan, Sum)  # noqa: S101  (the planner pairs families with plans; narrows the type)
    data = [walk.stored(t.tensor, t.form) for t in plan.terms]
    out = walk.result(kernel)
    own = strides_of(out.shape)
    steps = [broadcast_strides(b.shape, out.shape) for b in data]
    channels = [_channels(walk, t, b, out) for t, b in zip(plan.terms, data, strict=True)]
    sizes, (place, *rest) = collapsed(out.shape, [own, *steps, *channels, _bounds(plan.output, out)])
    reads = [f"x{n}[{index(rest[n])}]" for n in range(2)]
    along = [index(rest[2 + n]) for n in range(3)]
    text = _total(walk, plan, reads, along)
    walk.source.call(f"{node.op} {node.name}", loops(sizes, f"y[{index(place)}] = ({out.ctype})({text});"), data, out)


def _total(walk: CWalk, plan: Sum, reads: list[str], along: list[str]) -> str:
    source = walk.source
    if plan.scale is None:
        assert plan.output is not None  # noqa: S101
        total = per_channel(source, np.asarray(plan.offset), DType.FLOAT32, "0")
        for number in (1, 0):
            ratio = per_channel(source, plan.terms[number].ratio, DType.FLOAT32, along[number])
            total = f"{source.use('qp_scaled')}({reads[number]}, {ratio}, {total})"
        return stored_real(source, plan.output, total)
    terms = []
    for term, read, channel in zip(plan.terms, reads, along[:2], strict=True):
        value = f"(int64_t)({less(read, term.zero_point)})"
        if term.fixed is not None and plan.output is not None:
            value = shifted(source, value, -term.shift, "floor")
            value = times_fixed(source, value, term.fixed, str(plan.output.rounding), channel=channel)
        elif term.shift:
            value = shifted(source, value, -term.shift, str(plan.rounding))
        terms.append(value if np.all(term.ratio >= 0) else f"-({value})")
    total = f"({terms[0]}) + ({terms[1]})"
    if plan.terms[0].fixed is not None:
        total = f"{source.use('qp_saturate')}({total}, 32)"
    total = limited(source, total, plan.limit)
    return total if plan.output is None else narrowed(source, plan.output, total, channel=along[2])


def multiply(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write a product of two stored tensors."""
    plan = walk.plan.kernels[node.name]
    assert isinstance(plan, Product)  # noqa: S101
    data = [walk.stored(o.tensor) for o in kernel.operands]
    zeros = [walk.plan.quantizers[o.tensor].zero_point for o in kernel.operands]
    out = walk.result(kernel)
    steps = [broadcast_strides(b.shape, out.shape) for b in data]
    bounds = _bounds(plan.output, out)
    sizes, (place, first, second, channel) = collapsed(out.shape, [strides_of(out.shape), *steps, bounds])
    a, b = less(f"x0[{index(first)}]", zeros[0]), less(f"x1[{index(second)}]", zeros[1])
    text = narrowed(walk.source, plan.output, f"(int64_t)({a}) * ({b})", channel=index(channel))
    walk.source.call(f"{node.op} {node.name}", loops(sizes, f"y[{index(place)}] = ({out.ctype})({text});"), data, out)


def average(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write an average: the sum of a window, or of the whole map; 1 / count is in the narrowing."""
    plan = walk.plan.kernels[node.name]
    assert isinstance(plan, Average)  # noqa: S101
    data = walk.stored(kernel.operands[0].tensor)
    zero, out = walk.plan.quantizers[kernel.operands[0].tensor].zero_point, walk.result(kernel)
    if fr.is_window(node):
        inner = f"acc += {less('x0[at]', zero)};"
        text = narrowed(walk.source, plan.output, "acc", channel="c")
        done = f"y[place] = ({out.ctype})({text});"
        body = window_loops(node, data, out, begin="int64_t acc = 0;", inner=inner, done=done)
    else:
        size = prod(data.shape[2:])
        text = narrowed(walk.source, plan.output, "acc", channel=f"i0 % {data.shape[1]}")
        inner = f"for (j = 0; j < {size}; j++)\n    acc += {less(f'x0[i0 * {size} + j]', zero)};"
        one = f"int64_t acc = 0;\nint j;\n{inner}\ny[i0] = ({out.ctype})({text});"
        body = loops([data.shape[0] * data.shape[1]], one)
    walk.source.call(f"{node.op} {node.name}", body, [data], out)


def lookup(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write a function as a table over all codes, with a row per channel where it has several."""
    plan = walk.plan.kernels[node.name]
    assert isinstance(plan, Lookup)  # noqa: S101
    tensor = kernel.operands[0].tensor
    data, out, least = walk.stored(tensor), walk.result(kernel), walk.plan.quantizers[tensor].dtype.qmin
    table = walk.source.array(plan.table, out.dtype)
    own = strides_of(data.shape)
    row = axis_strides(plan.axis, len(data.shape)) if plan.axis is not None else (0,) * len(data.shape)
    sizes, (place, rows) = collapsed(data.shape, [own, row])
    code = f"({index(rows)}) * {plan.table.shape[1]} + x0[{index(place)}] - ({least})"
    walk.source.call(f"{node.op} {node.name}", loops(sizes, f"y[{index(place)}] = {table}[{code}];"), [data], out)


def clamp(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write a Relu or Clip that no producer swallowed."""
    plan = walk.plan.kernels[node.name]
    assert isinstance(plan, Move)  # noqa: S101
    data, out = walk.operand(kernel, 0), walk.result(kernel)
    stored = kernel.form is Form.QUANTIZED
    q = walk.plan.quantizers[kernel.output] if stored else None
    low = plan.low if plan.low is not None else q.qmin if q is not None else out.dtype.qmin
    high = plan.high if plan.high is not None else q.qmax if q is not None else out.dtype.qmax
    text = f"{walk.source.use('qp_clamp')}(x0[i0], {_wide(low)}, {_wide(high)})"
    body = loops([data.count], f"y[i0] = ({out.ctype}){text};")
    walk.source.call(f"{node.op} {node.name}", body, [data], out)


def window_loops(node: Node, data: Buffer, out: Buffer, *, begin: str, inner: str, done: str) -> str:
    """Return loops over the windows of a pool with input `[N, C, *map]`.

    `begin` precedes a window, `inner` runs at the element `at` of the input, and `done` runs after a window, for the
    element `place` of the result, of channel `c`.
    """
    taps = list(node.attr("kernel_shape"))
    rank = len(taps)
    strides, dilations = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
    pads = pads_before(node, list(data.shape[2:]), taps, list(out.shape[2:]))
    names = ", ".join([f"o{a}" for a in range(rank)] + [f"k{a}" for a in range(rank)])
    lines = [f"int n, c, {names};", f"for (n = 0; n < {data.shape[0]}; n++)", f"for (c = 0; c < {data.shape[1]}; c++)"]
    lines += [f"for (o{a} = 0; o{a} < {out.shape[2 + a]}; o{a}++)" for a in range(rank)]
    lines[-1] += " {"
    at = place = f"n * {data.shape[1]} + c"
    for a in range(rank):
        at, place = f"({at}) * {data.shape[2 + a]} + p{a}", f"({place}) * {out.shape[2 + a]} + o{a}"
    lines += [f"    const int place = {place};", f"    {begin}"]
    for a in range(rank):
        where = f"const int p{a} = o{a} * {strides[a]} - {pads[a]} + k{a} * {dilations[a]};"
        lines.append(f"    for (k{a} = 0; k{a} < {taps[a]}; k{a}++) {{ {where}")
        lines.append(f"    if (p{a} < 0 || p{a} >= {data.shape[2 + a]}) continue;")
    lines += [f"    {{ const int at = {at};", f"    {inner} }}", "    " + "}" * rank, f"    {done}", "}"]
    return "\n".join("    " + line for line in lines)


def _channels(walk: CWalk, term: Term, data: Buffer, out: Buffer) -> tuple[int, ...]:
    """Return the place of an operand's number per channel, relative to the result."""
    several = term.ratio.size > 1 or (term.fixed is not None and term.fixed.multiplier.size > 1)
    if not several:
        return (0,) * len(out.shape)
    own = walk.channel(term.tensor)
    return (*[0] * (len(out.shape) - len(own)), *(0 if n == 1 else s for n, s in zip(data.shape, own, strict=True)))


def _bounds(r: Requantize | None, out: Buffer) -> tuple[int, ...]:
    """Return the place of a channel's bounds, relative to the result."""
    several = r is not None and r.by_channel is not None and len(out.shape) > 1
    return axis_strides(1, len(out.shape)) if several else (0,) * len(out.shape)


def _wide(value: int) -> str:
    return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({value})"
