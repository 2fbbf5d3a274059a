"""TFLite's operators and ONNX's ops for the same computation; the writer and the intake share these tables."""

from __future__ import annotations

from collections.abc import Mapping

from quantpipe.types import DType

IDENTIFIER = b"TFL3"
"""The bytes 4 to 8 of a file."""
SCHEMA_VERSION = 3

TYPES: Mapping[str, str] = {
    DType.INT4: "INT4",
    DType.INT8: "INT8",
    DType.UINT8: "UINT8",
    DType.INT16: "INT16",
    DType.INT32: "INT32",
    DType.INT64: "INT64",
    DType.FLOAT32: "FLOAT32",
    "bool": "BOOL",
}
"""Our name of a type -> the schema's."""

ADDITIONS: Mapping[str, tuple[str, str]] = {"Add": ("ADD", "AddOptions"), "Sub": ("SUB", "SubOptions")}
EXTREMES: Mapping[str, str] = {"Max": "MAXIMUM", "Min": "MINIMUM"}
TABLED: Mapping[str, str] = {"Sigmoid": "LOGISTIC", "Tanh": "TANH"}
"""Functions that TFLite's int8 kernels look up in a table of their own."""

ELEMENTWISE: Mapping[str, tuple[str, str | None]] = {
    **ADDITIONS,
    "Mul": ("MUL", "MulOptions"),
    "Div": ("DIV", "DivOptions"),
    **{op: (own, "MaximumMinimumOptions") for op, own in EXTREMES.items()},
    **{op: (own, None) for op, own in TABLED.items()},
    "Relu": ("RELU", None),
    "Exp": ("EXP", "ExpOptions"),
    "Log": ("LOG", None),
    "Sqrt": ("SQRT", None),
    "Abs": ("ABS", "AbsOptions"),
    "Neg": ("NEG", "NegOptions"),
    "Sin": ("SIN", None),
    "Cos": ("COS", "CosOptions"),
    "Floor": ("FLOOR", None),
    "Pow": ("POW", "PowOptions"),
}
"""ONNX op -> TFLite operator, and the table of its options."""

SUMS: Mapping[str, str] = {"ReduceMean": "MEAN", "ReduceSum": "SUM"}
REDUCTIONS: Mapping[str, str] = {**SUMS, "ReduceMax": "REDUCE_MAX", "ReduceMin": "REDUCE_MIN"}

POOLS: Mapping[str, str] = {"AveragePool": "AVERAGE_POOL_2D", "MaxPool": "MAX_POOL_2D"}
"""Averages of TFLite are over the elements within the map."""

BLOCKS: Mapping[str, tuple[str, str]] = {
    "DepthToSpace": ("DEPTH_TO_SPACE", "DepthToSpaceOptions"),
    "SpaceToDepth": ("SPACE_TO_DEPTH", "SpaceToDepthOptions"),
}
"""Both have the blocks first in the channels."""

ACTIVATIONS: Mapping[str, tuple[float | None, float | None]] = {
    "NONE": (None, None),
    "RELU": (0.0, None),
    "RELU6": (0.0, 6.0),
    "RELU_N1_TO_1": (-1.0, 1.0),
}
"""Activations that kernels can fuse, with the real bounds of each."""
