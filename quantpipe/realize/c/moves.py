"""Ops that move or select values, in C.

The result of a moving op is found by running it once on indices instead of values: the result shows which element of
which operand goes where. Regular indices become a few nested loops, others a table. So moving ops need no rules of
their own; ops that choose among values (maxima, minima, the largest of several) do.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.arrays import EXACT_FLOAT32
from quantpipe.graph.build import GraphBuilder
from quantpipe.graph.execute import Session
from quantpipe.graph.view import Node
from quantpipe.realize.c.c_buffers import CWalk
from quantpipe.realize.c.elementwise import window_loops
from quantpipe.realize.c.memory import Buffer
from quantpipe.realize.c.nest import broadcast_strides, collapsed, index, loops, regular, strides_of
from quantpipe.types import DType, Form, Kernel


def move(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write an op that moves values: where it only renames them, nothing at all."""
    data = {o.port: walk.operand(kernel, n) for n, o in enumerate(kernel.operands)}
    ports, buffers = list(data), list(data.values())
    places = _places(walk, node, data)
    shape = walk.graph.shapes[kernel.output]
    first = buffers[0]
    if len(buffers) == 1 and np.array_equal(places, 1 + np.arange(first.count)):
        walk.keep(kernel.output, kernel.form, first.renamed(shape))
        return
    out = walk.result(kernel)
    lines, at = [], 1
    if np.any(places == 0):
        fill = walk.plan.quantizers[kernel.output].zero_point if kernel.form is Form.QUANTIZED else 0
        lines.append(loops([out.count], f"y[i0] = {fill};"))
    for number in range(len(ports)):
        size = buffers[number].count
        mine = np.flatnonzero((places >= at) & (places < at + size))
        if mine.size:
            lines.append("    {\n" + _copied(walk, mine, places[mine] - at, number) + "\n    }")
        at += size
    walk.source.call(f"{node.op} {node.name}", "\n".join(_scoped(lines)), buffers, out)


def maximum_of_window(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write a MaxPool."""
    data, out = walk.operand(kernel, 0), walk.result(kernel)
    inner = "if (none || x0[at] > best) { best = x0[at]; none = 0; }"
    begin = f"int none = 1; {out.ctype} best = 0;"
    body = window_loops(node, data, out, begin=begin, inner=inner, done="y[place] = best;")
    walk.source.call(f"{node.op} {node.name}", body, [data], out)


def extreme_along(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write a maximum or minimum along axes."""
    data, out = walk.operand(kernel, 0), walk.result(kernel)
    rank = len(data.shape)
    axes = sorted(a % rank for a in _axes(walk, node, rank))
    kept = [a for a in range(rank) if a not in axes]
    own = strides_of(data.shape)
    left = [data.shape[a] for a in kept]
    outer, (made, read) = collapsed(left, [strides_of(left), [own[a] for a in kept]])
    sizes, inner = [data.shape[a] for a in axes], [own[a] for a in axes]
    count = prod(sizes)
    where = " + ".join(f"j / {_behind(sizes, n)} % {size} * {inner[n]}" for n, size in enumerate(sizes)) or "0"
    sign = LESS_IS_BETTER[node.op]
    text = (
        f"{out.ctype} best = x0[{index(read)}];\nint j;\nfor (j = 1; j < {count}; j++) {{\n"
        f"    const {data.ctype} v = x0[{index(read)} + {where}];\n    if (v {sign} best) best = v;\n}}\n"
        f"y[{index(made)}] = best;"
    )
    walk.source.call(f"{node.op} {node.name}", loops(outer, text) if outer else _indent(text), [data], out)


def top_along(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write the largest or smallest elements along an axis, in order: each goes to its place among those held."""
    data, out = walk.operand(kernel, 0), walk.result(kernel)
    axis = int(node.attr("axis", -1)) % len(data.shape)
    kept = [a for a in range(len(data.shape)) if a != axis]
    own, steps = strides_of(data.shape), strides_of(out.shape)
    outer, (made, read) = collapsed([data.shape[a] for a in kept], [[steps[a] for a in kept], [own[a] for a in kept]])
    count, held = data.shape[axis], out.shape[axis]
    sign = ">" if node.attr("largest", 1) else "<"
    text = (
        f"{out.ctype} *top = y + {index(made)};\nint j, held = 0;\nfor (j = 0; j < {count}; j++) {{\n"
        f"    const {data.ctype} v = x0[{index(read)} + j * {own[axis]}];\n    int at = held;\n"
        f"    for (; at > 0 && v {sign} top[(at - 1) * {steps[axis]}]; at--)\n"
        f"        if (at < {held}) top[at * {steps[axis]}] = top[(at - 1) * {steps[axis]}];\n"
        f"    if (at < {held}) top[at * {steps[axis]}] = v;\n    if (held < {held}) held++;\n}}"
    )
    walk.source.call(f"{node.op} {node.name}", loops(outer, text) if outer else _indent(text), [data], out)


def extreme_of_two(walk: CWalk, node: Node, kernel: Kernel) -> None:
    """Write the element-wise maximum or minimum of two tensors."""
    data = [walk.operand(kernel, n) for n in range(len(kernel.operands))]
    out = walk.result(kernel)
    steps = [broadcast_strides(b.shape, out.shape) for b in data]
    sizes, (place, a, b) = collapsed(out.shape, [strides_of(out.shape), *steps])
    left, right, sign = f"x0[{index(a)}]", f"x1[{index(b)}]", LESS_IS_BETTER[node.op]
    text = f"y[{index(place)}] = {left} {sign} {right} ? {left} : {right};"
    walk.source.call(f"{node.op} {node.name}", loops(sizes, text) if sizes else _indent(text), data, out)


LESS_IS_BETTER = {"ReduceMax": ">", "GlobalMaxPool": ">", "Max": ">", "ReduceMin": "<", "Min": "<"}
"""Op -> the comparison by which a value takes the place of another."""
OVER_THE_MAP = frozenset({"GlobalMaxPool"})
"""Reductions along all axes behind the channels."""


def _axes(walk: CWalk, node: Node, rank: int) -> list[int]:
    given = node.attr("axes")
    if given is None and len(node.inputs) > 1 and node.inputs[1]:
        given = walk.parameter(node.inputs[1], node).reshape(-1).tolist()
    if node.op in OVER_THE_MAP:
        return list(range(2, rank))
    return list(range(rank)) if not given else [int(a) for a in given]


def _behind(sizes: list[int], axis: int) -> int:
    return prod(sizes[axis + 1 :])


def _places(walk: CWalk, node: Node, data: dict[int, Buffer]) -> NDArray[np.int64]:
    """Return the source of each result element: 1 + its index among all operands in a row; 0 is padding."""
    total = 1 + sum(b.count for b in data.values())
    kind = ir.DataType.FLOAT if total < EXACT_FLOAT32 else ir.DataType.DOUBLE
    builder = GraphBuilder("places", walk.graph.opset, 9)
    feeds: dict[str, NDArray[Any]] = {}
    inputs: list[ir.Value | None] = []
    at = 1
    for port, tensor in enumerate(node.inputs):
        if port in data:
            name = f"x{port}"
            shape = data[port].shape
            feeds[name] = np.arange(at, at + data[port].count, dtype=kind.numpy()).reshape(shape)
            at += data[port].count
            inputs.append(builder.input(name, DType.FLOAT32 if kind is ir.DataType.FLOAT else "float64", shape))
        elif not tensor:
            inputs.append(None)
        else:
            values = walk.parameter(tensor, node)
            like_data = port == OF_THE_DATA.get(node.op)
            inputs.append(builder.constant(f"p{port}", values.astype(kind.numpy()) if like_data else values))
    made = builder.copy(node, inputs, [f"y{n}" if t else "" for n, t in enumerate(node.outputs)])
    model = builder.build([made[0]])
    (result,) = Session(model, where=node.name).run(feeds).values()
    return result.reshape(-1).astype(np.int64)  # places are whole numbers


OF_THE_DATA = {"Pad": 2}
"""Op -> the port of a constant of the data's type."""


def _copied(walk: CWalk, to: NDArray[np.int64], of: NDArray[np.int64], number: int) -> str:
    """Return statements that copy elements of an operand to their places."""
    found = regular([to, of])
    if found is not None:
        sizes, (made, read), (start, begin) = found
        text = f"y[{index(made, start)}] = x{number}[{index(read, begin)}];"
        return loops(sizes, text, 2) if sizes else _indent(text, 2)
    sources = walk.source.array(of, DType.INT32)
    whole = np.array_equal(to, np.arange(to.size))
    targets = "i0" if whole else f"{walk.source.array(to, DType.INT32)}[i0]"
    return loops([to.size], f"y[{targets}] = x{number}[{sources}[i0]];", 2)


def _scoped(lines: list[str]) -> list[str]:
    return [line if line.startswith("    {") else "    {\n" + line + "\n    }" for line in lines]


def _indent(text: str, depth: int = 1) -> str:
    return "\n".join("    " * depth + line for line in text.splitlines())
