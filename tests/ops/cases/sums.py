"""Nets of additions, multiplications and pools."""

from __future__ import annotations

import numpy as np

from tests.ops.cases.base import CASES, back_of, between, case, front_of
from tests.ops.line import Net

# --- Add, Mul -------------------------------------------------------------------------------------------------------


@case
def add_activations(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3, bias=False)
    back_of(net, net.node("Add", a, b, name="mid"))


@case
def add_activations_out(net: Net) -> None:
    """The sum is a graph output and is read by two convolutions."""
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3)
    c = net.node("Add", a, b, name="mid")
    net.output(c, net.conv(c, 6, 5, 1, 1), net.conv(c, 6, 2, 3, 3))


@case
def add_same_twice(net: Net) -> None:
    front = front_of(net)
    back_of(net, net.node("Add", front, front, name="mid"))


@case
def add_broadcast_activation(net: Net) -> None:
    """A map and one value per channel, the smaller operand first."""
    front = front_of(net)
    pooled = net.node("GlobalAveragePool", front)
    back_of(net, net.node("Add", pooled, front, name="mid"))


@case
def add_input(net: Net) -> None:
    """One operand is the model's own input."""
    x = net.input(None, 3, 8, 8)
    a = net.conv(x, 3, 3, 3, 3, pads=[1, 1, 1, 1])
    back_of(net, net.node("Add", x, a, name="mid"), 3)


def _constant_operand(op: str, name: str, shape: tuple[int, ...], first: bool = False) -> None:
    def build(net: Net) -> None:
        front = front_of(net)
        operands = (net.floats(*shape), front) if first else (front, net.floats(*shape))
        mid = net.node(op, *operands, name="mid")
        net.output(front, mid)  # else the clean-up would fold the constant into a convolution
        back_of(net, mid)

    CASES[f"{op.lower()}_{name}"] = build


for _op in ("Add", "Mul"):
    _constant_operand(_op, "scalar", ())
    _constant_operand(_op, "channel", (6, 1, 1))
    _constant_operand(_op, "full", (1, 6, 8, 8))
    _constant_operand(_op, "channel_first", (1, 6, 1, 1), first=True)


@case
def mul_activations(net: Net) -> None:
    x = net.input(None, 3, 8, 8)
    a, b = net.conv(x, 3, 6, 3, 3), net.conv(x, 3, 6, 3, 3)
    back_of(net, net.node("Mul", a, b, name="mid"))


@case
def mul_gate(net: Net) -> None:
    """Squeeze and excite, with Clip for its gate."""
    front = front_of(net)
    gate = net.conv(net.node("GlobalAveragePool", front), 6, 6, 1, 1)
    gate = net.node("Clip", gate, net.constant(np.float32(0)), net.constant(np.float32(1)))
    back_of(net, net.node("Mul", front, gate, name="mid"))


@case
def mul_square(net: Net) -> None:
    front = front_of(net)
    back_of(net, net.node("Mul", front, front, name="mid"))


@case
def residual_block(net: Net) -> None:
    front = net.node("Relu", front_of(net))
    arm = net.node("Relu", net.conv(front, 6, 6, 3, 3, pads=[1, 1, 1, 1]))
    arm = net.conv(arm, 6, 6, 3, 3, pads=[1, 1, 1, 1], name="last")
    joined = net.node("Relu", net.node("Add", arm, front, name="join"))
    back_of(net, joined)


@case
def residual_projection(net: Net) -> None:
    """Both arms end in a convolution: only the later one may hand on its accumulator."""
    front = net.node("Relu", front_of(net))
    arm = net.conv(front, 6, 8, 3, 3, pads=[1, 1, 1, 1], strides=[2, 2], name="arm")
    short = net.conv(front, 6, 8, 1, 1, strides=[2, 2], name="short")
    joined = net.node("Relu", net.node("Add", short, arm, name="join"))
    again = net.node("Add", net.conv(joined, 8, 8, 3, 3, pads=[1, 1, 1, 1]), joined, name="again")
    back_of(net, again, 8, 4)


# --- pools ----------------------------------------------------------------------------------------------------------


@case
def max_pool(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[2, 2], strides=[2, 2])


@case
def max_pool_pads(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])


@case
def max_pool_asymmetric_pads(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[3, 2], strides=[1, 2], pads=[0, 1, 2, 0])


@case
def max_pool_ceil(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1)


@case
def max_pool_same(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER")


@case
def max_pool_dilations(net: Net) -> None:
    between(net, "MaxPool", kernel_shape=[2, 2], dilations=[2, 2])


@case
def max_pool_1d(net: Net) -> None:
    x = net.conv(net.input(None, 3, 20), 3, 6, 3)
    net.output(net.conv(net.node("MaxPool", x, kernel_shape=[2], strides=[2], name="mid"), 6, 4, 3))


@case
def global_max_pool(net: Net) -> None:
    between(net, "GlobalMaxPool")


@case
def average_pool(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[2, 2], strides=[2, 2])


@case
def average_pool_odd(net: Net) -> None:
    """A window of nine: no power of two."""
    between(net, "AveragePool", kernel_shape=[3, 3], strides=[1, 2])


@case
def average_pool_pads_counted(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[4, 2], strides=[2, 2], pads=[1, 0, 2, 1], count_include_pad=1)


@case
def average_pool_pads_not_counted(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[2, 2], pads=[1, 1, 1, 1])


@case
def average_pool_ceil(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[2, 2], strides=[3, 3], ceil_mode=1)


@case
def average_pool_same(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[2, 2], auto_pad="SAME_UPPER")


@case
def average_pool_1d(net: Net) -> None:
    x = net.conv(net.input(None, 3, 20), 3, 6, 3)
    net.output(net.conv(net.node("AveragePool", x, kernel_shape=[4], strides=[2], name="mid"), 6, 4, 3))


@case
def average_pool_whole_map(net: Net) -> None:
    between(net, "AveragePool", kernel_shape=[8, 8])


@case
def global_average_pool(net: Net) -> None:
    between(net, "GlobalAveragePool")


@case
def global_average_pool_odd(net: Net) -> None:
    front = net.conv(net.input(None, 3, 9, 7), 3, 6, 3, 3)
    back_of(net, net.node("GlobalAveragePool", front, name="mid"))


@case
def global_average_pool_1d(net: Net) -> None:
    x = net.conv(net.input(None, 3, 18), 3, 6, 3)
    net.output(net.conv(net.node("GlobalAveragePool", x, name="mid"), 6, 4, 1))


@case
def global_average_pool_clamped(net: Net) -> None:
    between(net, "GlobalAveragePool")
    # the classifier end of a net
    net._outputs.clear()
    x = net.node("Flatten", net.node("Relu", net.node("GlobalAveragePool", "front_out")))
    net.output(net.dense(x, 6, 4))
