"""Read TFLite's operators that move or select values: shapes, slices, parts, pads, resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import TensorProto

from quantpipe.intake.tflite.contents import NO_TENSOR, FileOperator, FileTensor, names_of
from quantpipe.intake.tflite.intake import Reader, TfliteIntake, UnreadOperator
from quantpipe.intake.tflite.layout import behind_transpose, channels_first, place, plain, same_memory, without_axes
from quantpipe.intake.tflite.operators import BLOCKS
from quantpipe.intake.tflite.read_products import MAP_AXES, axis_of

LARGEST = 2**63 - 1


def reshape(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read RESHAPE; a shape of one sample is one of any number of samples where the file's are free."""
    source, target = operator.inputs[0], operator.outputs[0]
    before = intake.tensor(source)
    given = operator.inputs[1] if len(operator.inputs) > 1 else NO_TENSOR
    fitting = [o for o in intake.orders(source) if same_memory(before.shape, o, plain(len(before.shape)))]
    value = intake.value(source, fitting[0] if fitting else None)
    if given != NO_TENSOR and intake.tensor(given).data is None and intake.rank(given):
        shape = intake.value(given)
        if intake.tensor(given).kind != "INT64":
            shape = intake.node("Cast", [shape], name=f"{intake.name_of(operator)}/shape", to=TensorProto.INT64)
    else:
        numbers = intake.numbers(given) if given != NO_TENSOR else list(operator.option("newShape", []))
        if 0 in before.free and numbers[:1] == [1] and -1 not in numbers:
            numbers[0] = -1
        shape = intake.constant(f"{intake.name_of(operator)}/shape", np.asarray(numbers, np.int64))
    intake.make(operator, plain(intake.rank(target)), "Reshape", [value, shape])


def squeeze(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read SQUEEZE; no axes named are all of one element."""
    source, shape = operator.inputs[0], intake.tensor(operator.inputs[0]).shape
    axes = [axis_of(a, len(shape)) for a in operator.option("squeezeDims", [])]
    axes = axes or [a for a, size in enumerate(shape) if size == 1]
    order = intake.common_order([source], len(shape))
    places = intake.constant(f"{intake.name_of(operator)}/axes", np.asarray([place(a, order) for a in axes], np.int64))
    intake.make(operator, without_axes(order, axes), "Squeeze", [intake.value(source, order), places])


def expand(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read EXPAND_DIMS."""
    source, rank = operator.inputs[0], intake.rank(operator.outputs[0])
    axis = axis_of(intake.numbers(operator.inputs[1])[0], rank)
    axes = intake.constant(f"{intake.name_of(operator)}/axes", np.asarray([axis], np.int64))
    intake.make(operator, plain(rank), "Unsqueeze", [intake.value(source), axes])


def transpose(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read TRANSPOSE: the same memory has another order, and nothing is written."""
    source, target = operator.inputs[0], operator.outputs[0]
    permutation = intake.numbers(operator.inputs[1])
    rank = intake.rank(source)
    if sorted(permutation) != list(range(rank)):
        raise UnreadOperator(f"its order of axes is {permutation}, and its tensor has {rank}")
    order = intake.common_order([source], rank)
    intake.same(target, behind_transpose(order, permutation), source, order)


def shape_of(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read SHAPE."""
    data, name = operator.inputs[0], intake.name_of(operator)
    order = intake.common_order([data], intake.rank(data))
    made = intake.node("Shape", [intake.value(data, order)], name=f"{name}/sizes")
    if order != plain(len(order)):
        places = intake.constant(f"{name}/axes", np.asarray([place(a, order) for a in range(len(order))], np.int64))
        made = intake.node("Gather", [made, places], name=f"{name}/int64")
    wide = intake.tensor(operator.outputs[0]).kind == "INT64"
    intake.make(operator, plain(1), "Cast", [made], to=TensorProto.INT64 if wide else TensorProto.INT32)


def concat(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read CONCATENATION."""
    rank = intake.rank(operator.outputs[0])
    order = intake.common_order(operator.inputs, rank)
    inputs = [intake.value(number, order) for number in operator.inputs]
    intake.make(operator, order, "Concat", inputs, axis=place(axis_of(operator.option("axis", 0), rank), order))


def pack(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read PACK: its operands become slices of a new axis."""
    rank, name = intake.rank(operator.outputs[0]), intake.name_of(operator)
    axis = axis_of(operator.option("axis", 0), rank)
    axes = intake.constant(f"{name}/axes", np.asarray([axis], np.int64))
    parts = [
        intake.node("Unsqueeze", [intake.value(n), axes], name=f"{name}/part{k}") for k, n in enumerate(operator.inputs)
    ]
    intake.make(operator, plain(rank), "Concat", parts, axis=axis)


def unpack(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read UNPACK: the slices of an axis."""
    rank = intake.rank(operator.inputs[0])
    axis = axis_of(operator.option("axis", 0), rank)
    for number, target in enumerate(operator.outputs):
        index = intake.constant(f"{intake.tensor(target).name}/index", np.asarray(number, np.int64))
        inputs = [intake.value(operator.inputs[0]), index]
        intake.make(operator, plain(rank - 1), "Gather", inputs, output=number, axis=axis)


def split(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read SPLIT and SPLIT_V; each part is a slice, and has a node of its own."""
    data, along = operator.inputs[:2] if operator.op == "SPLIT_V" else operator.inputs[1::-1]
    along = operator.inputs[2] if operator.op == "SPLIT_V" else along
    shape = intake.tensor(data).shape
    axis = axis_of(intake.numbers(along)[0], len(shape))
    if axis in intake.tensor(data).free:
        raise UnreadOperator("it splits an axis of any size")
    count = len(operator.outputs)
    sizes = [shape[axis] // count] * count if operator.op == "SPLIT" else intake.numbers(operator.inputs[1])
    if -1 in sizes:
        sizes[sizes.index(-1)] = shape[axis] - sum(s for s in sizes if s >= 0)
    if sum(sizes) != shape[axis] or len(sizes) != count:
        raise UnreadOperator(f"its parts are {sizes} of {shape[axis]} elements")
    order, begin = intake.common_order([data], len(shape)), 0
    for number, size in enumerate(sizes):
        _sliced(intake, operator, data, order, cuts=[(axis, begin, begin + size, 1)], output=number)
        begin += size


Cut = tuple[int, int, int, int]
"""An axis of the file's tensor, the first element, the end, and the step."""


def _sliced(
    intake: TfliteIntake,
    operator: FileOperator,
    data: int,
    order: tuple[int, ...],
    *,
    cuts: Sequence[Cut],
    output: int = 0,
) -> None:
    """Write a Slice, and keep it as an output of the operator."""
    name = intake.tensor(operator.outputs[output]).name.split(";")[0]
    columns = [[begin for _, begin, _, _ in cuts], [end for _, _, end, _ in cuts],
               [place(axis, order) for axis, *_ in cuts], [step for *_, step in cuts]]  # fmt: skip
    parts = ("starts", "ends", "axes", "steps")
    numbers = [intake.constant(f"{name}/{p}", np.asarray(c, np.int64)) for p, c in zip(parts, columns, strict=True)]
    intake.make(operator, order, "Slice", [intake.value(data, order), *numbers], output=output)


def cut(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read SLICE."""
    data, rank = operator.inputs[0], intake.rank(operator.inputs[0])
    begins, sizes = (intake.numbers(n) for n in operator.inputs[1:3])
    if len(begins) != rank or len(sizes) != rank:
        raise UnreadOperator(f"it begins at {begins} and takes {sizes} of {rank} axes")
    cuts = [
        (axis, begin, LARGEST if size == -1 else begin + size, 1)
        for axis, (begin, size) in enumerate(zip(begins, sizes, strict=True))
        if (begin, size) != (0, -1) and not (begin == 0 and _whole(intake.tensor(data), axis, size))
    ]
    _sliced(intake, operator, data, intake.common_order([data], rank), cuts=cuts)


def _whole(tensor: FileTensor, axis: int, size: int) -> bool:
    return tensor.shape[axis] == size and axis not in tensor.free


def strided(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read STRIDED_SLICE; axes of a shrink mask are taken out."""
    data = operator.inputs[0]
    begins, ends, steps = (intake.numbers(n) for n in operator.inputs[1:4])
    masks = {name: operator.option(name, 0) for name in ("beginMask", "endMask", "shrinkAxisMask")}
    if any(operator.option(name, 0) for name in ("ellipsisMask", "newAxisMask", "offset")):
        raise UnreadOperator("it has an ellipsis, a new axis or an offset; legal are begins, ends and strides")
    if not len(begins) == len(ends) == len(steps) <= intake.rank(data) or 0 in steps:
        raise UnreadOperator(f"it begins at {begins}, ends at {ends} and steps by {steps}")
    cuts, shrunk = [], []
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True)):
        if masks["shrinkAxisMask"] >> axis & 1:
            begin = 0 if masks["beginMask"] >> axis & 1 else begin
            shrunk.append(axis)
            cuts.append((axis, begin, begin + 1 if begin != -1 else LARGEST, 1))
            continue
        first = (0 if step > 0 else LARGEST) if masks["beginMask"] >> axis & 1 else begin
        last = (LARGEST if step > 0 else -LARGEST) if masks["endMask"] >> axis & 1 else end
        if (first, step) != (0, 1) or (last != LARGEST and not _whole(intake.tensor(data), axis, last)):
            cuts.append((axis, first, last, step))
    order = intake.common_order([data], intake.rank(data))
    if not shrunk:
        _sliced(intake, operator, data, order, cuts=cuts)
        return
    name = intake.name_of(operator)
    columns = list(zip(*[(b, e, place(a, order), s) for a, b, e, s in cuts], strict=True))
    parts = ("starts", "ends", "axes", "steps")
    numbers = [intake.constant(f"{name}/{p}", np.asarray(c, np.int64)) for p, c in zip(parts, columns, strict=True)]
    taken = intake.node("Slice", [intake.value(data, order), *numbers], name=f"{name}/taken")
    axes = intake.constant(f"{name}/shrunk", np.asarray([place(a, order) for a in shrunk], np.int64))
    intake.make(operator, without_axes(order, shrunk), "Squeeze", [taken, axes])


def reverse(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read REVERSE_V2."""
    data, rank = operator.inputs[0], intake.rank(operator.inputs[0])
    axes = [axis_of(a, rank) for a in intake.numbers(operator.inputs[1])]
    order = intake.common_order([data], rank)
    _sliced(intake, operator, data, order, cuts=[(axis, LARGEST, -LARGEST, -1) for axis in axes])


def gather(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read GATHER, and EMBEDDING_LOOKUP with the indices in front."""
    data, indices = operator.inputs[:2] if operator.op == "GATHER" else operator.inputs[1::-1]
    if operator.option("batchDims", 0):
        raise UnreadOperator("it gathers within a batch (batch_dims); legal are indices for all samples")
    if intake.tensor(indices).kind not in ("INT32", "INT64"):
        raise UnreadOperator(f"its indices are {intake.tensor(indices).kind}; legal are INT32 and INT64")
    axis = axis_of(operator.option("axis", 0), intake.rank(data)) if operator.op == "GATHER" else 0
    inputs = [intake.value(data), intake.value(indices)]
    intake.make(operator, plain(intake.rank(operator.outputs[0])), "Gather", inputs, axis=axis)


def pad(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read PAD, PADV2 and MIRROR_PAD."""
    data, rank = operator.inputs[0], intake.rank(operator.inputs[0])
    numbers = intake.numbers(operator.inputs[1])
    if len(numbers) != 2 * rank or min(numbers, default=0) < 0:
        raise UnreadOperator(f"its pads are {numbers} for {rank} axes; legal are two numbers from 0 on for each")
    attributes: dict[str, Any] = {}
    if operator.op == "MIRROR_PAD":
        if names_of("MirrorPadMode").get(operator.option("mode", 0)) != "REFLECT":
            raise UnreadOperator("it repeats the ends of an axis (SYMMETRIC); legal is REFLECT")
        attributes["mode"] = "reflect"
    order, rows = intake.common_order([data], rank), np.asarray(numbers, np.int64).reshape(rank, 2)
    pads = np.concatenate([rows[list(order), 0], rows[list(order), 1]]) if rank else rows.reshape(-1)
    inputs = [intake.value(data, order), intake.constant(f"{intake.name_of(operator)}/pads", pads)]
    if operator.op == "PADV2":
        filled = intake.scalar(operator.inputs[2])
        if filled is None:
            raise UnreadOperator("what fills its pads is computed at run time; legal is a constant")
        given = intake.tensor(operator.inputs[2])
        content = given.data.reshape(()) if given.data is not None and not given.quantized else np.asarray(filled)
        inputs.append(intake.constant(f"{intake.name_of(operator)}/filled", content))
    intake.make(operator, order, "Pad", inputs, **attributes)


def repeat(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read TILE and BROADCAST_TO."""
    data, rank = operator.inputs[0], intake.rank(operator.inputs[0])
    numbers = intake.numbers(operator.inputs[1])
    if operator.op == "BROADCAST_TO":
        shape = intake.constant(f"{intake.name_of(operator)}/shape", np.asarray(numbers, np.int64))
        intake.make(operator, plain(len(numbers)), "Expand", [intake.value(data), shape])
        return
    order = intake.common_order([data], rank)
    times = intake.constant(f"{intake.name_of(operator)}/times", np.asarray([numbers[a] for a in order], np.int64))
    intake.make(operator, order, "Tile", [intake.value(data, order), times])


def resize(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""
    data, order = operator.inputs[0], channels_first(MAP_AXES)
    shape, size = intake.tensor(data).shape, intake.numbers(operator.inputs[1])
    if len(shape) != MAP_AXES or len(size) != 2 or min(size) < 1:
        raise UnreadOperator(f"it gives {list(shape)} the size {size}; legal are maps and two sizes")
    corners, centres = (bool(operator.option(n, default=False)) for n in ("alignCorners", "halfPixelCenters"))
    if corners and centres:
        raise UnreadOperator("it aligns corners and has half-pixel centres; legal is one of the two")
    places = "align_corners" if corners else "half_pixel" if centres else "asymmetric"
    attributes: dict[str, Any] = {"mode": "linear", "coordinate_transformation_mode": places}
    if operator.op == "RESIZE_NEAREST_NEIGHBOR":
        rounding = "round_prefer_ceil" if corners or centres else "floor"
        attributes |= {"mode": "nearest", "nearest_mode": rounding}
    value, name = intake.value(data, order), intake.name_of(operator)
    if 0 in intake.tensor(data).free:
        front = intake.node("Shape", [value], name=f"{name}/front", start=0, end=2)
        spatial = intake.constant(f"{name}/spatial", np.asarray(size, np.int64))
        sizes = intake.node("Concat", [front, spatial], name=f"{name}/sizes", axis=0)
    else:
        sizes = intake.constant(f"{name}/sizes", np.asarray([shape[0], shape[3], *size], np.int64))
    intake.make(operator, order, "Resize", [value, "", "", sizes], **attributes)


def blocks(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read DEPTH_TO_SPACE and SPACE_TO_DEPTH."""
    order = channels_first(MAP_AXES)
    if intake.rank(operator.inputs[0]) != MAP_AXES or operator.option("blockSize", 0) < 1:
        raise UnreadOperator(
            f"it has blocks of {operator.option('blockSize', 0)}; legal are maps, and blocks from 1 on"
        )
    value = intake.value(operator.inputs[0], order)
    intake.make(operator, order, _BLOCKS[operator.op], [value], blocksize=operator.option("blockSize", 0))


def top(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read TOPK_V2: the largest elements of the last axis, and their positions."""
    data, count = operator.inputs[0], intake.numbers(operator.inputs[1])
    order, name = intake.common_order([data], intake.rank(data)), intake.name_of(operator)
    number = intake.constant(f"{name}/count", np.asarray(count, np.int64).reshape(1))
    axis = place(intake.rank(data) - 1, order)
    values, places = intake.nodes_of(
        "TopK", [intake.value(data, order), number], [name, f"{name}/int64_positions"], axis=axis
    )
    intake.keep(operator.outputs[0], order, values)
    kind = TensorProto.INT64 if intake.tensor(operator.outputs[1]).kind == "INT64" else TensorProto.INT32
    intake.keep(operator.outputs[1], order, intake.node("Cast", [places], name=f"{name}/positions", to=kind))


def place_of_extreme(intake: TfliteIntake, operator: FileOperator) -> None:
    """Read ARG_MAX and ARG_MIN."""
    data, rank = operator.inputs[0], intake.rank(operator.inputs[0])
    axis = axis_of(intake.numbers(operator.inputs[1])[0], rank)
    order, name = intake.common_order([data], rank), intake.name_of(operator)
    op = "ArgMax" if operator.op == "ARG_MAX" else "ArgMin"
    made = intake.node(op, [intake.value(data, order)], name=f"{name}/int64", axis=place(axis, order), keepdims=0)
    kind = TensorProto.INT64 if intake.tensor(operator.outputs[0]).kind == "INT64" else TensorProto.INT32
    intake.make(operator, without_axes(order, [axis]), "Cast", [made], to=kind)


_BLOCKS = {own: op for op, (own, _) in BLOCKS.items()}

READERS: Mapping[str, Reader] = {
    "RESHAPE": reshape,
    "SQUEEZE": squeeze,
    "EXPAND_DIMS": expand,
    "TRANSPOSE": transpose,
    "SHAPE": shape_of,
    "CONCATENATION": concat,
    "PACK": pack,
    "UNPACK": unpack,
    **dict.fromkeys(("SPLIT", "SPLIT_V"), split),
    "SLICE": cut,
    "STRIDED_SLICE": strided,
    "REVERSE_V2": reverse,
    **dict.fromkeys(("GATHER", "EMBEDDING_LOOKUP"), gather),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), pad),
    **dict.fromkeys(("TILE", "BROADCAST_TO"), repeat),
    **dict.fromkeys(("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"), resize),
    **dict.fromkeys(_BLOCKS, blocks),
    "TOPK_V2": top,
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), place_of_extreme),
}
"""Operator -> what reads it."""
