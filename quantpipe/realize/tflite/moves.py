"""Kernels that move or select values and keep the scale: shapes, slices, pads, pools of maxima, resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from quantpipe.graph.view import Node
from quantpipe.intake.tflite.layout import behind_transpose, channels_last, laid, place, plain, same_memory
from quantpipe.intake.tflite.operators import BLOCKS, POOLS, REDUCTIONS
from quantpipe.oprules.scores import VIEWS
from quantpipe.realize.tflite.elements import aligned
from quantpipe.realize.tflite.walk import TfliteWalk, Writer
from quantpipe.realize.tflite.windows import as_map, padded, window_of
from quantpipe.types import DType, Form, Kernel


def numbers_of(walk: TfliteWalk, node: Node, port: int, attribute: str | None = None) -> list[int] | None:
    """Return the integers in an operand or an attribute of a node; None if it has neither.

    Raises HardwareError where they are computed at run time.
    """
    if attribute is not None and attribute in node.attributes:
        value = node.attr(attribute)
        return [int(v) for v in value] if isinstance(value, list) else [int(value)]
    if port >= len(node.inputs) or not node.inputs[port]:
        return None
    if not walk.graph.is_constant(node.inputs[port]):
        raise walk.refused(f"{node.inputs[port]!r} is computed at run time; legal are constants")
    return [int(v) for v in np.atleast_1d(walk.graph.constant(node.inputs[port])).reshape(-1)]


def reshape(walk: TfliteWalk, node: Node, kernel: Kernel, form: Form = Form.QUANTIZED) -> None:
    """Write whatever gives the same elements, in the same order, another shape."""
    source, output = node.inputs[0], node.outputs[0]
    before, after = walk.graph.shapes[source], walk.graph.shapes[output]
    fitting = [o for o in walk.orders(source) if same_memory(before, o, plain(len(before)))]
    order = fitting[0] if fitting else plain(len(before))
    value = walk.get(source, order, form)
    if walk.free and (not after or before[:1] != after[:1]):
        walk.single = True
    target = plain(len(after))
    result = walk.make(output, target, form)
    walk.reshape(value, result, after)
    walk.keep(output, form, target, result)


def transpose(walk: TfliteWalk, node: Node, kernel: Kernel, form: Form = Form.QUANTIZED) -> None:
    """Give the same memory another order: nothing is written."""
    found = walk.any(node.inputs[0], form)
    permutation = node.attr("perm") or list(range(len(found.order)))[::-1]
    walk.keep(node.outputs[0], form, behind_transpose(found.order, permutation), found.tensor)


def same(walk: TfliteWalk, node: Node, kernel: Kernel, form: Form = Form.QUANTIZED) -> None:
    """Give the same tensor another name."""
    found = walk.any(node.inputs[0], form)
    walk.keep(node.outputs[0], form, found.order, found.tensor)


def concat(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Concat."""
    order = walk.common_order(kernel, kernel.output)
    inputs = [walk.operand(o, order) for o in kernel.operands]
    result = walk.make(kernel.output, order)
    axis = place(node.attr("axis"), order)
    walk.file.operator("CONCATENATION", inputs, [result], 2, kind="ConcatenationOptions", axis=axis)
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def cut(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Slice as STRIDED_SLICE."""
    shape = walk.graph.shapes[node.inputs[0]]
    starts, ends = numbers_of(walk, node, 1), numbers_of(walk, node, 2)
    axes, steps = numbers_of(walk, node, 3), numbers_of(walk, node, 4)
    if starts is None or ends is None:
        raise walk.refused("its starts and ends are not known")
    order = walk.common_order(kernel, kernel.output)
    begin, end, stride = [0] * len(shape), list(shape), [1] * len(shape)
    last = 0
    for number, (start, stop) in enumerate(zip(starts, ends, strict=True)):
        axis = (axes[number] if axes is not None else number) % len(shape)
        step = steps[number] if steps is not None else 1
        first, beyond, step = slice(start, stop, step).indices(shape[axis])
        at = place(axis, order)
        begin[at], end[at], stride[at] = first, max(beyond, 0), step
        last |= (1 << at) if beyond < 0 else 0
        if axis == 0 and walk.free and len(range(first, beyond, step)) != shape[0]:
            raise walk.refused("it takes samples out of a batch")
    untouched = [at for at, axis in enumerate(order) if axes is not None and axis not in {a % len(shape) for a in axes}]
    for at in untouched:
        end[at] = laid(shape, order)[at]
    mask = last | sum(1 << at for at in untouched)
    numbers = [walk.numbers(f"{node.name}/{n}", v) for n, v in (("begin", begin), ("end", end), ("strides", stride))]
    value, result = walk.operand(kernel.operands[0], order), walk.make(kernel.output, order)
    options = {"beginMask": sum(1 << at for at in untouched), "endMask": mask}
    walk.file.operator("STRIDED_SLICE", [value, *numbers], [result], 2, kind="StridedSliceOptions", **options)
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def gather(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Gather by constant indices."""
    indices = numbers_of(walk, node, 1)
    shape, axis = walk.graph.shapes[node.inputs[0]], node.attr("axis", 0)
    if indices is None or (axis % len(shape) == 0 and walk.free):
        raise walk.refused("it takes samples out of a batch, or its indices are not known")
    size = shape[axis]
    wanted = np.asarray([i % size for i in indices], np.int32).reshape(walk.graph.shapes[node.inputs[1]])
    order = plain(len(walk.graph.shapes[kernel.output]))
    value, result = walk.operand(kernel.operands[0]), walk.make(kernel.output, order)
    index = walk.file.constant(f"{node.name}/indices", wanted, "int32")
    walk.file.operator("GATHER", [value, index], [result], 2, kind="GatherOptions", axis=axis % len(shape))
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def pad(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Pad with the real zero, or by reflection."""
    mode = node.attr("mode", "constant")
    pads = numbers_of(walk, node, 1, "pads")
    rank = len(walk.graph.shapes[kernel.output])
    if mode not in ("constant", "reflect") or pads is None or min(pads) < 0:
        raise walk.refused("legal are pads of constants and by reflection, none of them negative")
    axes = numbers_of(walk, node, 3) or list(range(rank))
    rows = np.zeros((rank, 2), np.int32)
    order = walk.common_order(kernel, kernel.output)
    for number, axis in enumerate(axes):
        rows[place(axis, order)] = pads[number], pads[number + len(axes)]
    value, result = walk.operand(kernel.operands[0], order), walk.make(kernel.output, order)
    number = walk.numbers(f"{node.name}/pads", rows)
    if mode == "reflect":
        walk.file.operator("MIRROR_PAD", [value, number], [result], 2, kind="MirrorPadOptions", mode=0)
    else:
        walk.file.operator("PAD", [value, number], [result], 2, kind="PadOptions")
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def max_pool(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write MaxPool; pads that TFLite does not make are written before it, with the smallest integer."""
    source, shapes = kernel.operands[0].tensor, walk.graph.shapes
    rank = len(shapes[source])
    if rank > 4 or any(d != 1 for d in node.attr("dilations") or ()) or len(node.outputs) > 1:
        raise walk.refused("legal are pools over one or two axes, without dilations and indices")
    order, q = channels_last(rank), walk.plan.quantizers[source]
    value = as_map(walk, walk.operand(kernel.operands[0], order), source)
    window = window_of(node, node.attr("kernel_shape"), shapes[source][2:], shapes[node.outputs[0]][2:])
    value, padding = padded(walk, window, value, q, fill=q.dtype.qmin)
    result = walk.make(kernel.output, order)
    shape = walk.file.shape(result)
    as_rows = len(shape) == 3
    target = walk.temporary(f"{kernel.output} (map)", [shape[0], 1, *shape[1:]], kernel.output) if as_rows else result
    size = {"filterHeight": window.kernel[0], "filterWidth": window.kernel[1]}
    walk.file.operator(POOLS["MaxPool"], [value], [target], 2, kind="Pool2DOptions", **size, **window.options(padding))
    if as_rows:
        walk.reshape(target, result, shape)
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


EXTREMES_OF: Mapping[str, str] = {op: REDUCTIONS[op] for op in ("ReduceMax", "ReduceMin")} | {
    "GlobalMaxPool": REDUCTIONS["ReduceMax"]
}


def reduced(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write the largest or smallest element along some axes."""
    source = kernel.operands[0].tensor
    rank = len(walk.graph.shapes[source])
    axes = numbers_of(walk, node, 1, "axes")
    if axes is None:
        axes = list(range(2 if node.op == "GlobalMaxPool" else 0, rank))
    keep = bool(node.attr("keepdims", 1))
    order = walk.common_order(kernel, source) if keep else plain(rank)
    if walk.free and 0 in {a % rank for a in axes}:
        raise walk.refused("it reduces over the samples of a batch")
    value = walk.operand(kernel.operands[0], order)
    target = order if keep else plain(len(walk.graph.shapes[kernel.output]))
    result = walk.make(kernel.output, target)
    number = walk.numbers(f"{node.name}/axes", [place(a, order) for a in axes])
    walk.file.operator(EXTREMES_OF[node.op], [value, number], [result], 2, kind="ReducerOptions", keepDims=keep)
    walk.keep(kernel.output, Form.QUANTIZED, target, result)


def top(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write the largest elements along the last axis in memory, by falling size."""
    source, count = kernel.operands[0].tensor, numbers_of(walk, node, 1, "k")
    rank = len(walk.graph.shapes[source])
    axis = int(node.attr("axis", -1)) % rank
    if count is None or not node.attr("largest", 1):
        raise walk.refused("legal is the largest of a fixed number")
    if walk.free and axis == 0:
        raise walk.refused("it orders the samples of a batch")
    order = next((o for o in walk.orders(source) if o[-1] == axis), (*(a for a in range(rank) if a != axis), axis))
    value, result = walk.operand(kernel.operands[0], order), walk.make(kernel.output, order)
    places = walk.file.tensor(
        f"{kernel.output} (positions)", walk.file.shape(result), DType.INT32, free=walk.is_free(kernel.output, order)
    )
    number = walk.numbers(f"{node.name}/count", np.asarray(count[0], np.int32))
    walk.file.operator("TOPK_V2", [value, number], [result, places], 2, kind="TopKV2Options")
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def resize(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write a nearest Resize, by whichever of TFLite's coordinates takes the same elements."""
    before, after = walk.graph.shapes[node.inputs[0]], walk.graph.shapes[node.outputs[0]]
    if len(before) != 4 or before[:2] != after[:2]:
        raise walk.refused("legal is resizing of two spatial axes")
    options = next((o for o in _SAMPLINGS if all(_same_rows(node, o, a, b) for a, b in _sides(before, after))), None)
    if options is None:
        raise walk.refused("TFLite has no rounding for its coordinates")
    order = channels_last(4)
    value, result = walk.operand(kernel.operands[0], order), walk.make(kernel.output, order)
    size = walk.numbers(f"{node.name}/size", after[2:])
    corners, centres = options
    walk.file.operator(
        "RESIZE_NEAREST_NEIGHBOR",
        [value, size],
        [result],
        3,
        kind="ResizeNearestNeighborOptions",
        alignCorners=corners,
        halfPixelCenters=centres,
    )
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


_SAMPLINGS = ((False, False), (False, True), (True, False))


def _sides(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(before[2:], after[2:], strict=True))


def _same_rows(node: Node, options: tuple[bool, bool], size: int, result: int) -> bool:
    """Return whether ONNX and TFLite take the same elements along one axis."""
    at, factor = np.arange(result, dtype=np.float64), result / size
    mode = node.attr("coordinate_transformation_mode", "half_pixel")
    places = {
        "half_pixel": (at + 0.5) / factor - 0.5,
        "pytorch_half_pixel": (at + 0.5) / factor - 0.5 if result > 1 else at * 0,
        "asymmetric": at / factor,
        "align_corners": at * (size - 1) / (result - 1) if result > 1 else at * 0,
    }
    if mode not in places:
        return False
    x = places[mode]
    rounded = {
        "round_prefer_floor": np.ceil(x - 0.5),
        "round_prefer_ceil": np.floor(x + 0.5),
        "floor": np.floor(x),
        "ceil": np.ceil(x),
    }[node.attr("nearest_mode", "round_prefer_floor")]
    corners, centres = options
    step = np.float32((size - 1) / (result - 1)) if corners and result > 1 else np.float32(size / result)
    own = (at.astype(np.float32) + np.float32(0.5 if centres else 0)) * step
    taken = np.floor(own.astype(np.float64) + 0.5) if corners else np.floor(own)
    return np.array_equal(np.clip(rounded, 0, size - 1), np.clip(taken, 0, size - 1))


def blocks(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write DepthToSpace and SpaceToDepth, whose blocks come first in the channels."""
    if node.attr("mode", "DCR") != "DCR":
        raise walk.refused("legal is the mode DCR")
    order, (op, kind) = channels_last(4), BLOCKS[node.op]
    value, result = walk.operand(kernel.operands[0], order), walk.make(kernel.output, order)
    walk.file.operator(op, [value], [result], 2, kind=kind, blockSize=node.attr("blocksize"))
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


def repeated(walk: TfliteWalk, node: Node, kernel: Kernel) -> None:
    """Write Expand and Tile as TILE."""
    order = walk.common_order(kernel, kernel.output)
    value, result = aligned(walk, kernel.operands[0], order), walk.make(kernel.output, order)
    times = [b // a for a, b in zip(walk.file.shape(value), walk.file.shape(result), strict=True)]
    walk.file.operator("TILE", [value, walk.numbers(f"{node.name}/times", times)], [result], 1, kind="TileOptions")
    walk.keep(kernel.output, Form.QUANTIZED, order, result)


WRITERS: Mapping[str, Writer] = {
    **dict.fromkeys(VIEWS, reshape),
    **dict.fromkeys(EXTREMES_OF, reduced),
    "TopK": top,
    **dict.fromkeys(BLOCKS, blocks),
    **dict.fromkeys(("Expand", "Tile"), repeated),
    "Transpose": transpose,
    "Identity": same,
    "Concat": concat,
    "Slice": cut,
    "Gather": gather,
    "Pad": pad,
    "MaxPool": max_pool,
    "Resize": resize,
}
