"""Torch functions of the ops that move a window over a map (convolutions, pools), and of Resize."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from quantpipe.graph.same_pads import SAME, leading_pads, same_total
from quantpipe.graph.view import Node
from quantpipe.train.float_op import Call

WINDOW = frozenset({"auto_pad", "kernel_shape", "strides", "dilations", "pads"})
CONV = {1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d}
CONV_TRANSPOSE = {1: functional.conv_transpose1d, 2: functional.conv_transpose2d, 3: functional.conv_transpose3d}
MAX_POOL = {1: functional.max_pool1d, 2: functional.max_pool2d, 3: functional.max_pool3d}
AVERAGE_POOL = {1: functional.avg_pool1d, 2: functional.avg_pool2d, 3: functional.avg_pool3d}


@dataclass(frozen=True)
class _Frame:
    """Hold the geometry of windows over the axes of a map."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    beyond: tuple[int, ...]
    """Elements after the padding that the last window covers (`ceil_mode`)."""


def _frame(call: Call, kernel: Sequence[int], sizes: Sequence[int]) -> _Frame:
    """Return the geometry of a node with windows of shape `kernel` on a map of `sizes` (ONNX's definition of Conv)."""
    axes = len(kernel)
    strides, dilations = call.attr("strides", [1] * axes), call.attr("dilations", [1] * axes)
    pads, mode = call.attr("pads", [0] * 2 * axes), call.attr("auto_pad", "NOTSET")
    found: list[tuple[int, int, int]] = []
    for axis, (size, stride) in enumerate(zip(sizes, strides, strict=True)):
        span = (kernel[axis] - 1) * dilations[axis] + 1
        if mode in SAME:
            total = same_total(size, stride, span)
            (first,) = leading_pads([total], mode)
            found.append((first, total - first, 0))
            continue
        first, last = (0, 0) if mode == "VALID" else (pads[axis], pads[axis + axes])
        rest, more = size + first + last - span, 0
        if call.attr("ceil_mode", 0) and rest % stride and (rest // stride + 1) * stride < size + first:
            more = stride - rest % stride
        found.append((first, last, more))
    return _Frame(tuple(kernel), tuple(strides), tuple(dilations), *zip(*found, strict=True))


def padded(x: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0) -> Tensor:
    """Return `x` with elements added to its last axes; negative counts remove elements."""
    if not any(before) and not any(after):
        return x
    pairs = [count for pair in zip(reversed(before), reversed(after), strict=True) for count in pair]
    return functional.pad(x, pairs, value=value)


def window_refuses(node: Node) -> str | None:
    """Return why a pool is not supported, if its input has the number of axes of its kernel."""
    return None if 1 <= len(node.attr("kernel_shape", [])) <= 3 else "its window has no axes, or more than three"


def average_refuses(node: Node) -> str | None:
    """Return why an average pool is not supported."""
    if any(step != 1 for step in node.attr("dilations", [])):
        return "its windows have gaps (dilations)"
    return window_refuses(node)


def conv(call: Call) -> Tensor:
    """Return a convolution of 1, 2 or 3 axes."""
    x, weight = call[0], call[1]
    frame = _frame(call, weight.shape[2:], x.shape[2:])
    padding: Sequence[int] = frame.before
    if frame.before != frame.after:
        x, padding = padded(x, frame.before, frame.after), [0] * len(frame.kernel)
    group = call.attr("group", 1)
    return CONV[len(frame.kernel)](x, weight, call.get(2), frame.strides, padding, frame.dilations, group)


def conv_transpose(call: Call) -> Tensor:
    """Return a transposed convolution of 1, 2 or 3 axes (ONNX's definition of ConvTranspose)."""
    x, weight, bias = call[0], call[1], call.get(2)
    axes = x.dim() - 2
    strides, dilations = call.attr("strides", [1] * axes), call.attr("dilations", [1] * axes)
    whole = CONV_TRANSPOSE[axes](x, weight, None, strides, 0, 0, call.attr("group", 1), dilations)
    more = call.attr("output_padding", [0] * axes)
    before, after = _removed(call, [size + m for size, m in zip(whole.shape[2:], more, strict=True)], x.shape[2:])
    result = padded(whole, [-b for b in before], [m - a for m, a in zip(more, after, strict=True)])
    return result if bias is None else result + bias.reshape(-1, *[1] * axes)


def _removed(call: Call, whole: Sequence[int], sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the elements to remove at both ends of a transposed convolution's axes, of sizes `whole` without pads."""
    axes, mode = len(sizes), call.attr("auto_pad", "NOTSET")
    wanted, same = call.attr("output_shape"), mode in SAME
    if wanted is None and same:
        wanted = [size * stride for size, stride in zip(sizes, call.attr("strides", [1] * axes), strict=True)]
    if wanted is None:
        pads = [0] * 2 * axes if mode == "VALID" else call.attr("pads", [0] * 2 * axes)
        return pads[:axes], pads[axes:]
    total = [size - want for size, want in zip(whole, wanted[-axes:], strict=True)]
    before = leading_pads(total, mode)
    return before, [t - b for t, b in zip(total, before, strict=True)]


def max_pool(call: Call) -> Tensor:
    """Return the maximum of each window, without the padding."""
    x, kernel = call[0], call.attr("kernel_shape")
    frame = _frame(call, kernel, x.shape[2:])
    after = [a + b for a, b in zip(frame.after, frame.beyond, strict=True)]
    wide = padded(x, frame.before, after, float("-inf"))
    return MAX_POOL[len(kernel)](wide, kernel, frame.strides, 0, frame.dilations)


def average_pool(call: Call) -> Tensor:
    """Return the mean of each window, over the elements that ONNX counts."""
    x, kernel = call[0], call.attr("kernel_shape")
    frame, pool = _frame(call, kernel, x.shape[2:]), AVERAGE_POOL[len(kernel)]
    if not any((*frame.before, *frame.after, *frame.beyond)):
        return pool(x, kernel, frame.strides)
    counted = padded(
        x.new_ones((1, 1, *x.shape[2:])), frame.before, frame.after, float(call.attr("count_include_pad", 0))
    )
    nothing = [0] * len(kernel)
    share = pool(padded(counted, nothing, frame.beyond), kernel, frame.strides)
    after = [a + b for a, b in zip(frame.after, frame.beyond, strict=True)]
    return pool(padded(x, frame.before, after), kernel, frame.strides) / share


# --- Resize -----------------------------------------------------------------------------------------------------------

Places = NDArray[np.float32]
HALF = np.float32(0.5)


def _half_pixel(places: Places, scale: np.float32, size: int, wanted: int) -> Places:
    return (places + HALF) / scale - HALF


def _symmetric(places: Places, scale: np.float32, size: int, wanted: int) -> Places:
    adjusted = np.float32(wanted) / (scale * np.float32(size))
    offset = np.float64(np.float32(size) / np.float32(2) * (np.float32(1) - adjusted))
    found = offset + (places.astype(np.float64) + 0.5) / np.float64(scale) - 0.5
    return found.astype(np.float32)  # float32 and float64 where onnxruntime has them


def _corners(places: Places, scale: np.float32, size: int, wanted: int) -> Places:
    return places * np.float32(size - 1) / np.float32(max(wanted - 1, 1))


COORDINATES: dict[str, Callable[[Places, np.float32, int, int], Places]] = {
    "half_pixel": _half_pixel,
    "half_pixel_symmetric": _symmetric,
    "pytorch_half_pixel": lambda p, scale, size, wanted: _half_pixel(p, scale, size, wanted) * np.float32(wanted > 1),
    "align_corners": _corners,
    "asymmetric": lambda p, scale, size, wanted: p / scale,
    "tf_half_pixel_for_nn": lambda p, scale, size, wanted: (p + HALF) / scale,
}
"""Mode -> function of (places in the result, scale, size before, size after): places in the operand, in float32."""

NEAREST: dict[str, Callable[[Places], Places]] = {
    "round_prefer_floor": lambda p: np.ceil(p - HALF),
    "round_prefer_ceil": lambda p: np.floor(p + HALF),
    "floor": np.floor,
    "ceil": np.ceil,
}


def resize_refuses(node: Node) -> str | None:
    """Return why a Resize is not supported."""
    allowed: dict[str, tuple[Any, set[Any]]] = {
        "mode": ("nearest", {"nearest", "linear"}),
        "coordinate_transformation_mode": ("half_pixel", set(COORDINATES)),
        "nearest_mode": ("round_prefer_floor", set(NEAREST)),
        "keep_aspect_ratio_policy": ("stretch", {"stretch"}),
        "antialias": (0, {0}),
        "exclude_outside": (0, {0}),
    }
    found = [(name, node.attr(name, default)) for name, (default, _) in allowed.items()]
    return next((f"its {n} is {v}" for n, v in found if v not in allowed[n][1]), None)


def resize(call: Call) -> Tensor:
    """Return a map of another size, by the nearest element or linearly along each axis."""
    x = call[0]
    axes = [a % x.dim() for a in call.attr("axes", range(x.dim()))]
    sizes, scales = call.integers(3), call.numbers(2)
    for number, axis in enumerate(axes):
        size = x.shape[axis]
        if sizes:
            wanted = sizes[number]
            scale = np.float32(wanted) / np.float32(size)
        else:
            scale = np.float32((scales or ())[number])
            wanted = floor(np.float32(size) * scale)
        if scale != 1 or wanted != size:
            x = _resized(call, x, axis, _places(call, scale, size, wanted))
    return x


def _places(call: Call, scale: np.float32, size: int, wanted: int) -> Places:
    coordinates = COORDINATES[call.attr("coordinate_transformation_mode", "half_pixel")]
    return coordinates(np.arange(wanted, dtype=np.float32), scale, size, wanted)


def _resized(call: Call, x: Tensor, axis: int, places: Places) -> Tensor:
    """Return `x` read along one axis at real places."""
    last = x.shape[axis] - 1
    if call.attr("mode", "nearest") == "nearest":
        nearest = NEAREST[call.attr("nearest_mode", "round_prefer_floor")](places)
        return _taken(x, axis, nearest.clip(0, last))
    places = places.clip(0, last)
    low = np.floor(places)
    share = torch.tensor(places - low, dtype=x.dtype, device=x.device).reshape(-1, *[1] * (x.dim() - axis - 1))
    return torch.lerp(_taken(x, axis, low), _taken(x, axis, (low + 1).clip(0, last)), share)


def _taken(x: Tensor, axis: int, places: Places) -> Tensor:
    return x.index_select(axis, torch.tensor(places.astype(np.int64), device=x.device))
