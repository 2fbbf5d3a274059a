"""Windows that slide over a map: TFLite's two ways to pad, and a Pad of its own in front where ONNX pads otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantpipe.graph.view import Node
from quantpipe.realize.tflite.walk import TfliteWalk
from quantpipe.types import Quantizer


@dataclass(frozen=True)
class Window:
    """Hold a window of two axes: sizes, strides, dilations, and the begin and end pads of the map."""

    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[int, int]
    behind: tuple[int, int]

    def options(self, padding: int) -> dict[str, int]:
        """Return the options of an operator with such a window."""
        return {"padding": padding, "strideH": self.strides[0], "strideW": self.strides[1]}


def window_of(node: Node, kernel: Sequence[int], size: Sequence[int], result: Sequence[int]) -> Window:
    """Return the window of a node; one over a single axis gets a first axis of size 1.

    `kernel` is the size of the window; `size` and `result` are the spatial shapes of input and result. Negative end
    pads are rows that the window does not reach.
    """
    strides, dilations = (list(node.attr(k) or [1] * len(kernel)) for k in ("strides", "dilations"))
    span = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    whole = [(n - 1) * s + e - i for n, s, e, i in zip(result, strides, span, size, strict=True)]
    auto, pads = node.attr("auto_pad", "NOTSET"), list(node.attr("pads") or [0] * 2 * len(kernel))
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        before = [max(w, 0) // 2 if auto == "SAME_UPPER" else -(-max(w, 0) // 2) for w in whole]
    else:
        before = [0] * len(kernel) if auto == "VALID" else pads[: len(kernel)]
    behind = [w - b for w, b in zip(whole, before, strict=True)]
    lead, none = [1] * (2 - len(kernel)), [0] * (2 - len(kernel))
    rows = ((lead, kernel), (lead, strides), (lead, dilations), (none, before), (none, behind))
    a, b, c, d, e = ((*x, *y) for x, y in rows)
    return Window(a, b, c, d, e)


def padded(
    walk: TfliteWalk, window: Window, value: int, q: Quantizer, *, fill: int, apart: bool = False
) -> tuple[int, int]:
    """Return a map with the pads of a window, and the `padding` that the operator after it does.

    `value` is the map, channels last; `fill` is the integer that pads it. The map is padded where the operator cannot
    pad, or where `apart` asks for it.
    """
    batch, *size, channels = walk.file.shape(value)
    behind = tuple(max(b, 0) for b in window.behind)
    if not any((*window.before, *behind)):
        return value, walk.file.enum("Padding", "VALID")
    if not apart and _same(window, size):
        return value, walk.file.enum("Padding", "SAME")
    shape = [batch, *(s + a + b for s, a, b in zip(size, window.before, behind, strict=True)), channels]
    name = walk.file.name(value)
    result = walk.temporary(f"{name} (padded)", shape, q.tensor)
    pads = [(0, 0), *zip(window.before, behind, strict=True), (0, 0)]
    numbers = walk.numbers(f"{name}/pads", np.asarray(pads, np.int32))
    if fill == q.zero_point:
        walk.file.operator("PAD", [value, numbers], [result], 2, kind="PadOptions")
    else:
        number = walk.file.constant(f"{name}/fill", np.asarray([fill], q.dtype.numpy), q.dtype, walk.grid(q.tensor))
        walk.file.operator("PADV2", [value, numbers, number], [result], 2, kind="PadV2Options")
    return result, walk.file.enum("Padding", "VALID")


def plain_padding(walk: TfliteWalk, window: Window, size: Sequence[int]) -> int | None:
    """Return the padding that an operator with a window does itself; None if it needs a Pad before it.

    `size` is the spatial shape of its input.
    """
    if not any((*window.before, *(max(b, 0) for b in window.behind))):
        return walk.file.enum("Padding", "VALID")
    return walk.file.enum("Padding", "SAME") if _same(window, size) else None


def _same(window: Window, size: Sequence[int]) -> bool:
    """Return whether these are TFLite's pads of SAME: results of size / stride, the odd pad at the end."""
    rows = zip(window.kernel, window.strides, window.dilations, size, window.before, window.behind, strict=True)
    for k, s, d, n, before, behind in rows:
        needed = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
        if (before, max(behind, 0)) != (needed // 2, needed - needed // 2):
            return False
    return True


def as_map(walk: TfliteWalk, value: int, like: str) -> int:
    """Return a tensor of one spatial axis as a map of one row, channels last; a map as it is."""
    shape = walk.file.shape(value)
    if len(shape) == 4:
        return value
    result = walk.temporary(f"{walk.file.name(value)} (map)", [shape[0], 1, *shape[1:]], like)
    walk.reshape(value, result, walk.file.shape(result))
    return result
