"""OP_RULES: one row per op that quantpipe can run in integers. An op without a row stays in float and is listed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from quantpipe import extend
from quantpipe.graph.view import MS_DOMAIN, Node
from quantpipe.oprules import facts as f
from quantpipe.oprules import lookup as lk
from quantpipe.oprules import rows as r
from quantpipe.oprules.float_ops import FLOAT_OPS, QUANTIZED_OPS
from quantpipe.oprules.geometry import average_facts
from quantpipe.oprules.matrix import ConvForm, DenseForm, TransposedForm
from quantpipe.oprules.plugin_op import plugged_rule
from quantpipe.oprules.rule import Family, OpRule, Winner, divides, mean_of_map
from quantpipe.types import FunctionKind as K
from quantpipe.types import Reason, ReasonKind

TABLES, SUM = (K.TABLE,), (K.SUM,)
SOFTMAX = (K.TABLE, K.TFLITE, K.SHIFT, K.POLYNOMIAL)
_MOVE = OpRule(Family.MOVE)
_EXTREME = OpRule(Family.MOVE, winner=Winner.BOTH)

_OWN: Mapping[str, OpRule] = {
    "Conv": OpRule(
        Family.ACCUMULATE,
        weight=1,
        bias=2,
        matrix=ConvForm(),
        refuse=f.conv_refuses,
        macs=f.conv_macs,
        facts=f.conv_facts, conditions=("group", "pad_max"),
    ),
    "Gemm": OpRule(
        Family.ACCUMULATE,
        weight=1,
        output_axis=-1,
        bias=2,
        matrix=DenseForm(),
        refuse=f.gemm_refuses,
        macs=f.dense_macs,
        channel_axis=f.gemm_axis,
    ),
    "MatMul": OpRule(
        Family.ACCUMULATE,
        weight=1,
        output_axis=-1,
        matrix=DenseForm(),
        refuse=f.matmul_refuses,
        macs=f.dense_macs,
        channel_axis=f.matmul_axis,
        facts=f.matmul_facts, conditions=("operands",),
    ),
    "ConvTranspose": OpRule(
        Family.ACCUMULATE,
        weight=1,
        bias=2,
        matrix=TransposedForm(),
        refuse=f.transpose_refuses,
        macs=f.transpose_macs,
        channel_axis=f.transpose_axis,
        facts=f.conv_facts, conditions=("group", "pad_max"),
    ),
    "Add": OpRule(Family.SUM, data=None, refuse=f.sum_refuses),
    "Sub": OpRule(Family.SUM, data=None, refuse=f.sum_refuses, sign=-1),
    "Mul": OpRule(Family.PRODUCT, data=None, refuse=f.sum_refuses),
    "GlobalAveragePool": OpRule(
        Family.AVERAGE,
        refuse=f.global_refuses,
        count=f.global_count,
        mean=mean_of_map,
        facts=f.global_facts,
        conditions=("window",),
    ),
    "AveragePool": OpRule(
        Family.AVERAGE,
        unasked=f.pool_unasked, asks=divides, asked=f.pool_asked,
        count=f.pool_count,
        facts=average_facts, conditions=("window", "pad_max", "pads"),
        kinds=(K.DIVISION,),
    ),
    "Relu": OpRule(Family.CLAMP, bounds=f.relu_bounds),
    "Clip": OpRule(Family.CLAMP, refuse=f.clip_refuses, bounds=f.clip_bounds),
    "MaxPool": OpRule(Family.MOVE, refuse=f.max_pool_refuses, facts=f.pool_facts, conditions=("window", "pad_max")),
    "GlobalMaxPool": _EXTREME,
    "Reshape": _MOVE,
    "Flatten": _MOVE,
    "Squeeze": _MOVE,
    "Unsqueeze": _MOVE,
    "Transpose": _MOVE,
    "Slice": _MOVE,
    "Gather": OpRule(
        Family.MOVE,
        unasked=f.gather_unasked,
        table=f.gathered_table,
        facts=f.gather_facts, conditions=("operands",),
    ),
    "Identity": _MOVE,
    "DepthToSpace": _MOVE,
    "SpaceToDepth": _MOVE,
    "Pad": OpRule(Family.MOVE, refuse=f.pad_refuses, facts=f.pad_facts, conditions=("pad_max",)),
    "Resize": OpRule(Family.MOVE, refuse=f.resize_refuses),
    "Expand": _MOVE,
    "Tile": _MOVE,
    "ReduceMax": _EXTREME,
    "ReduceMin": _EXTREME,
    "TopK": OpRule(Family.MOVE, refuse=f.top_refuses),
    "Concat": OpRule(Family.MOVE, data=None, winner=Winner.OUTPUT),
    "ScatterND": OpRule(Family.MOVE, data=(0, 2), winner=Winner.OUTPUT, refuse=f.scatter_refuses),
    "ScatterElements": OpRule(Family.MOVE, data=(0, 2), winner=Winner.OUTPUT, refuse=f.scatter_refuses),
    "TensorScatter": OpRule(Family.MOVE, data=(0, 1), winner=Winner.OUTPUT),
    "Max": OpRule(Family.MOVE, data=None, winner=Winner.OUTPUT, selects=True, refuse=f.extreme_refuses),
    "Min": OpRule(Family.MOVE, data=None, winner=Winner.OUTPUT, selects=True, refuse=f.extreme_refuses),
    "Where": OpRule(Family.MOVE, data=(1, 2), winner=Winner.OUTPUT, selects=True),
    "Softmax": OpRule(Family.ROWS, refuse=r.softmax_refuses, fixed=(0.0, 1.0), kinds=SOFTMAX),
    "LogSoftmax": OpRule(Family.ROWS, refuse=r.softmax_refuses, fixed=(-16.0, 0.0), kinds=(K.TABLE,)),
    "LpNormalization": OpRule(Family.ROWS, refuse=r.row_refuses, fixed=(-1.0, 1.0), kinds=(K.INTEGER_SQRT,)),
    "LayerNormalization": OpRule(Family.ROWS, refuse=r.norm_refuses, kinds=(K.INTEGER_SQRT,)),
    "RMSNormalization": OpRule(Family.ROWS, refuse=r.norm_refuses, kinds=(K.INTEGER_SQRT,)),
    "InstanceNormalization": OpRule(Family.ROWS, refuse=r.instance_refuses, kinds=(K.INTEGER_SQRT,)),
    "LRN": OpRule(Family.ROWS, refuse=r.response_refuses, kinds=(K.INTEGER_SQRT,)),
    "ReduceMean": OpRule(Family.ROWS, refuse=r.reduce_refuses, kinds=SUM, facts=r.row_facts, conditions=("window",)),
    "ReduceSum": OpRule(Family.ROWS, refuse=r.reduce_refuses, kinds=SUM, facts=r.row_facts, conditions=("window",)),
    "Div": OpRule(Family.ROWS, data=None, refuse=f.division_refuses, kinds=(K.DIVISION,)),
    "Sigmoid": OpRule(
        Family.LOOKUP, refuse=f.lookup_refuses, fixed=(0.0, 1.0), kinds=(*TABLES, K.TFLITE), reach=lk.sigmoid_reach
    ),
    "Tanh": OpRule(
        Family.LOOKUP, refuse=f.lookup_refuses, fixed=(-1.0, 1.0), kinds=(*TABLES, K.TFLITE), reach=lk.tanh_reach
    ),
    "Gelu": OpRule(Family.LOOKUP, refuse=f.lookup_refuses, kinds=(*TABLES, K.POLYNOMIAL, K.SHIFT)),
    "Swish": OpRule(Family.LOOKUP, refuse=f.lookup_refuses, kinds=TABLES),
    "LeakyRelu": OpRule(Family.LOOKUP, refuse=f.lookup_refuses, kinds=(*TABLES, K.TFLITE)),
    "HardSwish": OpRule(Family.LOOKUP, refuse=f.lookup_refuses, kinds=(*TABLES, K.TFLITE)),
    "HardSigmoid": OpRule(Family.LOOKUP, refuse=f.lookup_refuses, kinds=TABLES, reach=lk.hard_sigmoid_reach),
    "Exp": OpRule(Family.LOOKUP, refuse=f.lookup_refuses, kinds=(*TABLES, K.POLYNOMIAL, K.SHIFT)),
    **dict.fromkeys(
        ("PRelu", "Elu", "Selu", "Celu", "ThresholdedRelu", "Softplus",
         "Softsign", "Mish", "Erf", "Log", "Sqrt", "Reciprocal", "Pow", "Abs", "Neg", "Sign",
         "Floor", "Ceil", "Round", "Sin", "Cos"),
        OpRule(Family.LOOKUP, refuse=f.lookup_refuses, kinds=TABLES),
    ),
}  # fmt: skip


class _Rules(Mapping[str, OpRule]):
    """Map the rules of our own ops, then of installed plug-in packages (with their domain in the name)."""

    def __getitem__(self, op: str) -> OpRule:
        found = _OWN.get(op) or plugged_rule(op)
        if found is None:
            raise KeyError(op)
        return found

    def __iter__(self) -> Iterator[str]:
        yield from _OWN
        yield from extend.ops()

    def __len__(self) -> int:
        return len(_OWN) + len(extend.ops())

    def __contains__(self, op: object) -> bool:
        return op in _OWN or op in extend.ops()


OP_RULES: Mapping[str, OpRule] = _Rules()


def rule_of(node: Node) -> OpRule | None:
    """Return the row of a node's op, or None for unknown ops and for domains that no plug-in package has."""
    return _OWN.get(node.op) if node.domain in ("", "ai.onnx") else plugged_rule(node.op)


def float_reason(node: Node) -> Reason:
    """Return why a node without a row stays in float."""
    known = FLOAT_OPS.get(node.op) if node.domain in ("", "ai.onnx", MS_DOMAIN) else None
    if known is None:
        name = f"{node.domain + '.' if node.domain else ''}{node.op}"
        return Reason(ReasonKind.UNKNOWN_OP, f"no rule knows the op {name}")
    return Reason(ReasonKind.QUANTIZED if node.op in QUANTIZED_OPS else ReasonKind.OP, known)
