"""Nets of ops that move values, and of clamps."""

from __future__ import annotations

import numpy as np

from tests.ops.cases.base import CASES, Build, back_of, between, case, front_of
from tests.ops.line import Net

# --- data movement --------------------------------------------------------------------------------------------------


@case
def concat_two(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 4, 3, 3), net.conv(x, 3, 2, 3, 3)
    scaled = net.node("Mul", net.node("Relu", b), net.constant(np.float32(0.125)))
    back_of(net, net.node("Concat", a, scaled, axis=1, name="mid"))


@case
def concat_three(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 4, 3, 3, pads=[1, 1, 1, 1]), net.node("Relu", net.conv(x, 3, 2, 1, 1))
    back_of(net, net.node("Concat", a, x, b, axis=1, name="mid"), 9)


@case
def concat_twice(net: Net) -> None:
    """Dense connections: a tensor that is concatenated, read, and concatenated again."""
    front = front_of(net)
    a = net.conv(front, 6, 4, 3, 3, pads=[1, 1, 1, 1])
    joined = net.node("Concat", front, a, axis=1)
    b = net.conv(joined, 10, 4, 3, 3, pads=[1, 1, 1, 1])
    back_of(net, net.node("Concat", joined, b, axis=1), 14)


@case
def concat_constant(net: Net) -> None:
    back_of(net, net.node("Concat", front_of(net), net.floats(1, 2, 8, 8), axis=1, name="mid"), 8)
    # the constant has batch 1, so the samples must come one by one
    net.fix_batch(1)


@case
def concat_spatial(net: Net) -> None:
    front = front_of(net)
    pooled = net.node("MaxPool", front, kernel_shape=[2, 2], strides=[2, 1])
    other = net.conv(front, 6, 6, 2, 2, strides=[2, 1])
    back_of(net, net.node("Concat", pooled, other, axis=2, name="mid"))


def _pad(mode: str, amounts: list[int], value: float | None = None) -> Build:
    def build(net: Net) -> None:
        more = [net.constant(np.asarray(amounts, np.int64))]
        if value is not None:
            more.append(net.constant(np.float32(value)))
        between(net, "Pad", *more, mode=mode)

    return build


CASES["pad_constant"] = _pad("constant", [0, 0, 1, 2, 0, 0, 3, 0], 0.0)
CASES["pad_constant_default"] = _pad("constant", [0, 0, 1, 2, 0, 0, 3, 0])
CASES["pad_value"] = _pad("constant", [0, 0, 1, 2, 0, 0, 3, 0], 0.5)
CASES["pad_reflect"] = _pad("reflect", [0, 0, 1, 2, 0, 0, 3, 0])
CASES["pad_edge"] = _pad("edge", [0, 0, 1, 2, 0, 0, 3, 0])


@case
def slice_maps(net: Net) -> None:
    parts = (np.array([1, 0]), np.array([7, 6]), np.array([2, 3]), np.array([2, 1]))
    between(net, "Slice", *(net.constant(p.astype(np.int64)) for p in parts))


@case
def transpose(net: Net) -> None:
    moved = net.node("Transpose", front_of(net), perm=[0, 2, 1, 3], name="mid")
    net.output(net.conv(moved, 8, 4, 3, 3))


@case
def reshape(net: Net) -> None:
    between(net, "Reshape", net.constant(np.array([0, 12, 4, 8], np.int64)), channels=12)


@case
def flatten(net: Net) -> None:
    net.output(net.dense(net.node("Flatten", front_of(net), name="mid"), 384, 5))


@case
def squeeze_unsqueeze(net: Net) -> None:
    pooled = net.conv(front_of(net), 6, 6, 8, 8)
    squeezed = net.node("Squeeze", pooled, net.constant(np.array([3], np.int64)), name="squeeze")
    x = net.conv(squeezed, 6, 5, 1)
    x = net.node("Unsqueeze", x, net.constant(np.array([3], np.int64)), name="unsqueeze")
    net.output(net.conv(x, 5, 4, 1, 1))


@case
def gather(net: Net) -> None:
    between(net, "Gather", net.constant(np.array([5, 0, 0, 3], np.int64)), axis=1, channels=4)


@case
def scatter(net: Net) -> None:
    """Columns of one map take the place of columns of another, as new positions do in a static cache."""
    x = net.input(None, 3, 8, 8)
    front, other = net.conv(x, 3, 6, 3, 3, pads=[1, 1, 1, 1]), net.conv(x, 3, 6, 8, 7, pads=[0, 0, 7, 0])
    turned = [net.node("Transpose", value, perm=[3, 0, 1, 2]) for value in (front, other)]
    places = net.constant(np.int64([[5], [1]]))
    mid = net.node("ScatterND", turned[0], places, turned[1], name="mid")
    back_of(net, net.node("Transpose", mid, perm=[1, 2, 3, 0]))
    net.fix_batch(1)


@case
def scatter_elements(net: Net) -> None:
    """Elements of one map take the place of elements of another, along the axis of columns."""
    x = net.input(None, 3, 8, 8)
    front, other = net.conv(x, 3, 6, 3, 3, pads=[1, 1, 1, 1]), net.conv(x, 3, 6, 8, 7, pads=[0, 0, 7, 0])
    places = net.constant(np.broadcast_to(np.int64([5, -7]), (1, 6, 8, 2)).copy())
    back_of(net, net.node("ScatterElements", front, places, other, name="mid", axis=3))
    net.fix_batch(1)


@case
def tensor_scatter(net: Net) -> None:
    """Columns of one map take the place of columns of another, from a position on."""
    net._opset = 24
    x = net.input(None, 3, 8, 8)
    front, other = net.conv(x, 3, 6, 3, 3, pads=[1, 1, 1, 1]), net.conv(x, 3, 6, 8, 7, pads=[0, 0, 7, 0])
    back_of(net, net.node("TensorScatter", front, other, net.constant(np.int64([5])), name="mid", axis=3))
    net.fix_batch(1)


@case
def gather_table(net: Net) -> None:
    """A lookup in a constant table stays in float; its result is quantized for the dense layer behind."""
    x = net.input(None, 6)
    rows = net.node(
        "Cast", net.node("Abs", net.node("Clip", x, net.constant(np.float32(-3)), net.constant(np.float32(3)))), to=7
    )
    table = net.node("Gather", net.floats(8, 4, name="table"), rows, axis=0, name="mid")
    net.output(net.dense(net.node("Flatten", table), 24, 5))


@case
def depth_to_space(net: Net) -> None:
    front = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3)
    net.output(net.conv(net.node("DepthToSpace", front, blocksize=2, mode="CRD", name="mid"), 2, 4, 3, 3))


@case
def space_to_depth(net: Net) -> None:
    between(net, "SpaceToDepth", blocksize=2, channels=24)


@case
def identity(net: Net) -> None:
    """Kept where it names a second output (elsewhere the clean-up drops it)."""
    front = front_of(net)
    mid = net.node("Identity", front, name="mid")
    net.output(front, mid, net.conv(mid, 6, 3, 1, 1))


# --- clamps ---------------------------------------------------------------------------------------------------------


@case
def relu_swallowed(net: Net) -> None:
    between(net, "Relu")


@case
def relu_standalone(net: Net) -> None:
    """The convolution is read twice, so it cannot swallow the clamp."""
    front = front_of(net)
    net.output(net.conv(net.node("Relu", front, name="mid"), 6, 4, 3, 3), net.conv(front, 6, 3, 1, 1))


@case
def relu_behind_pool(net: Net) -> None:
    pooled = net.node("MaxPool", front_of(net), kernel_shape=[2, 2])
    back_of(net, net.node("Relu", pooled, name="mid"))


def _clip(low: float | None, high: float | None, standalone: bool = False) -> Build:
    def build(net: Net) -> None:
        bounds = ["" if b is None else net.constant(np.float32(b)) for b in (low, high)]
        front = front_of(net)
        if standalone:
            net.output(net.conv(front, 6, 3, 1, 1))
        back_of(net, net.node("Clip", front, *bounds, name="mid"))

    return build


CASES["clip_relu6"] = _clip(0.0, 6.0)
CASES["clip_small"] = _clip(0.0, 0.7)
CASES["clip_both"] = _clip(-1.0, 1.0)
CASES["clip_below"] = _clip(None, 0.9)
CASES["clip_above"] = _clip(0.4, None)
CASES["clip_standalone"] = _clip(-0.5, 1.0, standalone=True)
CASES["clip_standalone_positive"] = _clip(0.25, 1.5, standalone=True)


@case
def clamps_in_a_row(net: Net) -> None:
    x = net.node("Relu", front_of(net))
    back_of(net, net.node("Clip", x, "", net.constant(np.float32(1.0)), name="mid"))


@case
def clamp_is_output(net: Net) -> None:
    net.output(net.node("Relu", front_of(net)))
