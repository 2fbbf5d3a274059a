"""The body that all attentions share: softmax(cap(scale · Q · Kᵀ) + masks) · V of [batch, heads, length, size].

Several heads of Q may share a head of K and V. Then the rows of these heads of Q are one matrix, so that K and V are
never repeated.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from quantpipe.intake.rewrites.finite_masks import SENTINEL
from quantpipe.intake.rewrites.fused.body import FusedBody

HEADS_FIRST = (0, 2, 1, 3)
ROWS = 2
"""The axis of the positions in [batch, heads, length, size]."""


@dataclass(frozen=True, eq=False)
class Operands:
    """Hold Q, K and V as [batch, heads, length, size], the heads of Q, and the heads of K and V."""

    query: ir.Value
    key: ir.Value
    value: ir.Value
    heads: int
    kv_heads: int


@dataclass(eq=False)
class Weighing:
    """Hold what changes the scores before their Softmax, in the order in which it is applied.

    `added` are numbers; `blocked` are truth values, true where a query does not see a key; `sink` is a score of each
    head that takes part in the Softmax alone.
    """

    scale: float
    softcap: float = 0.0
    added: list[ir.Value] = field(default_factory=list)
    blocked: list[ir.Value] = field(default_factory=list)
    sink: ir.Value | None = None


@dataclass(frozen=True, eq=False)
class Weighed:
    """Hold the result [batch, heads, length, size], and [batch, heads, queries, keys]: the scores at three places."""

    mixed: ir.Value
    products: ir.Value
    capped: ir.Value
    weights: ir.Value


@dataclass(frozen=True)
class AttentionWindow:
    """Hold how many keys before and after its own place a query sees; by default all."""

    before: int | None = None
    after: int | None = None


def apart(body: FusedBody, value: ir.Value, heads: int) -> ir.Value:
    """Write [B, S, heads·size] as [B, heads, S, size]."""
    return body.swap(body.reshape(value, 0, 0, heads, -1), HEADS_FIRST)


def together(body: FusedBody, value: ir.Value, width: int) -> ir.Value:
    """Write [B, heads, S, size] as [B, S, heads·size], which is `width`."""
    return body.reshape(body.swap(value, HEADS_FIRST), 0, 0, width)


def width(body: FusedBody, value: ir.Value | None) -> int | None:
    """Return the size of the last axis, or None where the shape does not show it."""
    last = size_of(body, value, -1)
    return last if isinstance(last, int) else None


def size_of(body: FusedBody, value: ir.Value | None, axis: int) -> int | str | None:
    """Return the size of an axis: a number, the name of a free size, or None where nobody knows it."""
    if value is None:
        return None
    axes = [size.value if isinstance(size, ir.SymbolicDim) else size for size in value.shape or ()]
    found = axes or body.axes(value.name or "")
    return found[axis] if found and -len(found) <= axis < len(found) else None


def length(body: FusedBody, value: ir.Value, axis: int = ROWS) -> ir.Value:
    """Write the size of an axis, an int64 without axes."""
    return body("Gather", body("Shape", value), body.number(axis, np.int64), axis=0)


def counted(body: FusedBody, size: ir.Value) -> ir.Value:
    """Write 0, 1, 2, … up to a size."""
    return body("Range", body.number(0, np.int64), size, body.number(1, np.int64))


def places_of(body: FusedBody, query: ir.Value, first: ir.Value, *, each: bool) -> ir.Value:
    """Write the places of the queries among the keys, `[S, 1]`; with a first place of each sample, `[B, 1, S, 1]`."""
    rows = counted(body, length(body, query))
    if not each:
        return body.unsqueeze(body("Add", rows, first), 1)
    return body.unsqueeze(body("Add", body.unsqueeze(first, 1), body.unsqueeze(rows, 0)), 1, 3)


def outside(body: FusedBody, window: AttentionWindow, keys: ir.Value, own: ir.Value) -> list[ir.Value]:
    """Write truth values: a key [T] is outside of the window around the place of a query."""
    found = []
    if window.after is not None:
        last = body("Add", own, body.number(window.after, np.int64)) if window.after else own
        found.append(body("Greater", keys, last))
    if window.before is not None:
        first = body("Sub", own, body.number(window.before, np.int64)) if window.before else own
        found.append(body("Less", keys, first))
    return found


def weighed(body: FusedBody, of: Operands, how: Weighing) -> Weighed:
    """Write the scores of Q and K, their Softmax, and the values of V that it weighs."""
    shared = of.heads != of.kv_heads
    query = body.reshape(of.query, 0, of.kv_heads, -1, 0) if shared else of.query
    made = body.scaled(body("MatMul", query, body.swap(of.key, [0, 1, 3, 2])), how.scale)
    products = body.reshape(made, 0, of.heads, -1, 0) if shared else made
    capped = products
    if how.softcap:
        capped = body.scaled(body("Tanh", body.scaled(products, 1.0 / how.softcap)), how.softcap)
    scores = capped
    for value in how.added:
        scores = body("Add", scores, value)
    if how.blocked:
        scores = body("Add", scores, masked(body, how.blocked))
    weights = _shares(body, scores, how.sink)
    rows = body.reshape(weights, 0, of.kv_heads, -1, 0) if shared else weights
    mixed = body("MatMul", rows, of.value)
    return Weighed(body.reshape(mixed, 0, of.heads, -1, 0) if shared else mixed, products, capped, weights)


def masked(body: FusedBody, blocked: list[ir.Value]) -> ir.Value:
    """Write zeros, and a number far below all scores where one of several masks is true."""
    whole = blocked[0]
    for value in blocked[1:]:
        whole = body("Or", whole, value)
    return body("Where", whole, body.number(SENTINEL), body.number(0.0))


def _shares(body: FusedBody, scores: ir.Value, sink: ir.Value | None) -> ir.Value:
    """Write the Softmax over the keys; a sink [heads, 1, 1] is one more key, whose share is left out."""
    if sink is None:
        return body("Softmax", scores, axis=3)
    rows = body.part(body("Shape", scores), 0, 0, 3)
    column = body("Expand", sink, body("Concat", rows, body.integers(1), axis=0))
    return body.part(body("Softmax", body("Concat", scores, column, axis=3), axis=3), 3, 0, -1)
