"""Small .tflite files: one operator each, with its constants, as a converter writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from quantpipe.realize.tflite.container import Container, TensorQuantization

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(11)
MAP = (1, 6, 5, 4)
SAME, VALID = 0, 1


def real(*shape: int) -> Array:
    return RNG.normal(0, 1, shape).astype(np.float32)


def whole(*values: int) -> Array:
    return np.asarray(values, np.int32)


@dataclass(frozen=True)
class Row:
    """One operator: `inputs` are shapes of inputs or arrays of constants, None is an optional input that is left out.

    `outputs` are shapes; `kinds` their types. `positive`: inputs are above 0. `expected` computes the result where
    LiteRT has no kernel of the operator.
    """

    inputs: Sequence[tuple[int, ...] | Array | None]
    outputs: Sequence[tuple[int, ...]]
    kind: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    types: tuple[str, ...] = ()
    kinds: tuple[str, ...] = ()
    positive: bool = False
    version: int = 1
    expected: Any = None


def file_of(op: str, row: Row) -> bytes:
    """The file of a row, its inputs `x0`, `x1`, …, its outputs `y0`, …."""
    file = Container()
    inputs, numbers = dict[str, int](), list[int]()
    for place, given in enumerate(row.inputs):
        if given is None:
            numbers.append(-1)
        elif isinstance(given, tuple):
            kind = row.types[place] if row.types else "float32"
            inputs[f"x{place}"] = file.tensor(f"x{place}", given, kind)
            numbers.append(inputs[f"x{place}"])
        else:
            numbers.append(file.constant(f"c{place}", given, given.dtype.name))
    kinds = row.kinds or ("float32",) * len(row.outputs)
    outputs = {f"y{n}": file.tensor(f"y{n}", s, k) for n, (s, k) in enumerate(zip(row.outputs, kinds, strict=True))}
    file.operator(op, numbers, list(outputs.values()), row.version, kind=row.kind, **row.options)
    return file.build(inputs, outputs, "a row", {}, free=False)


def _one(kind: str | None = None, **more: Any) -> Row:
    return Row([MAP], [MAP], kind, **more)


def _two(kind: str | None = None, **more: Any) -> Row:
    return Row([MAP, MAP], [MAP], kind, **more)


def _compared(kind: str) -> Row:
    return Row([MAP, real(1, 1, 1, 4)], [MAP], kind, kinds=("bool",))


def _logical(kind: str, count: int) -> Row:
    return Row([(2, 3)] * count, [(2, 3)], kind, types=("bool",) * count, kinds=("bool",))


WINDOW = {"padding": SAME, "strideH": 2, "strideW": 1}
CONV = WINDOW | {"dilationHFactor": 1, "dilationWFactor": 1}

ROWS: Mapping[str, Sequence[Row]] = {
    "CONV_2D": [
        Row([MAP, real(3, 3, 2, 4), real(3)], [(1, 3, 5, 3)], "Conv2DOptions", CONV | {"fusedActivationFunction": 1}),
        Row([MAP, real(4, 2, 2, 2), real(4)], [(1, 5, 4, 4)], "Conv2DOptions", CONV | {"padding": VALID, "strideH": 1}),
        Row([MAP, real(3, 2, 2, 4), real(3)], [(1, 4, 3, 3)], "Conv2DOptions",
            {"padding": VALID, "strideH": 1, "strideW": 1, "dilationHFactor": 2, "dilationWFactor": 2}),
    ],
    "DEPTHWISE_CONV_2D": [
        Row([MAP, real(1, 3, 3, 8), real(8)], [(1, 3, 5, 8)], "DepthwiseConv2DOptions",
            CONV | {"depthMultiplier": 2, "fusedActivationFunction": 3}),
    ],
    "TRANSPOSE_CONV": [
        Row([whole(1, 12, 10, 3), real(3, 3, 3, 4), MAP], [(1, 12, 10, 3)], "TransposeConvOptions",
            {"padding": SAME, "strideH": 2, "strideW": 2}),
        Row([whole(1, 13, 11, 3), real(3, 3, 3, 4), MAP], [(1, 13, 11, 3)], "TransposeConvOptions",
            {"padding": VALID, "strideH": 2, "strideW": 2}),
    ],
    "FULLY_CONNECTED": [
        Row([(3, 8), real(5, 8), real(5)], [(3, 5)], "FullyConnectedOptions", {"fusedActivationFunction": 1}),
        Row([(1, 2, 2, 2), real(5, 8), None], [(1, 5)], "FullyConnectedOptions"),
        Row([(2, 3, 8), real(5, 8), real(5)], [(2, 3, 5)], "FullyConnectedOptions", {"keepNumDims": True}, version=5),
    ],
    "BATCH_MATMUL": [
        Row([(2, 3, 4), (2, 4, 5)], [(2, 3, 5)], "BatchMatMulOptions"),
        Row([(2, 4, 3), (2, 5, 4)], [(2, 3, 5)], "BatchMatMulOptions", {"adjX": True, "adjY": True}),
    ],
    "AVERAGE_POOL_2D": [Row([MAP], [(1, 3, 5, 4)], "Pool2DOptions", WINDOW | {"filterHeight": 3, "filterWidth": 2})],
    "MAX_POOL_2D": [Row([MAP], [(1, 3, 5, 4)], "Pool2DOptions", WINDOW | {"filterHeight": 3, "filterWidth": 2})],
    **{op: [Row([MAP, whole(1, 2)], [(1, 4)], "ReducerOptions"),
            Row([MAP, whole(-1)], [(1, 6, 5, 1)], "ReducerOptions", {"keepDims": True})]
       for op in ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")},
    **{op: [_two(kind), Row([MAP, real(4)], [MAP], kind), Row([(3,), real(1, 1)], [(1, 3)], kind)] for op, kind in (
        ("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions"), ("DIV", "DivOptions"),
        ("MAXIMUM", "MaximumMinimumOptions"), ("MINIMUM", "MaximumMinimumOptions"),
        ("SQUARED_DIFFERENCE", "SquaredDifferenceOptions"))},
    "POW": [_two("PowOptions", positive=True)],
    "ADD_N": [Row([MAP, MAP, MAP], [MAP], "AddNOptions")],
    **{op: [_one(kind)] for op, kind in (
        ("LOGISTIC", None), ("TANH", None), ("RELU", None), ("RELU6", None), ("RELU_N1_TO_1", None),
        ("RELU_0_TO_1", None), ("EXP", "ExpOptions"), ("ABS", "AbsOptions"), ("NEG", "NegOptions"), ("SIN", None),
        ("COS", "CosOptions"),  ("FLOOR", None), ("SQUARE", "SquareOptions"), 
        ("HARD_SWISH", "HardSwishOptions"), ("SIGN", "SignOptions"), ("LOG_SOFTMAX", "LogSoftmaxOptions"),
        ("L2_NORMALIZATION", "L2NormOptions"))},
    "CEIL": [_one(expected=np.ceil)],
    "ROUND": [_one(expected=np.round)],
    "ELU": [_one(expected=lambda x: np.where(x > 0, x, np.expm1(x)))],
    **{op: [_one(positive=True)] for op in ("LOG", "SQRT", "RSQRT")},
    "GELU": [_one("GeluOptions"), _one("GeluOptions", options={"approximate": True})],
    "LEAKY_RELU": [_one("LeakyReluOptions", options={"alpha": 0.3})],
    "PRELU": [Row([MAP, real(1, 1, 4)], [MAP])],
    "SOFTMAX": [_one("SoftmaxOptions", options={"beta": 1.0}), _one("SoftmaxOptions", options={"beta": 0.5})],
    **{op: [_compared(f"{kind}Options")] for op, kind in (
        ("EQUAL", "Equal"), ("NOT_EQUAL", "NotEqual"), ("LESS", "Less"), ("LESS_EQUAL", "LessEqual"),
        ("GREATER", "Greater"), ("GREATER_EQUAL", "GreaterEqual"))},
    "LOGICAL_AND": [_logical("LogicalAndOptions", 2)],
    "LOGICAL_OR": [_logical("LogicalOrOptions", 2)],
    "LOGICAL_NOT": [_logical("LogicalNotOptions", 1)],
    "SELECT": [Row([(2, 3)] * 3, [(2, 3)], "SelectOptions", types=("bool", "float32", "float32"))],
    "SELECT_V2": [Row([(2, 3)] * 3, [(2, 3)], "SelectV2Options", types=("bool", "float32", "float32"))],
    "CAST": [Row([MAP], [MAP], "CastOptions", {"inDataType": 0, "outDataType": 2}, kinds=("int32",))],
    "QUANTIZE": [],
    "DEQUANTIZE": [],
    "RESHAPE": [Row([MAP, whole(1, 20, 6)], [(1, 20, 6)], "ReshapeOptions", {"newShape": [1, 20, 6]})],
    "SQUEEZE": [Row([(1, 1, 5, 4)], [(1, 5, 4)], "SqueezeOptions", {"squeezeDims": [1]})],
    "EXPAND_DIMS": [Row([(2, 3), whole(1)], [(2, 1, 3)], "ExpandDimsOptions")],
    "TRANSPOSE": [Row([MAP, whole(0, 3, 1, 2)], [(1, 4, 6, 5)], "TransposeOptions")],
    "SHAPE": [Row([MAP], [(4,)], "ShapeOptions", {"outType": 2}, kinds=("int32",))],
    "CONCATENATION": [Row([MAP, MAP], [(1, 6, 5, 8)], "ConcatenationOptions", {"axis": -1})],
    "PACK": [Row([(2, 3), (2, 3)], [(2, 2, 3)], "PackOptions", {"axis": 1, "valuesCount": 2})],
    "UNPACK": [Row([(2, 3)], [(2,)] * 3, "UnpackOptions", {"axis": 1, "num": 3})],
    "SPLIT": [Row([whole(3)[0].reshape(()), MAP], [(1, 6, 5, 2)] * 2, "SplitOptions", {"numSplits": 2})],
    "SPLIT_V": [Row([MAP, whole(1, -1), whole(3)[0].reshape(())], [(1, 6, 5, 1), (1, 6, 5, 3)], "SplitVOptions",
                    {"numSplits": 2})],
    "SLICE": [Row([MAP, whole(0, 1, 2, 0), whole(1, 3, -1, 4)], [(1, 3, 3, 4)], "SliceOptions")],
    "STRIDED_SLICE": [
        Row([MAP, whole(0, 5, 0, 1), whole(1, 0, 5, 4), whole(1, -2, 1, 1)], [(1, 3, 5, 3)], "StridedSliceOptions",
            {"beginMask": 1, "endMask": 5}),
        Row([MAP, whole(0, 0, 2, 0), whole(1, 6, 3, 4), whole(1, 1, 1, 2)], [(1, 6, 2)], "StridedSliceOptions",
            {"shrinkAxisMask": 4}),
        Row([(2, 4), whole(0, 2), whole(2, 3), whole(1, 1)], [(2,)], "StridedSliceOptions",
            {"shrinkAxisMask": 2, "beginMask": 2}),
    ],
    "REVERSE_V2": [Row([MAP, whole(3)], [MAP], "ReverseV2Options")],
    "GATHER": [Row([MAP, whole(2, 0)], [(1, 6, 5, 2)], "GatherOptions", {"axis": 3})],
    "EMBEDDING_LOOKUP": [Row([whole(2, 0), (5, 3)], [(2, 3)])],
    "PAD": [Row([MAP, whole(0, 0, 1, 2, 0, 1, 0, 0).reshape(4, 2)], [(1, 9, 6, 4)], "PadOptions")],
    "PADV2": [Row([MAP, whole(0, 0, 1, 2, 0, 1, 0, 0).reshape(4, 2), real(1)], [(1, 9, 6, 4)], "PadV2Options")],
    "MIRROR_PAD": [Row([MAP, whole(0, 0, 1, 2, 0, 1, 0, 0).reshape(4, 2)], [(1, 9, 6, 4)], "MirrorPadOptions")],
    "TILE": [Row([MAP, whole(1, 1, 2, 3)], [(1, 6, 10, 12)], "TileOptions")],
    "BROADCAST_TO": [Row([(1, 3), whole(2, 3)], [(2, 3)], "BroadcastToOptions", version=2)],
    **{op: [Row([MAP, whole(11, 9)], [(1, 11, 9, 4)], f"{kind}Options", options) for options in (
            {}, {"halfPixelCenters": True}, {"alignCorners": True})]
       for op, kind in (("RESIZE_BILINEAR", "ResizeBilinear"), ("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighbor"))},
    "DEPTH_TO_SPACE": [Row([MAP], [(1, 12, 10, 1)], "DepthToSpaceOptions", {"blockSize": 2})],
    "SPACE_TO_DEPTH": [Row([(1, 6, 4, 3)], [(1, 3, 2, 12)], "SpaceToDepthOptions", {"blockSize": 2})],
    "SPACE_TO_BATCH_ND": [
        Row([MAP, whole(3, 2), whole(0, 0, 1, 0).reshape(2, 2)], [(6, 2, 3, 4)], "SpaceToBatchNDOptions"),
        Row([(2, 6, 3), whole(2), whole(2, 0).reshape(1, 2)], [(4, 4, 3)], "SpaceToBatchNDOptions"),
    ],
    "BATCH_TO_SPACE_ND": [
        Row([(6, 2, 3, 4), whole(3, 2), whole(0, 1, 1, 0).reshape(2, 2)], [(1, 5, 5, 4)], "BatchToSpaceNDOptions"),
        Row([(4, 4, 3), whole(2), whole(0, 0).reshape(1, 2)], [(2, 8, 3)], "BatchToSpaceNDOptions"),
    ],
    "GATHER_ND": [Row([MAP, whole(0, 2, 4, 0, 5, 1).reshape(2, 3)], [(2, 4)], "GatherNdOptions")],
    "CUMSUM": [Row([MAP, whole(2)[0].reshape(())], [MAP], "CumsumOptions", options)
               for options in ({}, {"exclusive": True}, {"reverse": True})],
    "FLOOR_DIV": [_two("FloorDivOptions")],
    "FLOOR_MOD": [Row([(7,), whole(3, -3, 2, -5, 7, 1, -2)], [(7,)], "FloorModOptions", types=("int32", "int32"),
                      kinds=("int32",))],
    "ZEROS_LIKE": [_one("ZerosLikeOptions")],
    "FILL": [Row([whole(2, 3), ()], [(2, 3)], "FillOptions")],
    **{op: [Row([(2, 3, 4), whole(1)], [(2, 4)], "ReducerOptions", types=("bool",), kinds=("bool",)),
            Row([(2, 3, 4), whole(0, -1)], [(1, 3, 1)], "ReducerOptions", {"keepDims": True}, types=("bool",),
                kinds=("bool",))] for op in ("REDUCE_ANY", "REDUCE_ALL")},
    "ONE_HOT": [Row([(5,), whole(4)[0].reshape(()), real(1).reshape(()), real(1).reshape(())], [(5, 4)],
                    "OneHotOptions", {"axis": -1}, types=("int32", "", "", ""))],
    "TOPK_V2": [Row([(2, 7), whole(3)[0].reshape(())], [(2, 3)] * 2, "TopKV2Options", kinds=("float32", "int32"))],
    "ARG_MAX": [Row([MAP, whole(3)], [(1, 6, 5)], "ArgMaxOptions", {"outputType": 2}, kinds=("int32",))],
    "ARG_MIN": [Row([MAP, whole(1)], [(1, 5, 4)], "ArgMinOptions", {"outputType": 2}, kinds=("int32",))],
}  # fmt: skip
"""Operator -> files with it; QUANTIZE and DEQUANTIZE are in `small_net`."""


def small_net(kind: str = "int8", *, ends: str = "float32", rows: int = 1, bias_steps: int = 0) -> bytes:
    """A quantized net of a convolution, a mean and a dense layer; `kind` are its activations.

    `ends` are the types of its ends: float32 has QUANTIZE and DEQUANTIZE. `bias_steps` are added to the biases.
    """
    rng, file = np.random.default_rng(3), Container()
    zero = {"int8": (-3, -128, 5), "uint8": (125, 0, 130), "int16": (0, 0, 0)}[kind]
    step = 1 if kind != "int16" else 256
    grids = [TensorQuantization(np.float32(s / step), z) for s, z in zip((0.02, 0.05, 0.04), zero, strict=True)]
    wide = "int64" if kind == "int16" else "int32"
    x, a, m, y = (
        file.tensor(n, s, kind, grid=g)
        for n, s, g in (("x", (rows, 8, 8, 3), grids[0]), ("a", (rows, 4, 4, 4), grids[1]),
                        ("m", (rows, 4), grids[1]), ("y", (rows, 5), grids[2]))
    )  # fmt: skip
    conv, dense = (rng.integers(-127, 128, s).astype(np.int8) for s in ((4, 3, 3, 3), (5, 4)))
    scales = np.asarray([0.01, 0.02, 0.005, 0.03], np.float32)
    weights = file.constant("w", conv, "int8", TensorQuantization(scales))
    more = file.constant("v", dense, "int8", TensorQuantization(np.float32(0.01)))
    biases = [rng.integers(-500, 500, n).astype(wide) + bias_steps for n in (4, 5)]
    products = [
        TensorQuantization(np.float32(g.scale) * s) for g, s in ((grids[0], scales), (grids[1], np.float32(0.01)))
    ]
    b, c = (file.constant(n, v, wide, g) for n, v, g in zip("bc", biases, products, strict=True))
    inputs, outputs = {"x": x}, {"y": y}
    if ends == "float32":
        inputs, outputs = (
            {"x": file.tensor("given", (rows, 8, 8, 3), "float32")},
            {"y": file.tensor("out", (rows, 5), "float32")},
        )
        file.operator("QUANTIZE", [inputs["x"]], [x], 1, kind="QuantizeOptions")
    window = {"padding": SAME, "strideH": 2, "strideW": 2, "dilationHFactor": 1, "dilationWFactor": 1}
    file.operator("CONV_2D", [x, weights, b], [a], 3, kind="Conv2DOptions", fusedActivationFunction=1, **window)
    axes = file.constant("axes", whole(1, 2), "int32")
    file.operator("MEAN", [a, axes], [m], 2, kind="ReducerOptions", keepDims=False)
    file.operator("FULLY_CONNECTED", [m, more, c], [y], 4, kind="FullyConnectedOptions")
    if ends == "float32":
        file.operator("DEQUANTIZE", [y], [outputs["y"]], 2, kind="DequantizeOptions")
    return file.build(inputs, outputs, "a net", {}, free=False)
