"""Nets that differ as graphs: outputs in the middle, branches, float islands."""

from __future__ import annotations

import numpy as np

from tests.ops.cases.base import back_of, case, front_of
from tests.ops.line import Net

ISLANDS = frozenset(
    {"softmax_island", "log_softmax_island", "norm_island", "erf_island", "gather_table", "two_float_heads"}
)
"""Cases in which integers are fed by float nodes again."""


@case
def intermediate_output(net: Net) -> None:
    front = front_of(net)
    relu = net.node("Relu", front, name="mid")
    net.output(front, relu, net.conv(relu, 6, 4, 3, 3), net.node("MaxPool", front, kernel_shape=[2, 2]))


@case
def two_inputs(net: Net) -> None:
    a, b = net.input(None, 3, 6, 6, name="a"), net.input(None, 2, 6, 6, name="b")
    joined = net.node("Add", net.conv(a, 3, 6, 3, 3), net.conv(b, 2, 6, 3, 3), name="mid")
    back_of(net, joined)


@case
def softmax_island(net: Net) -> None:
    back_of(net, net.node("Softmax", front_of(net), axis=1, name="mid"))


@case
def log_softmax_island(net: Net) -> None:
    back_of(net, net.node("LogSoftmax", front_of(net), axis=1, name="mid"))


@case
def norm_island(net: Net) -> None:
    back_of(net, net.node("LpNormalization", front_of(net), axis=1, p=2, name="mid"))


@case
def erf_island(net: Net) -> None:
    """Almost a Gelu, written out, with its integer input read by both sides."""
    front = front_of(net)
    e = net.node("Erf", net.node("Mul", front, net.constant(np.float32(0.70710677))), name="mid")
    half = net.node("Mul", front, net.node("Add", e, net.constant(np.float32(1.0))))
    back_of(net, net.node("Mul", half, net.constant(np.float32(0.625))))


@case
def two_float_heads(net: Net) -> None:
    """A float node in the middle whose result both leaves the graph and is read by integer nodes."""
    front = front_of(net)
    t = net.node("Erf", front, name="mid")
    net.output(t, net.conv(t, 6, 4, 3, 3), net.conv(t, 6, 2, 1, 1))


@case
def tied_weights(net: Net) -> None:
    x = net.input(None, 6, 6, 6)
    shared = net.floats(6, 6, 3, 3, scale=0.2, name="shared")
    a = net.node("Conv", x, shared, kernel_shape=[3, 3], pads=[1, 1, 1, 1], name="first")
    b = net.node("Conv", net.node("Relu", a), shared, net.floats(6), kernel_shape=[3, 3], name="second")
    net.output(net.conv(b, 6, 3, 1, 1))


@case
def wide_sums(net: Net) -> None:
    """Sums beyond 2^24: the simulated graph cannot stay in float32."""
    x = net.node("Gemm", net.input(None, 2600), net.signs(6, 2600, scale=0.02), net.floats(6), transB=1, name="wide")
    x = net.node("Relu", x)
    net.output(net.dense(x, 6, 4))
