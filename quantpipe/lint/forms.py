"""How the integer ops of ONNX and onnxruntime spell what the float ops of OP_RULES mean: one row per op.

Ports are those of the operator's own definition; `grid` is the port of a scale, its zero point stands beside it unless
`zeros` says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast"})
"""Ops that change the form of a tensor, and compute nothing."""

DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
"""Ops that compute the range of their data from the data itself, sample by sample."""

PACKED_WEIGHTS = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"})
"""Ops that keep their weights in few bits and compute with real numbers."""

REALS = frozenset({"float16", "bfloat16", "float32", "float64"})

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
CAST, MULTIPLY = "Cast", "Mul"


@dataclass(frozen=True)
class Stored:
    """Ports of one stored tensor: its integers, its scale (None: the op does not say), its zero point (None: 0)."""

    data: int
    scale: int | None
    zero: int | None


@dataclass(frozen=True)
class IntegerOp:
    """`op` of OP_RULES, its data operands, its weight, the port of its bias, and the ports of its result's grid.

    `repeats`: the data operands come in threes from port 2 on, however many there are.
    """

    op: str
    data: tuple[Stored, ...]
    weight: Stored | None = None
    bias: int | None = None
    scale: int | None = None
    zero: int | None = None
    repeats: bool = False


_X = Stored(0, 1, 2)
_ONE = (_X,)

INTEGER_OPS: Mapping[str, IntegerOp] = {
    "QLinearConv": IntegerOp("Conv", _ONE, Stored(3, 4, 5), bias=8, scale=6, zero=7),
    "QLinearMatMul": IntegerOp("MatMul", _ONE, Stored(3, 4, 5), scale=6, zero=7),
    "QGemm": IntegerOp("Gemm", _ONE, Stored(3, 4, 5), bias=6, scale=7, zero=8),
    "MatMulIntegerToFloat": IntegerOp("MatMul", (Stored(0, 2, 4),), Stored(1, 3, 5), bias=6),
    "ConvInteger": IntegerOp("Conv", (Stored(0, None, 2),), Stored(1, None, 3)),
    "MatMulInteger": IntegerOp("MatMul", (Stored(0, None, 2),), Stored(1, None, 3)),
    "QLinearAdd": IntegerOp("Add", (_X, Stored(3, 4, 5)), scale=6, zero=7),
    "QLinearMul": IntegerOp("Mul", (_X, Stored(3, 4, 5)), scale=6, zero=7),
    "QLinearGlobalAveragePool": IntegerOp("GlobalAveragePool", _ONE, scale=3, zero=4),
    "QLinearAveragePool": IntegerOp("AveragePool", _ONE, scale=3, zero=4),
    "QLinearConcat": IntegerOp("Concat", (), scale=0, zero=1, repeats=True),
    "QLinearLeakyRelu": IntegerOp("LeakyRelu", _ONE, scale=3, zero=4),
    "QLinearSigmoid": IntegerOp("Sigmoid", _ONE, scale=3, zero=4),
    "QLinearSoftmax": IntegerOp("Softmax", _ONE, scale=3, zero=4),
}

BYTE_OPS = frozenset({"Cast", "Mod", "Div", "Sub"})
"""What takes the bytes of a 16-bit integer apart."""

LONG = frozenset({"int16", "uint16"})
WIDE = frozenset({"int32", "int64"})
SHORT = frozenset({"int4", "uint4"})
