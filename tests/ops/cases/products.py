"""Nets of convolutions and dense layers."""

from __future__ import annotations

import numpy as np

from tests.ops.cases.base import CASES, case, front_of
from tests.ops.line import Net

# --- Conv -----------------------------------------------------------------------------------------------------------


def _conv(name: str, into: int, out: int, kernel: tuple[int, ...], shape: tuple[int, ...], **attrs: object) -> None:
    def build(net: Net) -> None:
        net.output(net.conv(net.input(None, into, *shape), into, out, *kernel, **attrs))

    CASES[name] = build


_conv("conv_plain", 3, 7, (3, 3), (8, 8))
_conv("conv_no_bias", 3, 7, (3, 3), (8, 8), bias=False)
_conv("conv_same_pads", 3, 7, (3, 3), (8, 8), pads=[1, 1, 1, 1])
_conv("conv_asymmetric_pads", 3, 7, (3, 2), (8, 7), pads=[0, 1, 2, 0])
_conv("conv_strides", 3, 7, (3, 3), (9, 8), strides=[2, 3], pads=[1, 0, 1, 1])
_conv("conv_dilations", 3, 7, (3, 3), (10, 11), dilations=[2, 3])
_conv("conv_grouped", 6, 9, (3, 3), (7, 7), group=3, pads=[1, 1, 1, 1])
_conv("conv_depthwise", 6, 6, (3, 3), (7, 7), group=6, pads=[1, 1, 1, 1])
_conv("conv_depthwise_no_bias", 6, 12, (3, 3), (7, 7), group=6, bias=False)
_conv("conv_same_upper", 3, 7, (3, 3), (8, 8), auto_pad="SAME_UPPER", strides=[2, 2])
_conv("conv_same_lower", 3, 7, (2, 2), (8, 8), auto_pad="SAME_LOWER")
_conv("conv_valid", 3, 7, (3, 3), (8, 8), auto_pad="VALID")
_conv("conv_1d", 4, 5, (3,), (17,), pads=[1, 1], strides=[2])
_conv("conv_1d_depthwise", 4, 4, (5,), (17,), group=4, dilations=[2])
_conv("conv_3d", 2, 4, (2, 2, 3), (4, 5, 5), pads=[0, 1, 0, 0, 1, 0])


@case
def conv_chain(net: Net) -> None:
    x = net.conv(net.input(None, 3, 8, 8), 3, 8, 3, 3, pads=[1, 1, 1, 1], strides=[2, 2])
    x = net.node("Relu", x)
    x = net.conv(x, 8, 8, 3, 3, group=8, pads=[1, 1, 1, 1])
    x = net.node("Clip", x, net.constant(np.float32(0)), net.constant(np.float32(6)))
    net.output(net.conv(x, 8, 4, 1, 1))


# --- Gemm, MatMul ---------------------------------------------------------------------------------------------------


def _gemm(name: str, **how: int | bool) -> None:
    def build(net: Net) -> None:
        x = net.dense(net.input(None, 24), 24, 10, **how)  # type: ignore[arg-type]
        net.output(net.dense(net.node("Relu", x), 10, 7, **how))  # type: ignore[arg-type]

    CASES[name] = build


_gemm("gemm_trans", trans=1)
_gemm("gemm_plain", trans=0)
_gemm("gemm_trans_no_bias", trans=1, bias=False)
_gemm("gemm_plain_no_bias", trans=0, bias=False)


@case
def gemm_row_bias(net: Net) -> None:
    """A bias of shape [1, N]."""
    x = net.node("Gemm", net.input(None, 12), net.floats(12, 9, scale=0.3), net.floats(1, 9), name="dense")
    net.output(net.dense(x, 9, 4))


@case
def matmul_matrix(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 24), net.floats(24, 10, scale=0.2), name="first")
    net.output(net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second"))


@case
def matmul_rank3(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 10, scale=0.2), name="first")
    net.output(net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second"))


@case
def matmul_rank4(net: Net) -> None:
    x = net.node("MatMul", front_of(net), net.floats(8, 5, scale=0.3), name="dense")
    net.output(net.conv(x, 6, 4, 3, 3))


@case
def matmul_add(net: Net) -> None:
    """Rank 2: becomes Gemm. The bias of the second one is on the left."""
    x = net.node("MatMul", net.input(None, 24), net.floats(24, 10, scale=0.2), name="first")
    x = net.node("Relu", net.node("Add", x, net.floats(10)))
    x = net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second")
    net.output(net.node("Add", net.floats(7), x))


@case
def matmul_rank3_add(net: Net) -> None:
    x = net.node("MatMul", net.input(None, 5, 16), net.floats(16, 10, scale=0.2), name="first")
    x = net.node("Add", x, net.floats(10))
    net.output(net.node("MatMul", x, net.floats(10, 7, scale=0.3), name="second"))
