"""Names that quantized files use, in addition to the integer ops of `graph/op_tables.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from quantpipe.graph.edit import attribute
from quantpipe.graph.op_tables import INTEGER_OPS

DOMAINS = frozenset({"", "ai.onnx", "com.microsoft"})
"""Domains of QuantizeLinear and DequantizeLinear; onnxruntime's own takes 16-bit integers at old opsets."""

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
DYNAMIC_QUANTIZE = "DynamicQuantizeLinear"

ON_INTEGERS: Mapping[str, int] = {
    "MaxPool": 1,
    "Reshape": 1,
    "Transpose": 1,
    "Flatten": 1,
    "Squeeze": 1,
    "Unsqueeze": 1,
    "Slice": 1,
    "Gather": 1,
    "Identity": 1,
    "Split": 1,
    "Expand": 1,
    "Tile": 1,
    "DepthToSpace": 1,
    "SpaceToDepth": 1,
    "Resize": 1,
    "ReduceMax": 1,
    "ReduceMin": 1,
    "GlobalMaxPool": 1,
    "Concat": 0,
}
"""Ops that move integers about and leave their scale: op -> how many of its inputs are data (0: all of them)."""

CHOOSING: Mapping[str, tuple[int, ...]] = {"Where": (1, 2), "Max": (), "Min": (), "TopK": (0,)}
"""Ops that choose among integers of one scale: op -> which of its inputs are data (none named: all of them). With a
constant, Max and Min bound them."""

WITHIN = ("Relu", "Pad")
"""Ops whose real results lie within their input's range, the real zero included (a Pad: where it fills with that)."""


def moved_ports(node: ir.Node) -> list[int]:
    """Return the inputs of a node whose integers it moves about or chooses among."""
    named = CHOOSING.get(node.op_type) or range(ON_INTEGERS.get(node.op_type, 0) or len(node.inputs))
    return [port for port in named if node.inputs[port] is not None]


PLACES = ("TopK",)
"""Ops that also say where what they chose stood."""

LIMITS: Mapping[str, tuple[int | None, int | None]] = {"Clip": (1, 2), "Max": (1, None), "Min": (None, 1)}
"""Ops that bound integers to fewer bits: op -> (the input that is the least, the input that is the greatest)."""

CLAMPED = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul", "BatchNormalization", "GlobalAveragePool"}
)
"""Ops behind which a tool leaves a Relu or Clip out where the stored integers do its work already."""

CLIPS = (6.0, 1.0)
"""Upper ends of clamps that networks have from 0 on. A grid that ends there, to half a step, had one."""

SUFFIXES = ("_QuantizeLinear_Output", "_quantized", "_quantize_output", "_q")
"""What tools append to a tensor's name for that of its integers."""

NBITS = "MatMulNBits"
DYNAMIC_MATMUL, TO_FLOAT = "DynamicQuantizeMatMul", "MatMulIntegerToFloat"
INTEGER_PRODUCTS = tuple(op for op, row in INTEGER_OPS.items() if row.weight is not None and row.weight.scale is None)
"""Products that give sums without a scale."""

QONNX = ("qonnx.custom_op.general", "onnx.brevitas", "finn.custom_op.general")
"""Domains of QONNX's ops."""
QONNX_QUANT, QONNX_BIPOLAR, QONNX_TRUNC = "Quant", "BipolarQuant", "Trunc"

CAST, TRANSPOSE, MULTIPLY, DIVIDE, ADD, SUBTRACT = "Cast", "Transpose", "Mul", "Div", "Add", "Sub"
CONV, MATMUL = "Conv", "MatMul"
CLIP, RELU, IDENTITY, RESHAPE, MAX, PAD = "Clip", "Relu", "Identity", "Reshape", "Max", "Pad"
APPROXIMATED = ("Softmax",)
"""Ops of rows that onnxruntime replaces by an approximation in integers between DequantizeLinear and QuantizeLinear."""
ROUNDINGS = ("Floor", "Round")
RESHAPES = ("Reshape", "Unsqueeze", "Squeeze")
"""Ops that give a scale another shape."""

AXES: Mapping[str, Callable[[ir.Node], int]] = {
    "Conv": lambda node: 0,
    "MatMul": lambda node: -1,
    "Gemm": lambda node: 0 if attribute(node, "transB", 0) else 1,
}
"""Float op -> the axis of its weight's output channels."""
