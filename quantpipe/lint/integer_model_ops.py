"""Names of the ops and types that integer models are written in, but for what computes (`graph/integer_ops.py`)."""

from __future__ import annotations

CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "Cast"})
"""Ops that change the form of a tensor, and compute nothing."""

DYNAMIC = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
"""Ops that compute the range of their data from the data itself, sample by sample."""

PACKED_WEIGHTS = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized"})
"""Ops that keep their weights in few bits and compute with real numbers."""

REALS = frozenset({"float16", "bfloat16", "float32", "float64"})

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
NARROWING = frozenset({"Round", "Floor", "Ceil", "Add", "Sub", "Mul", "Div", "Clip", "Max", "Min"})
"""Steps between an accumulator times a real number and the integers that are stored."""
CAST, MULTIPLY, RESHAPE = "Cast", "Mul", "Reshape"

BYTE_OPS = frozenset({"Cast", "Mod", "Div", "Sub"})
"""What takes the bytes of a 16-bit integer apart."""

LONG = frozenset({"int16", "uint16"})
WIDE = frozenset({"int32", "int64"})
SHORT = frozenset({"int2", "uint2", "int4", "uint4"})
