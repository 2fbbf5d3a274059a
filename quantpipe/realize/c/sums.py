"""Convolutions, dense layers and products of two activations in C: loops over integers, one function per layer."""

from __future__ import annotations

from math import prod

import numpy as np

from quantpipe.errors import HardwareError
from quantpipe.graph.same_pads import SAME, leading_pads
from quantpipe.graph.view import Node
from quantpipe.oprules.geometry import pads_before
from quantpipe.realize.c.c_buffers import CWalk
from quantpipe.realize.c.memory import ctype
from quantpipe.realize.c.narrow import limited, narrowed, per_channel
from quantpipe.realize.c.nest import broadcast_strides, strides_of
from quantpipe.realize.c.source import less
from quantpipe.types import Accumulate, Contract, DType, Kernel

TILE = 256
"""Sums that a convolution keeps side by side: neighbours along the last axis, so that compilers use vectors."""


def accumulate(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write a Conv, Gemm or MatMul by a weight, or a MatMul of two activations."""
    plan = walk.plan.kernels[node.name]
    if isinstance(plan, Contract):
        contract(walk, node, kernel, plan)
        return
    assert isinstance(plan, Accumulate)  # noqa: S101  (the planner pairs families with plans; narrows the type)
    if plan.pairs is not None:
        raise HardwareError(
            "pairs of its products saturate in int16 (hardware.isa=avx2), which the C form does not write; legal is "
            "realize=integer, or hardware.weights.reduce_range=true",
            stage="realize",
            where=node.name,
        )
    dense = walk.plan.weights[plan.weight].values.ndim == 2
    (_dense if dense else _conv)(walk, node, kernel, plan)


def transposed(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write a ConvTranspose: every result gathers the inputs that its taps reach."""
    plan = walk.plan.kernels[node.name]
    assert isinstance(plan, Accumulate)  # noqa: S101
    data, out = walk.stored(kernel.operands[0].tensor), walk.result(kernel)
    values, q = walk.plan.weights[plan.weight].centred(), walk.plan.quantizers[kernel.operands[0].tensor]
    rank = values.ndim - 2
    strides, dilations = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
    begin = transposed_begin(node, data.shape[2:], values.shape[2:], out.shape[2:])
    weight = walk.source.array(values, _holding(values))
    batch, inputs, outputs = data.shape[0], data.shape[1], out.shape[1]
    lines = [f"int n, m, c; {_counters('o', rank)} {_counters('k', rank)}", f"for (n = 0; n < {batch}; n++)"]
    lines.append(f"for (m = 0; m < {outputs}; m++)")
    lines += [f"for (o{a} = 0; o{a} < {out.shape[2 + a]}; o{a}++)" for a in range(rank)]
    lines[-1] += " {"
    lines.append(f"    {_acc(plan.bound)} acc = {_bias(walk, plan, 'm')};")
    for a in range(rank):
        head = f"for (k{a} = 0; k{a} < {values.shape[2 + a]}; k{a}++) {{"
        place = f"int t{a} = o{a} + {begin[a]} - k{a} * {dilations[a]}, p{a} = t{a} / {strides[a]};"
        lines.append(
            f"    {head} {place} if (t{a} < 0 || t{a} % {strides[a]} != 0 || p{a} >= {data.shape[2 + a]}) continue;"
        )
    at, tap = f"n * {inputs} + c", f"c * {outputs} + m"
    for a in range(rank):
        at, tap = f"({at}) * {data.shape[2 + a]} + p{a}", f"({tap}) * {values.shape[2 + a]} + k{a}"
    lines.append(f"    for (c = 0; c < {inputs}; c++)")
    lines.append(f"        acc += ({_acc(plan.bound)})({less(f'x0[{at}]', q.zero_point)}) * {weight}[{tap}];")
    lines.append("    " + "}" * rank)
    place = f"n * {outputs} + m"
    for a in range(rank):
        place = f"({place}) * {out.shape[2 + a]} + o{a}"
    lines.append(f"    y[{place}] = {_finished(walk, plan, out.ctype, acc='acc', channel='m')};")
    lines.append("}")
    walk.source.call(f"{node.op} {node.name}", _indented(lines), [data], out)


def contract(walk: CWalk, node: Node, kernel: Kernel, plan: Contract) -> None:
    """Write a MatMul of two stored tensors, whose leading axes are broadcast."""
    a, b = (walk.stored(o.tensor) for o in kernel.operands)
    za, zb = (walk.plan.quantizers[o.tensor].zero_point for o in kernel.operands)
    out = walk.result(kernel)
    rows, depth, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    lead = out.shape[:-2]
    sa = [s * rows * depth for s in broadcast_strides(a.shape[:-2], lead)]
    sb = [s * depth * columns for s in broadcast_strides(b.shape[:-2], lead)]
    so = [s * rows * columns for s in strides_of(lead)]
    lines = [f"int r, n, k; {_counters('i', len(lead))}"]
    lines += [f"for (i{d} = 0; i{d} < {size}; i{d}++)" for d, size in enumerate(lead)]

    def at(strides: list[int]) -> str:
        return " + ".join(f"i{d} * {s}" for d, s in enumerate(strides) if s) or "0"

    lines += [f"for (r = 0; r < {rows}; r++)", f"for (n = 0; n < {columns}; n++) {{"]
    left, right = f"x0[{at(sa)} + r * {depth} + k]", f"x1[{at(sb)} + k * {columns} + n]"
    lines += [
        f"    {_acc(plan.bound)} acc = 0;",
        f"    for (k = 0; k < {depth}; k++)",
        f"        acc += ({_acc(plan.bound)})({less(left, za)}) * ({less(right, zb)});",
        f"    y[{at(so)} + r * {columns} + n] = {_finished(walk, plan, out.ctype, acc='acc', channel='n')};",
        "}",
    ]
    walk.source.call(f"{node.op} {node.name}", _indented(lines), [a, b], out)


def _dense(walk: CWalk, node: Node, kernel: Kernel, plan: Accumulate) -> None:
    data, out = walk.stored(kernel.operands[0].tensor), walk.result(kernel)
    stored = walk.plan.weights[plan.weight]
    values = stored.centred()
    values = values if node.attr("transB", 0) else values.T  # [N, K]
    columns, depth = values.shape
    weight, zero = walk.source.array(values, _holding(values)), walk.plan.quantizers[data_of(kernel)].zero_point
    acc = _acc(plan.bound)
    lines = [
        "int r, n, k;",
        f"for (r = 0; r < {prod(data.shape[:-1])}; r++)",
        f"for (n = 0; n < {columns}; n++) {{",
        f"    {acc} acc = {_bias(walk, plan, 'n')};",
        f"    for (k = 0; k < {depth}; k++)",
        f"        acc += ({acc})({less(f'x0[r * {depth} + k]', zero)}) * {weight}[n * {depth} + k];",
        f"    y[r * {columns} + n] = {_finished(walk, plan, out.ctype, acc='acc', channel='n')};",
        "}",
    ]
    walk.source.call(f"{node.op} {node.name}", _indented(lines), [data], out)


def _conv(walk: CWalk, node: Node, kernel: Kernel, plan: Accumulate) -> None:
    """Write a convolution, a row of adjacent results at a time; taps outside of the map add nothing."""
    data, out = walk.stored(kernel.operands[0].tensor), walk.result(kernel)
    values, zero = walk.plan.weights[plan.weight].centred(), walk.plan.quantizers[data_of(kernel)].zero_point
    size, taps, made = list(data.shape[2:]), list(values.shape[2:]), list(out.shape[2:])
    rank, groups = len(taps), int(node.attr("group", 1))
    strides, dilations = list(node.attr("strides", [1] * rank)), list(node.attr("dilations", [1] * rank))
    begin = pads_before(node, size, taps, made)
    if all(v == 1 for v in (*taps, *strides)) and not any(begin) and size == made:  # one long row
        size, taps, made, strides, dilations, begin = [prod(size)], [1], [prod(made)], [1], [1], [0]
        rank = 1
    channels, outputs = data.shape[1] // groups, out.shape[1] // groups
    weight, acc, last = walk.source.array(values, _holding(values)), _acc(plan.bound), rank - 1
    tile = min(TILE, made[last])
    lines = [f"int n, m, c, j, t; {_counters('o', last)} {_counters('k', rank)}"]
    lines += [f"for (n = 0; n < {data.shape[0]}; n++)", f"for (m = 0; m < {out.shape[1]}; m++)"]
    lines += [f"for (o{a} = 0; o{a} < {made[a]}; o{a}++)" for a in range(last)]
    lines.append(f"for (t = 0; t < {made[last]}; t += {tile}) {{")
    body = [f"{acc} acc[{tile}];", f"int width = {made[last]} - t < {tile} ? {made[last]} - t : {tile};"]
    body += [f"for (j = 0; j < width; j++) acc[j] = {_bias(walk, plan, 'm')};", f"for (c = 0; c < {channels}; c++)"]
    row, tap = f"n * {data.shape[1]} + m / {outputs} * {channels} + c", f"m * {channels} + c"
    for a in range(last):
        place = f"int p{a} = o{a} * {strides[a]} - {begin[a]} + k{a} * {dilations[a]};"
        body.append(f"for (k{a} = 0; k{a} < {taps[a]}; k{a}++) {{ {place}")
        body.append(f"if (p{a} < 0 || p{a} >= {size[a]}) continue;")
        row, tap = f"({row}) * {size[a]} + p{a}", f"({tap}) * {taps[a]} + k{a}"
    s = strides[last]
    body += [
        f"for (k{last} = 0; k{last} < {taps[last]}; k{last}++) {{",
        f"    const {acc} w = {weight}[({tap}) * {taps[last]} + k{last}];",
        f"    const int at = t * {s} - {begin[last]} + k{last} * {dilations[last]};",
        f"    const int first = at < 0 ? ({s - 1} - at) / {s} : 0;",
        f"    const int fit = at < {size[last]} ? ({size[last] - 1} - at) / {s} + 1 : 0;",
        "    const int end = fit < width ? fit : width;",
        f"    const {data.ctype} *const row = x0 + ({row}) * {size[last]};",
        f"    for (j = first; j < end; j++) acc[j] += ({less(f'row[at + j * {s}]', zero)}) * w;",
        "}",
        "}" * last,
    ]
    place = f"n * {out.shape[1]} + m"
    for a in range(last):
        place = f"({place}) * {made[a]} + o{a}"
    body.append(
        f"for (j = 0; j < width; j++) y[({place}) * {made[last]} + t + j] = "
        f"{_finished(walk, plan, out.ctype, acc='acc[j]', channel='m')};"
    )
    lines += ["    " + text for text in body if text] + ["}"]
    walk.source.call(f"{node.op} {node.name}", _indented(lines), [data], out)


def data_of(kernel: Kernel) -> str:
    """Return the tensor that a kernel multiplies."""
    return kernel.operands[0].tensor


def transposed_begin(node: Node, size: tuple[int, ...], taps: tuple[int, ...], made: tuple[int, ...]) -> list[int]:
    """Return the leading pads of a transposed convolution: given, or as they follow from the measured result."""
    auto, rank = node.attr("auto_pad", "NOTSET"), len(taps)
    if node.attr("output_shape", None) is None and auto not in SAME:
        return list(node.attr("pads", [0] * (2 * rank))[:rank]) if auto == "NOTSET" else [0] * rank
    strides, dilations = node.attr("strides", [1] * rank), node.attr("dilations", [1] * rank)
    extra = node.attr("output_padding", [0] * rank)
    spans = [(k - 1) * d + 1 for k, d in zip(taps, dilations, strict=True)]
    full = [(n - 1) * s + x + k for n, s, x, k in zip(size, strides, extra, spans, strict=True)]
    pads = [max(f - o, 0) for f, o in zip(full, made, strict=True)]
    return leading_pads(pads, auto)


def _finished(walk: CWalk, plan: Accumulate | Contract, kind: str, *, acc: str, channel: str) -> str:
    text = limited(walk.source, acc, plan.limit if isinstance(plan, Accumulate) else None)
    if plan.output is not None:
        text = narrowed(walk.source, plan.output, text, channel=channel)
    return f"({kind})({text})"


def _bias(walk: CWalk, plan: Accumulate, channel: str) -> str:
    if plan.bias is None:
        return "0"
    wide = DType.INT64 if np.abs(plan.bias).max(initial=0) > DType.INT32.qmax else DType.INT32
    return per_channel(walk.source, plan.bias, wide, channel)


def _acc(bound: int) -> str:
    """Return the type of an accumulator that holds every partial sum."""
    return ctype(DType.INT32 if bound <= DType.INT32.qmax else DType.INT64)


def _holding(values: np.ndarray) -> DType:
    """Return the narrowest type of integer weights less their zero points."""
    least, most = int(values.min(initial=0)), int(values.max(initial=0))
    kinds = (DType.INT8, DType.UINT8, DType.INT16, DType.INT32)
    return next(kind for kind in kinds if kind.qmin <= least and most <= kind.qmax)


def _counters(letter: str, count: int) -> str:
    return f"int {', '.join(f'{letter}{n}' for n in range(count))};" if count else ""


def _indented(lines: list[str]) -> str:
    return "\n".join("    " + line for line in lines)
