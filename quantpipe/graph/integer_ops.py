"""Map the integer ops of ONNX and onnxruntime to the corresponding float ops.

There is one row per op, with ports as in the operator's own definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Ports:
    """Ports of one stored tensor: its integers, its scale (None: the op does not say), its zero point (None: 0)."""

    data: int
    scale: int | None
    zero: int | None


@dataclass(frozen=True)
class IntegerOp:
    """The float `op`, its data operands, its weight, the port of its bias, and the ports of its result's grid.

    `repeats`: the data operands come in threes from port 2 on, however many there are.
    """

    op: str
    data: tuple[Ports, ...]
    weight: Ports | None = None
    bias: int | None = None
    scale: int | None = None
    zero: int | None = None
    repeats: bool = False


_X = Ports(0, 1, 2)
_ONE = (_X,)

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
"""Between real and stored."""

INTEGER_OPS: Mapping[str, IntegerOp] = {
    "QLinearConv": IntegerOp("Conv", _ONE, Ports(3, 4, 5), bias=8, scale=6, zero=7),
    "QLinearMatMul": IntegerOp("MatMul", _ONE, Ports(3, 4, 5), scale=6, zero=7),
    "QGemm": IntegerOp("Gemm", _ONE, Ports(3, 4, 5), bias=6, scale=7, zero=8),
    "MatMulIntegerToFloat": IntegerOp("MatMul", (Ports(0, 2, 4),), Ports(1, 3, 5), bias=6),
    "ConvInteger": IntegerOp("Conv", (Ports(0, None, 2),), Ports(1, None, 3)),
    "MatMulInteger": IntegerOp("MatMul", (Ports(0, None, 2),), Ports(1, None, 3)),
    "QLinearAdd": IntegerOp("Add", (_X, Ports(3, 4, 5)), scale=6, zero=7),
    "QLinearMul": IntegerOp("Mul", (_X, Ports(3, 4, 5)), scale=6, zero=7),
    "QLinearGlobalAveragePool": IntegerOp("GlobalAveragePool", _ONE, scale=3, zero=4),
    "QLinearAveragePool": IntegerOp("AveragePool", _ONE, scale=3, zero=4),
    "QLinearConcat": IntegerOp("Concat", (), scale=0, zero=1, repeats=True),
    "QLinearLeakyRelu": IntegerOp("LeakyRelu", _ONE, scale=3, zero=4),
    "QLinearSigmoid": IntegerOp("Sigmoid", _ONE, scale=3, zero=4),
    "QLinearSoftmax": IntegerOp("Softmax", _ONE, scale=3, zero=4),
}

SHAPES = frozenset({"Shape", "Size"})
"""Ops that read no value of their input, only its shape."""

COMMUTES = frozenset({"Add", "Mul", "Max", "Min"})
"""Ops of two operands whose order says nothing."""
