"""List the ops that stay in float whatever the hardware, each with its reason.

An op that is in no table is unknown and is reported as such.
"""

from __future__ import annotations

from collections.abc import Mapping

from quantpipe.graph.op_tables import DEQUANTIZE, DYNAMIC, INTEGER_OPS, QUANTIZE, RECURRENT

_REAL = "its {} are computed in float; no back end has an exact integer form of it"
_CELL = "a recurrent cell keeps its state in float between steps (model.recurrent: as steps, or in a loop)"
_BODY = "its bodies are graphs of their own, which stay in float as a whole"
_INDEX = "its result is a position or a choice, not a value with a scale"
_STATISTICS = "it divides by statistics of its own input (float mean and variance)"
_ORDER = "its order of additions is its own, so no integer form is known to be equal"
_BOTH = "it divides or raises by an activation, which integers of a fixed scale cannot"
_SUM_OF_MANY = "its sum or product over an axis has no integer kernel on any shipped target"
_LINEAR = "it mixes neighbours by real weights that depend on the size of the map"
_TRANSFORM = "it is a signal transform in float"
_RANDOM = "its result is random"
_COMPLEX = "its values are not tensors of numbers (sequence, optional, text)"
QUANTIZED = "it is part of a model that is quantized already; give the float model it was made from"
OF_TYPES = "it changes the type of values, which integers of a scale do not survive"

QUANTIZED_OPS = (*INTEGER_OPS, QUANTIZE, DEQUANTIZE, *sorted(DYNAMIC), "MatMulNBits")
"""What models that are quantized already are made of."""

FLOAT_OPS: Mapping[str, str] = {
    **dict.fromkeys(("Hardmax",), _REAL.format("exponentials")),
    **dict.fromkeys(RECURRENT, _CELL),
    "If": f"{_BODY}. model.fixed makes a constant of an input that selects a branch. Only that branch remains",
    **dict.fromkeys(("Loop", "Scan", "SequenceMap"), _BODY),
    **dict.fromkeys(
        ("ArgMax", "ArgMin", "NonMaxSuppression", "NonZero", "Unique", "Compress", "Multinomial"), _INDEX
    ),
    **dict.fromkeys(
        ("GroupNormalization", "MeanVarianceNormalization", "SkipLayerNormalization",
         "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization"),
        _STATISTICS,
    ),
    "BatchNormalization": "its input has no channels of a map (or its constants are computed at run time), so it "
    "cannot become a convolution",
    **dict.fromkeys(("Einsum", "CumSum", "CumProd", "Det", "Attention", "RotaryEmbedding",
                     "MultiHeadAttention", "GroupQueryAttention"), _ORDER),
    **dict.fromkeys(("Mod", "BitShift"), _BOTH),
    **dict.fromkeys(
        ("ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
         "ReduceSumSquare", "Mean", "LpPool", "GlobalLpPool"),
        _SUM_OF_MANY,
    ),
    **dict.fromkeys(("GridSample", "Upsample", "AffineGrid", "RoiAlign", "MaxRoiPool", "DeformConv", "Col2Im",
                     "MaxUnpool", "CenterCropPad", "ImageDecoder"), _LINEAR),
    **dict.fromkeys(("DFT", "STFT", "MelWeightMatrix", "HannWindow", "HammingWindow", "BlackmanWindow"), _TRANSFORM),
    **dict.fromkeys(
        ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Bernoulli"), _RANDOM
    ),
    **dict.fromkeys(
        ("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength",
         "SplitToSequence", "ConcatFromSequence", "Optional", "OptionalGetElement", "OptionalHasElement",
         "StringNormalizer", "StringConcat", "StringSplit", "RegexFullMatch", "TfIdfVectorizer"),
        _COMPLEX,
    ),
    **dict.fromkeys(QUANTIZED_OPS, QUANTIZED),
    **dict.fromkeys(("Cast", "CastLike", "BitCast"), OF_TYPES),
    **dict.fromkeys(("Dropout", "Constant", "ConstantOfShape", "EyeLike", "Range", "OneHot", "Shape", "Size"),
                    "it makes values instead of computing with scaled ones"),
    **dict.fromkeys(
        ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Not", "Xor", "IsNaN", "IsInf",
         "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseNot"),
        "it computes truth values or bits",
    ),
    **dict.fromkeys(
        ("Scatter", "GatherND", "GatherElements", "ReverseSequence", "Trilu"),
        "its places are computed at run time; no integer form of it is written",
    ),
}  # fmt: skip
"""Op (of ONNX, or of onnxruntime's own domain) -> why it is never run in integers."""
