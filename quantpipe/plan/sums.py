"""Additions: how two operands of scales of their own come to one sum."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from quantpipe import intmath
from quantpipe.plan.draft import Draft
from quantpipe.plan.requantize import exponent_of, limits, requantize
from quantpipe.types import Form, Kernel, Requantize, RequantizeKind, Sum, Term, Unify


def plan_sum(draft: Draft, kernel: Kernel) -> Sum:
    """Add, by the hardware's `unify`."""
    kernel = _broadcast_last(draft, kernel)
    return _free(draft, kernel) if draft.spec.unify is Unify.FREE else _unified(draft, kernel)


def _free(draft: Draft, kernel: Kernel) -> Sum:
    """The kernel rescales inside, in float32."""
    out = draft.quantizers[kernel.output]
    terms = []
    for o in kernel.operands:
        scale, zero = draft.scale(o.tensor, o.form), draft.zero_point(o.tensor, o.form)
        terms.append(Term(o.tensor, o.form, scale, zero, 0, np.float32(scale / out.scale)))
    one = np.asarray(1.0, np.float32)
    low, high = limits(kernel, out)
    output = Requantize(RequantizeKind.FLOAT_MULTIPLIER, one, 0, out.zero_point, low, high, True)
    return Sum(kernel.node, tuple(terms), None, _free_offset(tuple(terms), out.zero_point), 0, output)


def _unified(draft: Draft, kernel: Kernel) -> Sum:
    """Both operands are shifted to one power-of-two scale."""
    scales = [draft.scale(o.tensor, o.form) for o in kernel.operands]
    zeros = [draft.zero_point(o.tensor, o.form) for o in kernel.operands]
    peaks = [draft.peak(o.tensor, o.form) for o in kernel.operands]
    exponents = [exponent_of(s, kernel.node) for s in scales]
    common = min(exponents) if draft.spec.unify is Unify.MIN_SCALE else max(exponents)
    while sum(p * 2.0 ** (e - common) for p, e in zip(peaks, exponents, strict=True)) >= 2**30:
        common += 1  # head-room: the sum must fit the accumulator
    scale = np.asarray(2.0**common, np.float32)
    terms = tuple(
        Term(o.tensor, o.form, s, z, e - common, np.float32(1.0))
        for o, s, z, e in zip(kernel.operands, scales, zeros, exponents, strict=True)
    )
    for term in terms:
        if term.shift:
            draft.rescales.append(
                {"node": kernel.node, "tensor": term.tensor, "from": float(term.scale), "to": float(scale)}
            )
    bound = math.ceil(sum(p * 2.0 ** (e - common) + 1 for p, e in zip(peaks, exponents, strict=True)))
    draft.bounds[kernel.output] = bound
    if kernel.form is Form.RAW:
        draft.raw[kernel.output] = scale
        return Sum(kernel.node, terms, scale, np.float32(0), bound, None)
    output = requantize(draft, kernel, scale, draft.quantizers[kernel.output])
    return Sum(kernel.node, terms, scale, np.float32(0), bound, output)


def _broadcast_last(draft: Draft, kernel: Kernel) -> Kernel:
    """The operand that is broadcast goes second: the order decides which product is fused first."""
    sizes = [math.prod(draft.graph.shapes[o.tensor]) for o in kernel.operands]
    return replace(kernel, operands=kernel.operands[::-1]) if sizes[0] < sizes[-1] else kernel


def _free_offset(terms: tuple[Term, ...], zero_point: int) -> np.float32:
    """z_y - (z_a·r_a + z_b·r_b) as onnxruntime's QLinearAdd forms it: the first product fused with the sum (FMA)."""
    a, b = terms
    second = np.float32(np.float32(b.zero_point) * b.ratio)
    both = intmath.fused_multiply_add(a.zero_point, a.ratio, second)
    return np.float32(np.float32(zero_point) - both)
