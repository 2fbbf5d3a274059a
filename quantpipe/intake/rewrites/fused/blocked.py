"""Ops on data whose channels are in blocks, as onnxruntime saves a model that it optimized for one processor.

The domain is `com.microsoft.nchwc`. A tensor `[N, C, H, W]` is stored with 8 or 16 channels next to each other. The ops
compute the same as ONNX's, so they are written on plain data, with weights put back into ONNX's order.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe.graph.execute import Session
from quantpipe.intake.rewrites.fused.body import CLIP_OPSET, FusedBody, light
from quantpipe.intake.rewrites.fused.dense import CONV, POOL, added_and_activated, kept

DOMAIN = "com.microsoft.nchwc"
MOST = 16
AVERAGED = (*POOL, "count_include_pad")


def conv(body: FusedBody) -> bool:
    """Write the convolution: weights `[O, I, kH, kW]` are stored as [O/b, I/b, kH, kW, b, b] or [O/b, I, kH, kW, b]."""
    weight, size = light(body.input(1)), block()
    if weight is None or weight.ndim != 4 or size == 0 or weight.shape[0] % size:
        return False
    inputs: list[ir.Value | None] = [body.input(0), body.number(_plain(weight, size)), body.input(2)]
    body.main = "Conv"
    made = body("Conv", *(inputs if inputs[2] is not None else inputs[:2]), **kept(body.node, CONV))
    return added_and_activated(body, made, body.input(3))


def pool(body: FusedBody) -> bool:
    """Write a pool, which is the same op on plain data."""
    body.main = body.node.op_type
    body.replace(0, body(body.main, body.input(0), **kept(body.node, AVERAGED)))
    return True


def enlarge(body: FusedBody) -> bool:
    """Write Upsample as the Resize by the same scales; opsets before 11 have no such coordinates."""
    mode = body.attr("mode", "nearest")
    where = body.attr("coordinate_transformation_mode", "asymmetric")
    if body.opset < 11:
        return False
    scales = body.number([float(s) for s in body.attr("scales")])
    rounded = {"nearest_mode": "floor"} if mode == "nearest" else {}
    body.main = "Resize"
    none = body.number(np.zeros(0))
    attributes = {"mode": mode, "coordinate_transformation_mode": where, **rounded}
    body.replace(0, body("Resize", body.input(0), none, scales, **attributes))
    return True


def blocks_made(body: FusedBody) -> bool:
    """Write ReorderInput: a Transpose of data with channels last, and zeros that fill the last block."""
    data, size = body.input(0), block()
    if data is None:
        return False
    last = bool(body.attr("channels_last", 0))
    axes = data.shape if data.shape is not None else body.axes(data.name or "")
    channels = axes[3 if last else 1] if axes is not None else None
    if size == 0 or (not isinstance(channels, int) and body.opset < CLIP_OPSET):
        return False
    data = body.swap(data, [0, 3, 1, 2]) if last else data
    if not isinstance(channels, int):
        count = body("Gather", body("Shape", data), body.integers(1), axis=0)
        added = body("Mod", body("Neg", count), body.integers(size))
        data = body("Pad", data, body("Concat", body.integers(*[0] * 5), added, body.integers(0, 0), axis=0))
    elif channels % size:
        data = body.pad(data, [0] * 5 + [-channels % size, 0, 0])
    body.replace(0, data)
    return True


def blocks_undone(body: FusedBody) -> bool:
    """Write ReorderOutput: the first channels of the data, which are last if asked."""
    data, channels = body.input(0), int(body.attr("channels", 0))
    if data is None:
        return False
    size = block()
    if size == 0 or channels % size:
        data = body.part(data, 1, 0, channels)
    body.replace(0, body.swap(data, [0, 2, 3, 1]) if body.attr("channels_last", 0) else data)
    return True


def _plain(weight: NDArray[np.float32], size: int) -> NDArray[np.float32]:
    """Return stored weights in ONNX's order."""
    out, inner, *kernel = weight.shape
    if inner < size or inner % size:
        stored = weight.reshape(out // size, inner, *kernel, size)
        return stored.transpose(0, 4, 1, 2, 3).reshape(weight.shape)
    stored = weight.reshape(out // size, inner // size, *kernel, size, size)
    return stored.transpose(0, 5, 1, 4, 2, 3).reshape(weight.shape)


@cache
def block() -> int:
    """Return how many channels onnxruntime stores next to each other on this processor; 0 without such kernels.

    Two pixels of 16 channels are stored: the second pixel's first channel is after the first block.
    """
    ports = [ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, MOST, 1, 2]))]
    node = ir.Node(DOMAIN, "ReorderInput", ports, num_outputs=1)
    node.outputs[0].name, node.outputs[0].type = "y", ports[0].type
    graph = ir.Graph(ports, node.outputs, nodes=[node], opset_imports={"": 17, DOMAIN: 1}, name="blocks")
    pixels = np.zeros((1, MOST, 1, 2), np.float32)
    pixels[0, 0, 0, 1] = 1
    try:
        stored = Session(ir.Model(graph, ir_version=8), threads=1).run({"x": pixels})["y"]
    except Exception:  # this build of the runtime has no such kernels
        return 0
    return int(np.argmax(stored.reshape(-1)))
