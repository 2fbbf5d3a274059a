"""Subtract the loss of saturating pairs of products from an accumulator, in both graphs.

Each such pair is computed by itself, and what it has beyond int16 is subtracted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from quantpipe.graph.view import Node
from quantpipe.lowering.context import Context
from quantpipe.lowering.fragments import ConstantWriter
from quantpipe.types import Accumulate, DType, Pairs

KEPT = ("auto_pad", "dilations", "kernel_shape", "pads", "strides")


def pair_excess(
    context: Context, constants: ConstantWriter, node: Node, plan: Accumulate, *, centred: ir.Value, zero_point: int
) -> ir.Value:
    """Write Σ over pairs of (pair - clamp(pair, int16)), per output element, float32.

    The device multiplies q itself: q_0·w_0 + q_1·w_1 = Σ (q - z)·w + z·(w_0 + w_1). Every number stays below 2^24.
    `centred` is q - z in float32.
    """
    pairs = plan.pairs
    assert pairs is not None  # noqa: S101  (the caller asks only then; narrows the type)
    b, name = context.builder, f"{node.name}/pairs"
    weight = constants(f"{name}/weight", pairs.weight.astype(np.float32))
    dense = pairs.weight.ndim == 2
    offset = (zero_point * pairs.total).astype(np.float32)
    if dense:
        products = b.op("MatMul", centred, weight, name=f"{name}/products")
        whole = b.op("Add", products, constants(f"{name}/offset", offset), name=name)
    else:
        attributes: dict[str, Any] = {k: node.attr(k) for k in KEPT if k in node.attributes}
        whole = b.op("Conv", centred, weight, constants(f"{name}/offset", offset), name=name, **attributes)
    bounds = [
        constants(f"int16_{side}", np.float32(v))
        for side, v in (("least", DType.INT16.qmin), ("most", DType.INT16.qmax))
    ]
    kept = b.op("Clip", whole, *bounds, name=f"{name}/kept")
    excess = b.op("Sub", whole, kept, name=f"{name}/excess")
    gather = constants(f"{name}/owner", _gathering(pairs, context.graph.shapes[node.outputs[0]][-1 if dense else 1]))
    return b.op("MatMul" if dense else "Conv", excess, gather, name=f"{name}/sum")


def _gathering(pairs: Pairs, outputs: int) -> Any:
    """Return ones that add each pair to its output channel."""
    ones = np.zeros((outputs, len(pairs.owner)), np.float32)
    ones[pairs.owner, np.arange(len(pairs.owner))] = 1.0
    if pairs.weight.ndim == 2:
        return np.ascontiguousarray(ones.T)
    return ones.reshape(*ones.shape, *([1] * (pairs.weight.ndim - 2)))
