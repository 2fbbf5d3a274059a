"""Write nodes that stay in float as TFLite's float operators, such as a Softmax after the last integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.graph.view import Node
from quantpipe.intake.tflite.layout import Order, channels_last, plain, turned
from quantpipe.intake.tflite.operators import ELEMENTWISE, POOLS, REDUCTIONS
from quantpipe.oprules.scores import VIEWS
from quantpipe.realize.tflite import moves
from quantpipe.realize.tflite.walk import TfliteWalk
from quantpipe.realize.tflite.windows import Window, plain_padding, window_of
from quantpipe.types import Form, Kernel

RealWriter = Callable[[TfliteWalk, Node], None]
"""Writes one float node, and keeps its result."""

NO_KERNEL: Any = None


def elementwise(walk: TfliteWalk, node: Node) -> None:
    """Write an operator over elements."""
    op, kind = ELEMENTWISE[node.op]
    output = node.outputs[0]
    rank = len(walk.graph.shapes[output])
    known = [o for t in node.inputs for o in walk.orders(t) if len(o) == rank]
    order = known[0] if known else plain(rank)
    inputs = [_aligned(walk, t, order) for t in node.inputs]
    result = walk.make(output, order, Form.FLOAT)
    walk.file.operator(op, inputs, [result], 1, kind=kind)
    walk.keep(output, Form.FLOAT, order, result)


def _aligned(walk: TfliteWalk, tensor: str, order: Order) -> int:
    shape, rank = walk.graph.shapes[tensor], len(order)
    if len(shape) == rank:
        return walk.get(tensor, order, Form.FLOAT)
    if not walk.graph.is_constant(tensor):
        raise walk.refused("operands that are computed must have as many axes as the result")
    whole = (*[1] * (rank - len(shape)), *shape)
    value = walk.graph.constant(tensor)
    return walk.file.constant(f"{tensor} (aligned)", turned(value.reshape(whole), order), value.dtype.name)


def softmax(walk: TfliteWalk, node: Node) -> None:
    """Write Softmax; TFLite's goes along the last axis in memory."""
    output, rank = node.outputs[0], len(walk.graph.shapes[node.outputs[0]])
    axis = node.attr("axis", -1) % rank
    found = [o for o in walk.orders(node.inputs[0]) if o[-1] == axis]
    order = found[0] if found else (*(a for a in range(rank) if a != axis), axis)
    value = walk.get(node.inputs[0], order, Form.FLOAT)
    result = walk.make(output, order, Form.FLOAT)
    walk.file.operator("SOFTMAX", [value], [result], 1, kind="SoftmaxOptions", beta=1.0)
    walk.keep(output, Form.FLOAT, order, result)


def concat(walk: TfliteWalk, node: Node) -> None:
    """Write Concat."""
    output = node.outputs[0]
    order = next((o for t in node.inputs for o in walk.orders(t)), plain(len(walk.graph.shapes[output])))
    inputs = [walk.get(t, order, Form.FLOAT) for t in node.inputs]
    result = walk.make(output, order, Form.FLOAT)
    axis = order.index(node.attr("axis") % len(order))
    walk.file.operator("CONCATENATION", inputs, [result], 1, kind="ConcatenationOptions", axis=axis)
    walk.keep(output, Form.FLOAT, order, result)


def reduced(walk: TfliteWalk, node: Node) -> None:
    """Write a mean, a sum or an extreme over some axes."""
    source, output = node.inputs[0], node.outputs[0]
    rank, keep = len(walk.graph.shapes[source]), bool(node.attr("keepdims", 1))
    given = moves.numbers_of(walk, node, 1, "axes")
    axes = [a % rank for a in given] if given is not None else list(range(rank))
    if walk.free and 0 in axes:
        raise walk.refused("it reduces over the samples of a batch")
    order = next((o for o in walk.orders(source) if keep), plain(rank))
    value, number = (
        walk.get(source, order, Form.FLOAT),
        walk.numbers(f"{node.name}/axes", [order.index(a) for a in axes]),
    )
    made = order if keep else plain(len(walk.graph.shapes[output]))
    result = walk.make(output, made, Form.FLOAT)
    walk.file.operator(REDUCTIONS[node.op], [value, number], [result], 2, kind="ReducerOptions", keepDims=keep)
    walk.keep(output, Form.FLOAT, made, result)


def pool(walk: TfliteWalk, node: Node) -> None:
    """Write an average or a maximum over windows of a map."""
    source, output = node.inputs[0], node.outputs[0]
    before, after = walk.graph.shapes[source], walk.graph.shapes[output]
    if len(before) != 4 or len(node.outputs) > 1 or any(d != 1 for d in node.attr("dilations") or ()):
        raise walk.refused("legal are windows over two axes, without dilations and positions")
    window = window_of(node, node.attr("kernel_shape"), before[2:], after[2:])
    order = channels_last(4)
    value, result = walk.get(source, order, Form.FLOAT), walk.make(output, order, Form.FLOAT)
    padding = plain_padding(walk, window, before[2:])
    counted = node.op == "AveragePool" and bool(node.attr("count_include_pad", 0))
    size = {"filterHeight": window.kernel[0], "filterWidth": window.kernel[1]}
    if padding is None or (counted and any((*window.before, *window.behind))):
        value, padding = _padded(walk, window, value, node), walk.file.enum("Padding", "VALID")
    else:
        counted = True  # TFLite's own pads are not counted, and there is nothing to mend
    common = {"kind": "Pool2DOptions", **size, **window.options(padding)}
    if node.op == "MaxPool" or counted:
        walk.file.operator(POOLS[node.op], [value], [result], 2, **common)
    else:
        whole = walk.file.tensor(f"{output} (pads counted)", walk.file.shape(result), "float32", free=walk.free)
        walk.file.operator(POOLS[node.op], [value], [whole], 2, **common)
        share = walk.file.constant(f"{node.name}/share", _share(window, before[2:], after[2:]), "float32")
        walk.file.operator("MUL", [whole, share], [result], 1, kind="MulOptions")
    walk.keep(output, Form.FLOAT, order, result)


def _padded(walk: TfliteWalk, window: Window, value: int, node: Node) -> int:
    """Return a map with the pads of a window: of zeros, or of what is never the maximum."""
    batch, *size, channels = walk.file.shape(value)
    behind = [max(b, 0) for b in window.behind]
    shape = [batch, *(s + a + b for s, a, b in zip(size, window.before, behind, strict=True)), channels]
    result = walk.file.tensor(f"{node.name} (padded)", shape, "float32", free=walk.free)
    pads = [(0, 0), *zip(window.before, behind, strict=True), (0, 0)]
    numbers = walk.numbers(f"{node.name}/pads", np.asarray(pads, np.int32))
    if node.op == "MaxPool":
        least = np.asarray([np.finfo(np.float32).min], np.float32)
        lowest = walk.file.constant(f"{node.name}/lowest", least, "float32")
        walk.file.operator("PADV2", [value, numbers, lowest], [result], 2, kind="PadV2Options")
    else:
        walk.file.operator("PAD", [value, numbers], [result], 2, kind="PadOptions")
    return result


def _share(window: Window, size: Sequence[int], result: Sequence[int]) -> NDArray[np.float32]:
    """Return the elements of a window over its elements within the map, `[1, H, W, 1]`."""
    inside = []
    for n, count, k, step, before in zip(size, result, window.kernel, window.strides, window.before, strict=True):
        first = np.arange(count) * step - before
        inside.append(np.minimum(first + k, n) - np.maximum(first, 0))
    whole = np.float32(window.kernel[0] * window.kernel[1])
    return np.asarray(whole / np.outer(*inside).astype(np.float32), np.float32)[None, :, :, None]


def mean_of_map(walk: TfliteWalk, node: Node) -> None:
    """Write the average over all positions of a map as MEAN."""
    source, output = node.inputs[0], node.outputs[0]
    rank = len(walk.graph.shapes[source])
    order = channels_last(rank)
    value, result = walk.get(source, order, Form.FLOAT), walk.make(output, order, Form.FLOAT)
    axes = walk.numbers(f"{node.name}/axes", range(1, rank - 1))
    walk.file.operator("MEAN", [value, axes], [result], 2, kind="ReducerOptions", keepDims=True)
    walk.keep(output, Form.FLOAT, order, result)


def _in_float(write: Callable[[TfliteWalk, Node, Kernel, Form], None]) -> RealWriter:
    return lambda walk, node: write(walk, node, NO_KERNEL, Form.FLOAT)


WRITERS: Mapping[str, RealWriter] = {
    **dict.fromkeys(ELEMENTWISE, elementwise),
    **dict.fromkeys(VIEWS, _in_float(moves.reshape)),
    "Transpose": _in_float(moves.transpose),
    "Identity": _in_float(moves.same),
    "Softmax": softmax,
    "Concat": concat,
    **dict.fromkeys(REDUCTIONS, reduced),
    **dict.fromkeys(POOLS, pool),
    "GlobalAveragePool": mean_of_map,
}
