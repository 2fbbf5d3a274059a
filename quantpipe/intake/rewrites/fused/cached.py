"""Attentions with a cache: ONNX's Attention (opset 23 to 25), and com.microsoft.GroupQueryAttention.

New keys and values are appended to past keys and values, after their rotation. The result is the present.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from quantpipe.intake.rewrites.fused.body import FusedBody
from quantpipe.intake.rewrites.fused.heads import (
    ROWS,
    AttentionWindow,
    Operands,
    Weighed,
    Weighing,
    apart,
    counted,
    length,
    outside,
    places_of,
    size_of,
    together,
    weighed,
    width,
)
from quantpipe.intake.rewrites.fused.rotary import Angles, angles, turned

AFTER_MASK = 2
"""The scores that ONNX's Attention may give, after masks: they hold infinities, which no body of finite numbers has."""
UNQUANTIZED = "NONE"
ON_OTHER_PROCESSORS = range(12, 17)
"""Inputs of GroupQueryAttention that are not written out: scales of a cache, gains of Q and K, lengths of queries."""


def standard_attention(body: FusedBody) -> bool:
    """Write ONNX's Attention, of three axes or four, with a past or a length of each sample."""
    found = _standard_operands(body)
    shown = int(body.attr("qk_matmul_output_mode", 0))
    if found is None or (body.reads(3) and shown == AFTER_MASK):
        return False
    if int(body.attr("softmax_precision", ir.DataType.FLOAT)) != ir.DataType.FLOAT:
        return False
    query, key, value, heads = found
    past, lengths, mask = body.input(4), body.input(6), body.input(3)
    if past is not None:
        key, value = (body("Concat", body.input(port), new, axis=ROWS) for port, new in ((4, key), (5, value)))
    size = width(body, body.input(0)) or 0
    flat = body.rank(body.input(0)) == 3
    scale = float(body.attr("scale", 0.0)) or 1.0 / math.sqrt(size // heads[0] if flat else size)
    how = Weighing(scale, float(body.attr("softcap", 0.0)))
    of = Operands(query, key, value, *heads)
    if not _seen(body, of, how, mask=mask, past=past, lengths=lengths):
        return False
    made = weighed(body, of, how)
    body.replace(0, together(body, made.mixed, heads[0] * _value_width(body, heads[1])) if flat else made.mixed)
    _give(body, of, made, shown)
    return True


def group_query_attention(body: FusedBody) -> bool:
    """Write com.microsoft.GroupQueryAttention with a cache that grows: the past has no room for later keys."""
    plain = all(str(body.attr(f"{side}_quant_type", UNQUANTIZED)) == UNQUANTIZED for side in "kv")
    others = any(body.input(port) is not None for port in ON_OTHER_PROCESSORS)
    if not plain or others or body.reads(3) or int(body.attr("sliding_window_cache", 0)) or _has_room(body):
        return False
    found = _group_operands(body)
    counts, total = body.input(5), body.input(6)
    if found is None or counts is None or total is None or body.rank(counts) not in (1, 2):
        return False
    of, size = found
    ends = body.reshape(body("Cast", counts, to=int(ir.DataType.INT64)), -1)
    before = body("Sub", body("Add", ends, body.integers(1)), length(body, of.query))
    first = body("Max", before, body.integers(0))
    if int(body.attr("do_rotary", 0)):
        by = _turning(body, of, first)
        if by is None:
            return False
        query, key = (turned(body, value, size, by, heads_axis=1) for value in (of.query, of.key))
        of = Operands(query, key, of.value, of.heads, of.kv_heads)
    grown = [
        new if (past := body.input(port)) is None else body("Concat", past, new, axis=ROWS)
        for port, new in ((3, of.key), (4, of.value))
    ]
    of = Operands(of.query, grown[0], grown[1], of.heads, of.kv_heads)
    how = Weighing(float(body.attr("scale", 0.0)) or 1.0 / math.sqrt(size), float(body.attr("softcap", 0.0)))
    how.added += [bias for bias in [body.input(10)] if bias is not None]
    how.sink = _sink(body, of.heads)
    window = int(body.attr("local_window_size", -1))
    if int(body.attr("causal", 1)):
        # As many as the file counts: a mask of another length than the cache's fits no scores, and the run ends.
        keys = counted(body, body.reshape(body("Cast", total, to=int(ir.DataType.INT64))))
        own = places_of(body, of.query, first, each=True)
        how.blocked += outside(body, AttentionWindow(before=window - 1 if window > 0 else None, after=0), keys, own)
    made = weighed(body, of, how)
    body.replace(0, together(body, made.mixed, of.heads * size))
    _give(body, of, made, 0)
    return True


def _standard_operands(body: FusedBody) -> tuple[ir.Value, ir.Value, ir.Value, tuple[int, int]] | None:
    """Return Q, K and V of four axes, and the heads of Q and of K; None where sizes are not known."""
    given = [value for port in range(3) if (value := body.input(port)) is not None]
    axes = {body.rank(value) for value in given}
    if len(given) < 3 or axes not in ({3}, {4}) or any(width(body, value) is None for value in given):
        return None
    if axes == {4}:
        found = [size_of(body, value, 1) for value in given[:2]]
    else:
        found = [int(body.attr(f"{side}_num_heads", 0)) for side in ("q", "kv")]
    heads, kv_heads = (n if isinstance(n, int) else 0 for n in found)
    if not heads or not kv_heads:
        return None
    if axes == {3}:
        given = [apart(body, value, n) for value, n in zip(given, (heads, kv_heads, kv_heads), strict=True)]
    return given[0], given[1], given[2], (heads, kv_heads)


def _value_width(body: FusedBody, kv_heads: int) -> int:
    return (width(body, body.input(2)) or 0) // kv_heads


def _seen(
    body: FusedBody,
    of: Operands,
    how: Weighing,
    *,
    mask: ir.Value | None,
    past: ir.Value | None,
    lengths: ir.Value | None,
) -> bool:
    """Add what hides keys from queries: the mask, the window around each query, and the lengths of samples."""
    rows = length(body, of.key)
    if mask is not None:
        kind = body.dtype(mask)
        if kind is None:
            return False
        is_kept = kind is ir.DataType.BOOL
        if lengths is not None:
            mask = _lengthened(body, mask, rows, is_kept=is_kept)
        (how.blocked if is_kept else how.added).append(body("Not", mask) if is_kept else mask)
    keys = counted(body, rows)
    sides = [int(body.attr(f"{side}_window_size", -1)) for side in ("left", "right")]
    after = 0 if int(body.attr("is_causal", 0)) else sides[1] if sides[1] >= 0 else None
    window = AttentionWindow(sides[0] if sides[0] >= 0 else None, after)
    if window != AttentionWindow():
        first = length(body, past) if past is not None else body.number(0, np.int64)
        if lengths is not None:
            first = body("Sub", lengths, length(body, of.query))
        own = places_of(body, of.query, first, each=lengths is not None)
        how.blocked += outside(body, window, keys, own)
    if lengths is not None:
        within = body("Less", keys, body.unsqueeze(lengths, 1))
        how.blocked.append(body("Not", body.unsqueeze(within, 1, 2)))
    return True


def _lengthened(body: FusedBody, mask: ir.Value, rows: ir.Value, *, is_kept: bool) -> ir.Value:
    """Write a mask for all keys: those that it does not reach are hidden."""
    axes = body.rank(mask) or 0
    added = body("Sub", rows, length(body, mask, axes - 1))
    pads = body("Concat", body.integers(*[0] * (2 * axes - 1)), body.unsqueeze(added, 0), axis=0)
    filler = body.number(False, np.bool_) if is_kept else body.number(-np.inf)
    return body("Pad", mask, pads, filler)


def _give(body: FusedBody, of: Operands, made: Weighed, shown: int) -> None:
    """Put the present, and the scores that are read, in the place of the node's outputs."""
    scores = {0: made.products, 1: made.capped}.get(shown, made.weights)
    for port, value in ((1, of.key), (2, of.value), (3, scores)):
        if body.reads(port):
            body.replace(port, value)


def _has_room(body: FusedBody) -> bool:
    """Return whether the past is declared as long as the present: a buffer that new keys are written into."""
    ports = [body.input(3), *body.node.outputs[1:2]]
    sizes = [p.shape[ROWS] for p in ports if p is not None and p.shape is not None and len(p.shape) == 4]
    named = [size.value if isinstance(size, ir.SymbolicDim) else size for size in sizes]
    return len(named) == 2 and named[0] == named[1] and named[0] is not None


def _group_operands(body: FusedBody) -> tuple[Operands, int] | None:
    """Return Q, K and V of the new rows, apart or from one matrix, and the size of a head."""
    heads, kv_heads = (int(body.attr(name)) for name in ("num_heads", "kv_num_heads"))
    query, key, value = (body.input(port) for port in range(3))
    features = width(body, query)
    if query is None or features is None:
        return None
    if key is not None and value is not None:
        size = features // heads
        if body.rank(key) != 3 or body.rank(value) != 3:
            return None
    else:
        size = features // (heads + 2 * kv_heads)
        ends = [0, heads * size, (heads + kv_heads) * size, features]
        query, key, value = (body.part(query, 2, *ends[n : n + 2]) for n in range(3))
    parts = [apart(body, v, n) for v, n in ((query, heads), (key, kv_heads), (value, kv_heads))]
    return Operands(parts[0], parts[1], parts[2], heads, kv_heads), size


def _turning(body: FusedBody, of: Operands, first: ir.Value) -> Angles | None:
    """Return the angles of the new rows, whose places follow from the first one, or are given."""
    places = body.input(9)
    if places is None:
        rows = counted(body, length(body, of.query))
        places = body("Add", body.unsqueeze(first, 1), body.unsqueeze(rows, 0))
    return angles(body, (7, 8), places, neighbours=bool(int(body.attr("rotary_interleaved", 0))))


def _sink(body: FusedBody, heads: int) -> ir.Value | None:
    """Return the score of each head that takes part in the Softmax alone: given, or 0 for a smooth Softmax."""
    given = body.input(11)
    if given is not None:
        return body.reshape(given, heads, 1, 1)
    return body.number(np.zeros((1, 1, 1))) if int(body.attr("smooth_softmax", 0)) > 0 else None
