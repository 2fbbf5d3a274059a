"""An integer interpreter of plans, written from docs/numerics.md and the dataclasses alone: int64 and float32 NumPy.

It is the oracle of the simulated and the realized graphs, so it shares nothing with what writes them.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from quantpipe.graph.view import Graph, Node
from quantpipe.types import (
    Accumulate,
    Average,
    Contract,
    Form,
    Limit,
    Lookup,
    Move,
    Product,
    Program,
    QuantPlan,
    Requantize,
    Sum,
    Topology,
)
from tests.functions.steps import run_program

Array = np.ndarray[Any, Any]


class Interpreter:
    """Runs one batch. `stored` holds q (zero point included) and `raw` accumulators, int64, by tensor."""

    def __init__(self, graph: Graph, topology: Topology, plan: QuantPlan) -> None:
        self.graph, self.topology, self.plan = graph, topology, plan
        self.stored: dict[str, Array] = {}
        self.raw: dict[str, Array] = {}
        self.real: dict[str, Array] = {}
        self.overflowed: dict[str, int] = {}

    def run(self, inputs: dict[str, Array]) -> Interpreter:
        self.real = dict(inputs)
        for kernel in self.topology.kernels:
            node, plan = self.graph.by_name[kernel.node], self.plan.kernels[kernel.node]
            if isinstance(plan, Accumulate):
                whole, output = self._accumulate(node, kernel.operands[0].tensor, plan), plan.output
                acc = self._overflow(kernel.output, whole, plan.limit)
            elif isinstance(plan, Sum) and plan.scale is None:
                assert plan.output is not None
                self.stored[kernel.output] = self._free_sum(plan)
                continue
            elif isinstance(plan, Sum) and plan.terms[0].fixed is not None:
                acc, output = self._fixed_sum(plan), plan.output
            elif isinstance(plan, Sum):
                acc, output = self._overflow(kernel.output, self._sum(plan), plan.limit), plan.output
            elif isinstance(plan, Product):
                a, b = (self.centred(o.tensor) for o in kernel.operands)
                acc, output = a * b, plan.output
            elif isinstance(plan, Program):
                found = run_program(plan, [self.centred(o.tensor) for o in kernel.operands])
                if plan.output is None:
                    self.stored[kernel.output] = found
                    continue
                acc, output = found, plan.output
            elif isinstance(plan, Contract):
                a, b = (self.centred(o.tensor) for o in kernel.operands)
                acc, output = a @ b, plan.output
            elif isinstance(plan, Lookup):
                q, axis = self.q(kernel.operands[0].tensor), plan.axis
                code = q - self.plan.quantizers[kernel.operands[0].tensor].dtype.qmin
                row = (
                    np.zeros((), np.int64)
                    if axis is None
                    else np.arange(q.shape[axis]).reshape(-1, *[1] * (q.ndim - 1 - axis))
                )
                self.stored[kernel.output] = plan.table[row, code].astype(np.int64)
                continue
            elif isinstance(plan, Average):
                acc = self.centred(kernel.operands[0].tensor).sum(axis=(2, 3), keepdims=True)
                output = plan.output
            else:
                assert isinstance(plan, Move)
                self._move(node, kernel.operands[0].tensor, kernel.output, kernel.form, plan)
                continue
            if output is None:
                self.raw[kernel.output] = acc
            else:
                channel = -1 if node.op in ("Gemm", "MatMul") else 1
                self.stored[kernel.output] = requantize(output, acc, channel)
        return self

    def _overflow(self, tensor: str, acc: Array, limit: Limit | None) -> Array:
        """What an accumulator keeps of a sum; `overflowed` counts what it changes."""
        if limit is None:
            return acc
        half = 1 << (limit.width - 1)
        kept = (acc + half) % (2 * half) - half if limit.overflow == "wrap" else np.clip(acc, -half, half - 1)
        self.overflowed[tensor] = int(np.count_nonzero(kept != acc))
        return kept

    def q(self, tensor: str) -> Array:
        """The stored integers of a tensor, made from what there is of it."""
        if tensor not in self.stored:
            quantizer = self.plan.quantizers[tensor]
            if tensor in self.raw:
                self.stored[tensor] = requantize(self.plan.narrowings[tensor], self.raw[tensor], 1)
            elif tensor in self.plan.constants:
                self.stored[tensor] = self.plan.constants[tensor].astype(np.int64)
            else:
                steps = np.rint(np.float32(1) * self.real[tensor] / quantizer.scale)
                values = steps.astype(np.int64) + quantizer.zero_point
                self.stored[tensor] = np.clip(values, quantizer.qmin, quantizer.qmax)
        return self.stored[tensor]

    def centred(self, tensor: str) -> Array:
        return self.q(tensor) - self.plan.quantizers[tensor].zero_point

    def _accumulate(self, node: Node, data: str, plan: Accumulate) -> Array:
        stored = self.plan.weights[plan.weight]
        weight = stored.values.astype(np.int64)
        for channel, zero in enumerate(stored.zero_point.reshape(-1).tolist()):
            whole = stored.zero_point.ndim == 0
            place = ... if whole else tuple([slice(None)] * (stored.axis or 0) + [channel])
            weight[place] -= zero
        x = self.centred(data)
        if node.op == "Conv":
            acc = convolve(x, weight, node)
            return acc if plan.bias is None else acc + plan.bias.reshape(-1, 1, 1)
        matrix = weight.T if node.attr("transB", 0) else weight
        acc = x @ matrix
        return acc if plan.bias is None else acc + plan.bias

    def _sum(self, plan: Sum) -> Array:
        total = np.int64(0)
        for term in plan.terms:
            value = self.raw[term.tensor] if term.form is Form.RAW else self.centred(term.tensor)
            total = total + shift_right(value, -term.shift, plan.rounding)
        return np.asarray(total)

    def _fixed_sum(self, plan: Sum) -> Array:
        """Each operand shifted left, rescaled, added; all in int32 with saturation."""
        total = np.int64(0)
        for term in plan.terms:
            assert term.fixed is not None and plan.output is not None
            value = self.raw[term.tensor] if term.form is Form.RAW else self.centred(term.tensor)
            shape = (1, -1, 1, 1)[: value.ndim] if term.fixed.multiplier.ndim else ()
            m, e = term.fixed.multiplier.reshape(shape), term.fixed.shift.reshape(shape)
            total = total + fixed_multiply(value << term.shift, m, e, str(plan.output.rounding))
        return np.clip(total, -(1 << 31), (1 << 31) - 1)

    def _free_sum(self, plan: Sum) -> Array:
        """Two float32 fused multiply-adds, each rounded once, from exact fractions."""
        assert plan.output is not None
        a, b = plan.terms
        if Form.RAW in (a.form, b.form):
            return self._raw_free_sum(plan)
        qa, qb = np.broadcast_arrays(self.q(a.tensor), self.q(b.tensor))
        table: dict[tuple[int, int], int] = {}
        for pair in set(zip(qa.ravel().tolist(), qb.ravel().tolist(), strict=True)):
            inner = fma(pair[1], b.ratio, plan.offset)
            rounded = int(round_mode(np.float64(fma(pair[0], a.ratio, inner)), str(plan.output.rounding)))
            table[pair] = min(max(rounded, plan.output.low), plan.output.high)
        found = [table[p] for p in zip(qa.ravel().tolist(), qb.ravel().tolist(), strict=True)]
        return np.asarray(found, np.int64).reshape(qa.shape)

    def _raw_free_sum(self, plan: Sum) -> Array:
        """As above in float64, where the product of an accumulator is rounded once more."""
        assert plan.output is not None
        total = np.float64(plan.offset)
        for term in plan.terms[::-1]:
            value = self.raw[term.tensor] if term.form is Form.RAW else self.q(term.tensor)
            shape = (1, -1, 1, 1)[: value.ndim] if term.ratio.ndim else ()
            step = value.astype(np.float64) * term.ratio.astype(np.float64).reshape(shape) + total
            total = step.astype(np.float32).astype(np.float64)
        rounded = round_mode(total, str(plan.output.rounding))
        return np.clip(rounded, plan.output.low, plan.output.high).astype(np.int64)

    def _move(self, node: Node, source: str, output: str, form: Form, plan: Move) -> None:
        store = self.raw if form is Form.RAW else self.stored
        value = self.raw[source] if form is Form.RAW else self.q(source)
        if node.op == "Flatten":
            value = value.reshape(len(value), -1)
        elif node.op == "MaxPool":
            (kh, kw), (sh, sw) = node.attr("kernel_shape"), node.attr("strides", [1, 1])
            value = np.lib.stride_tricks.sliding_window_view(value, (kh, kw), (2, 3))[:, :, ::sh, ::sw].max((-1, -2))
        elif node.op not in ("Relu", "Clip"):
            raise NotImplementedError(node.op)
        low = -(1 << 40) if plan.low is None else plan.low
        high = 1 << 40 if plan.high is None else plan.high
        store[output] = np.clip(value, low, high)


def shift_right(value: Array, count: int, rounding: str = "half_up") -> Array:
    """(v + 2^(n-1)) >> n and its variants; n <= 0 shifts left."""
    if count <= 0:
        return value << -count
    half, below = 1 << (count - 1), value >> count
    rest = value - (below << count)
    tie_up = {"half_up": True, "floor": False, "half_away": value >= 0, "half_even": below & 1 == 1}[rounding]
    return below + (((rest > half) | ((rest == half) & tie_up)) & (rounding != "floor"))


def round_mode(x: Array, rounding: str) -> Array:
    if rounding == "half_even":
        return np.rint(x)
    if rounding == "floor":
        return np.floor(x)
    return np.floor(x + 0.5) if rounding == "half_up" else np.copysign(np.floor(np.abs(x) + 0.5), x)


def fixed_multiply(acc: Array, multiplier: Array, shift: Array, rounding: str) -> Array:
    """Q31 multiplication element by element, in Python integers (gemmlowp's two roundings, or one)."""
    found = []
    for a, m, e in zip(*(x.ravel().tolist() for x in np.broadcast_arrays(acc, multiplier, shift)), strict=True):
        if rounding == "single":
            found.append((a * m + (1 << (30 - e))) >> (31 - e))
            continue
        if rounding == "single_away":
            exact = abs(Fraction(a * m) * Fraction(2) ** (e - 31)) + Fraction(1, 2)
            found.append((1 if a >= 0 else -1) * (exact.numerator // exact.denominator))
            continue
        left = min(max(a << max(e, 0), -(1 << 31)), (1 << 31) - 1)
        product = left * m
        nudged = product + (1 << 30 if product >= 0 else 1 - (1 << 30))
        high = nudged // (1 << 31) if nudged >= 0 else -(-nudged // (1 << 31))
        mask = (1 << max(-e, 0)) - 1
        found.append((high >> max(-e, 0)) + ((high & mask) > (mask >> 1) + (high < 0)))
    return np.asarray(found, np.int64).reshape(np.broadcast_shapes(acc.shape, multiplier.shape))


def requantize(r: Requantize, acc: Array, channel: int) -> Array:
    if r.kind == "shift":
        return np.clip(shift_right(acc, r.shift, str(r.rounding)) + r.zero_point, r.low, r.high)
    if r.fixed is not None:
        axes = [1] * acc.ndim
        axes[channel] = -1
        m, e = (v.reshape(axes) if v.ndim else v for v in (r.fixed.multiplier, r.fixed.shift))
        return np.clip(fixed_multiply(acc, m, e, str(r.rounding)) + r.zero_point, r.low, r.high)
    multiplier = r.multiplier
    if multiplier.ndim:
        shape = [1] * acc.ndim
        shape[channel] = -1
        multiplier = multiplier.reshape(shape)
    scaled = acc.astype(np.float32) * multiplier
    assert scaled.dtype == np.float32
    zero, mode = np.float32(r.zero_point), str(r.rounding)
    # In float64: floor(x + 1/2) is exact there for every float32 x.
    shifted = (scaled + zero).astype(np.float64) if r.zero_first else scaled.astype(np.float64)
    steps = round_mode(shifted, mode) + (0 if r.zero_first else r.zero_point)
    return np.clip(steps, r.low, r.high).astype(np.int64)


def fma(x: int, y: np.float32, z: np.float32) -> np.float32:
    """x·y + z rounded once to float32, half to even, by way of exact fractions."""
    exact = x * Fraction(float(y)) + Fraction(float(z))
    guess = np.float32(float(exact))
    around = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    distances = [abs(Fraction(float(c)) - exact) for c in around]
    nearest = [c for c, d in zip(around, distances, strict=True) if d == min(distances)]
    return min(nearest, key=lambda c: int(c.view(np.int32)) & 1)


def convolve(x: Array, weight: Array, node: Node) -> Array:
    """Two-dimensional convolution of int64, any group, strides, dilations and pads."""
    group, (sh, sw) = node.attr("group", 1), node.attr("strides", [1, 1])
    (dh, dw), (top, left, bottom, right) = node.attr("dilations", [1, 1]), node.attr("pads", [0, 0, 0, 0])
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    outputs, per_group, kh, kw = weight.shape
    height = (x.shape[2] - dh * (kh - 1) - 1) // sh + 1
    width = (x.shape[3] - dw * (kw - 1) - 1) // sw + 1
    result = np.zeros((len(x), outputs, height, width), np.int64)
    for o in range(outputs):
        first = o // (outputs // group) * per_group
        for c in range(per_group):
            for i in range(kh):
                for j in range(kw):
                    rows = slice(i * dh, i * dh + (height - 1) * sh + 1, sh)
                    columns = slice(j * dw, j * dw + (width - 1) * sw + 1, sw)
                    result[:, o] += int(weight[o, c, i, j]) * x[:, first + c, rows, columns]
    return result
