"""Facts about ops by name that the graph layer and readers of integer models need. Rules of ops are in `oprules`.

`INTEGER_OPS` maps the integer ops of ONNX and onnxruntime to the corresponding float ops. There is one row per op, with
ports as in the operator's own definition.
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

INTEGER_PRODUCTS = frozenset({"QLinearConv", "QLinearMatMul", "QGemm", "ConvInteger", "MatMulInteger"})
"""The products of INTEGER_OPS that models are written with (others the runtime makes of them)."""

FLOAT_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
"""Ops that the runtime turns into one of INTEGER_PRODUCTS if a DequantizeLinear comes right before both operands."""

SHAPES = frozenset({"Shape", "Size"})
"""Ops that read no value of their input, only its shape."""

COMMUTES = frozenset({"Add", "Mul", "Max", "Min"})
"""Ops of two operands whose order says nothing."""

BATCH_NORM, DROPOUT, BITCAST, RESIZE = "BatchNormalization", "Dropout", "BitCast", "Resize"

COUNTED = ("Resize",)
"""Ops whose further inputs count elements, and are not data."""

WRITTEN_OUT = frozenset({"Attention", "GroupNormalization", "RotaryEmbedding", "SwiGLU", "Swish"})
"""Ops that are always written out. (The bodies of LinearAttention and CausalConvWithState are loops, which run in float
as the ops do.)"""

REDUCTIONS = {"ReduceMin": 18, "ReduceMax": 18, "ReduceSum": 13}
"""The reductions, and the opset from which each takes its axes as an input instead of an attribute."""

LEFT_ALONE = frozenset({("MatMul", 1), ("Gemm", 1), ("Gather", 0)})
"""(op, port) at which a constant is read and never folded into another."""

SAME = frozenset({"Identity"})
"""Ops that give their input as it is."""

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Ops that give other numbers each time."""

# --- ops and types that integer models are written in, in addition to INTEGER_OPS -------------------------------------

CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast"})
"""Ops that change the form of a tensor, and compute nothing."""

DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
"""Ops that compute the range of their data from the data itself, sample by sample."""

RECURRENT = ("LSTM", "GRU", "RNN")
"""Layers that carry a state from step to step."""

DYNAMIC_CELLS = {"LSTM": "DynamicQuantizeLSTM"}
"""Recurrent ops -> their form whose weights are integers, and whose inputs and states get a range at run time."""

DYNAMIC_BY_THREAD = frozenset(DYNAMIC_CELLS.values())
"""Such ops that onnxruntime divides into rows for its threads, with a range of each thread's hidden states."""

PACKED_WEIGHTS = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"})
"""Ops that keep their weights in few bits and compute with real numbers."""

REALS = frozenset({"float16", "bfloat16", "float32", "float64"})

NARROWING = frozenset({"Round", "Floor", "Ceil", "Add", "Sub", "Mul", "Div", "Clip", "Max", "Min"})
"""Steps between an accumulator times a real number and the integers that are stored."""
CAST, MULTIPLY, RESHAPE = "Cast", "Mul", "Reshape"

BYTE_OPS = frozenset({"Cast", "Mod", "Div", "Sub"})
"""What takes the bytes of a 16-bit integer apart."""

LONG = frozenset({"int16", "uint16"})
WIDE = frozenset({"int32", "int64"})
SHORT = frozenset({"int2", "uint2", "int4", "uint4"})
