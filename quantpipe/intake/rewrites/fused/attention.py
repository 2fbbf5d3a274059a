"""Attention of several heads as onnxruntime's transformer models have it, written as products and a Softmax.

Each head's scores are softmax(scale · Q · Kᵀ + bias + masks) · V. Q, K and V get matrices of their own where one
matrix holds all three, so that each has its own scales.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from quantpipe.intake.rewrites.fused.body import FusedBody, light
from quantpipe.intake.rewrites.fused.heads import (
    AttentionWindow,
    Operands,
    Weighing,
    apart,
    counted,
    length,
    outside,
    places_of,
    together,
    weighed,
    width,
)

FILTER = -10000.0


def attention(body: FusedBody) -> bool:
    """Write com.microsoft.Attention: Q, K and V are three parts of one product with a bias."""
    data, weights, bias, past = (body.input(port) for port in (0, 1, 2, 4))
    matrix = light(weights)
    if data is None or matrix is None or matrix.ndim != 2 or body.input(6) is not None:
        return False
    if any(int(body.attr(name, 0)) for name in ("do_rotary", "past_present_share_buffer")):
        return False
    sizes = [int(n) for n in body.attr("qkv_hidden_sizes", ())] or [matrix.shape[1] // 3] * 3
    heads, ends = int(body.attr("num_heads")), np.cumsum([0, *sizes])
    parts = []
    for begin, end in pairwise(ends):
        made = body("MatMul", data, body.number(matrix[:, begin:end], matrix.dtype))
        if bias is not None:
            made = body("Add", made, body.part(bias, 0, int(begin), int(end)))
        parts.append(apart(body, made, heads))
    query, key, value = parts
    if past is not None:
        before = (body("Gather", past, body.number(n, np.int64), axis=0) for n in (0, 1))
        key, value = (body("Concat", old, new, axis=2) for old, new in zip(before, (key, value), strict=True))
    found = Operands(query, key, value, heads, heads)
    if not _attended(body, found, (sizes[0], sizes[2]), mask=body.input(3), addend=body.input(5)):
        return False
    if body.reads(1):
        body.replace(1, body("Concat", body.unsqueeze(key, 0), body.unsqueeze(value, 0), axis=0))
    return True


def multi_head_attention(body: FusedBody) -> bool:
    """Write com.microsoft.MultiHeadAttention: Q, K and V come apart, with one bias for the three."""
    given = [body.input(port) for port in range(3)]
    ranks = [body.rank(value) for value in given]
    if any(value is None for value in given) or ranks[0] != 3 or any(body.input(p) is not None for p in (8, 9)):
        return False
    if ranks[1:] not in ([3, 3], [4, 4]) or body.reads(3):
        return False
    heads, bias = int(body.attr("num_heads")), body.input(3)
    last = [width(body, value) for value in given]
    sizes = [n * heads if n is not None and axes == 4 else n for n, axes in zip(last, ranks, strict=True)]
    if any(size is None for size in sizes):
        return False
    parts, begin = [], 0
    for value, axes, size in zip(given, ranks, sizes, strict=True):
        assert value is not None and size is not None  # noqa: S101
        if bias is not None and axes == 3:
            value = body("Add", value, body.part(bias, 0, begin, begin + size))
        begin += size
        parts.append(apart(body, value, heads) if axes == 3 else value)
    query, key, value = parts
    if (past := body.input(6)) is not None:
        key = body("Concat", past, key, axis=2)
    if (past := body.input(7)) is not None:
        value = body("Concat", past, value, axis=2)
    assert sizes[0] is not None and sizes[2] is not None  # noqa: S101
    found = Operands(query, key, value, heads, heads)
    if not _attended(body, found, (sizes[0], sizes[2]), mask=body.input(4), addend=body.input(5)):
        return False
    for port, present in ((1, key), (2, value)):
        if body.reads(port):
            body.replace(port, present)
    return True


def _attended(
    body: FusedBody, of: Operands, widths: tuple[int, int], *, mask: ir.Value | None, addend: ir.Value | None
) -> bool:
    """Write the result [B, S, features of V]; `widths` are the features of Q and V of all heads."""
    scale = float(body.attr("scale", 0.0)) or 1.0 / math.sqrt(widths[0] // of.heads)
    how = Weighing(scale, added=[] if addend is None else [addend])
    if mask is not None:
        made = _mask(body, mask, of.key)
        if made is None:
            return False
        how.added.append(made)
    if int(body.attr("unidirectional", 0)):
        keys = length(body, of.key)
        own = places_of(body, of.query, body("Sub", keys, length(body, of.query)), each=False)
        how.blocked += outside(body, AttentionWindow(after=0), counted(body, keys), own)
    body.replace(0, together(body, weighed(body, of, how).mixed, widths[1]))
    return True


def _mask(body: FusedBody, mask: ir.Value, key: ir.Value) -> ir.Value | None:
    """Return what is added to the scores: nothing where the mask is 1, `mask_filter_value` where it is 0.

    A mask `[B]` holds the number of keys of each sample; others are ones and zeros `[B, T]`, `[B, S, T]`.
    """
    axes = body.rank(mask)
    least = float(body.attr("mask_filter_value", FILTER))
    if axes == 1:
        size = mask.shape[0] if mask.shape is not None else None
        if isinstance(size, int) and size > 1:
            return None  # [2B] and [3B + 2] are told from [B] by the batch alone
        counts = body.unsqueeze(body("Cast", mask, to=int(ir.DataType.INT64)), 1)
        kept = body("Less", counted(body, length(body, key)), counts)
    elif axes in (2, 3):
        kept = body("Greater", body("Cast", mask, to=int(ir.DataType.FLOAT)), body.number(0.0))
    else:
        return None
    added = body("Where", kept, body.number(0.0), body.number(least))
    return body.unsqueeze(added, 1) if axes == 3 else body.unsqueeze(added, 1, 2)
