"""Strategy -> QuantPlan: scales, zero points, multipliers, shifts, integer weights and biases.

The only inputs are the graph, the topology, the hardware, the schema and the strategy; no data. Formulas are those of
docs/numerics.md; rounding is done in `intmath`. Float32 products are formed in the order in which the kernels form
them, since the last bit of a multiplier decides ties.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.errors import HardwareError
from quantpipe.graph.outside import file_array, place_of, row_blocks
from quantpipe.graph.view import Graph
from quantpipe.oprules import Family, OpRule, rule_of
from quantpipe.types import (
    Accumulate,
    Average,
    Form,
    HardwareSpec,
    Kernel,
    KernelPlan,
    Move,
    PowerOfTwo,
    Product,
    Quantizer,
    QuantPlan,
    Requantize,
    RequantizeKind,
    Schema,
    Strategy,
    Sum,
    Term,
    Topology,
    Unify,
    WeightTensor,
)

MOST_BIAS_STEPS = float(1 << 22)
"""A channel whose bias is larger than this in accumulator steps is all but constant (its weights contribute under 1 %
per tap): its weight scale is raised, which costs nothing measurable and keeps its sums exact in float32."""


@dataclass(frozen=True, eq=False)
class Overrides:
    """Integer weights and real biases that take the place of what rounding to the nearest would give (accuracy
    recovery)."""

    weights: dict[str, WeightTensor]
    biases: dict[str, NDArray[np.float64]]


NO_OVERRIDES = Overrides({}, {})


class Planner:
    """Builds plans for one topology. Integer weights are made once per (tensor, bits, thresholds) and shared."""

    def __init__(self, graph: Graph, topology: Topology, spec: HardwareSpec, schema: Schema) -> None:
        self._graph, self._topology, self._spec, self._schema = graph, topology, spec, schema
        self._weights: dict[tuple[str, int, bytes], WeightTensor] = {}

    def plan(self, strategy: Strategy, overrides: Overrides = NO_OVERRIDES) -> QuantPlan:
        """All numbers of a strategy. Raises HardwareError when the device cannot express one of them."""
        return _Draft(self, strategy, overrides).build()

    def weight(self, tensor: str, bits: int, thresholds: NDArray[np.float64]) -> WeightTensor:
        """The integer weights of one constant: q = clamp(rint(w / s)), symmetric."""
        key = (tensor, bits, np.asarray(thresholds, np.float64).tobytes())
        if key not in self._weights:
            site = self._topology.weight_of[tensor]
            limits = np.atleast_1d(np.asarray(thresholds, np.float64))
            scale, _, qmin, qmax = intmath.scales_zero_points(-limits, limits, bits, site.dtype, self._schema.weights)
            if site.axis is None:
                scale = scale.reshape(())
            values = self._integers(tensor, scale, (qmin, qmax))
            self._weights[key] = WeightTensor(tensor, values, scale, site.axis, site.dtype, bits)
        return self._weights[key]

    def _integers(self, tensor: str, scale: NDArray[np.float32], bounds: tuple[int, int]) -> NDArray[Any]:
        """Integers of a weight; for one that stays in its file they go to a file, too, a few rows at a time."""
        site, weight = self._topology.weight_of[tensor], self._graph.constant(tensor)
        if place_of(self._graph.constant_tensor(tensor)) is None:
            return intmath.quantize(weight, scale, 0, *bounds, site.dtype, site.axis)
        values = file_array(weight.shape, site.dtype.numpy)
        for rows in row_blocks(weight):
            own = scale[rows] if site.axis == 0 else scale
            values[rows] = intmath.quantize(weight[rows], own, 0, *bounds, site.dtype, site.axis)
        return values


class _Draft:
    """One plan in the making."""

    def __init__(self, planner: Planner, strategy: Strategy, overrides: Overrides) -> None:
        self._planner, self._strategy, self._overrides = planner, strategy, overrides
        self._graph, self._topology = planner._graph, planner._topology
        self._spec, self._schema = planner._spec, planner._schema
        self._weights: dict[str, WeightTensor] = {}
        self._quantizers: dict[str, Quantizer] = {}
        self._raw: dict[str, NDArray[np.float32]] = {}
        self._bounds: dict[str, int] = {}
        self._kernels: dict[str, KernelPlan] = {}
        self._rescales: list[dict[str, Any]] = []
        self._raised: list[dict[str, Any]] = []

    def build(self) -> QuantPlan:
        for group in self._topology.groups:
            bits = self._strategy.bits[group.key]
            scale, zero, qmin, qmax = intmath.scale_zero_point(
                self._strategy.ranges[group.key], bits, group.dtype, self._schema.activations
            )
            for tensor in group.tensors:
                self._quantizers[tensor] = Quantizer(
                    tensor, np.asarray(scale, np.float32), zero, group.dtype, bits, qmin, qmax
                )
        for kernel in self._topology.kernels:
            if kernel.weight is not None:
                self._choose_weight(kernel)
        for kernel in self._topology.kernels:
            rule = rule_of(self._graph.by_name[kernel.node])
            if rule is not None:
                self._kernels[kernel.node] = self._plan_kernel(kernel, rule)
        narrowings = {
            k.output: self._requantize(k, self._raw[k.output], self._quantizers[k.output], clamp=False)
            for k in self._topology.kernels
            if k.form is Form.RAW and k.output in self._quantizers
        }
        return QuantPlan(
            narrowings=narrowings,
            constants={t: self._constant(t) for t in self._topology.constants},
            quantizers=self._quantizers,
            weights=self._weights,
            kernels=self._kernels,
            raw_scales=self._raw,
            rescales=tuple(self._rescales),
            raised=tuple(self._raised),
        )

    # --- families ---------------------------------------------------------------------------------------------------

    def _plan_kernel(self, kernel: Kernel, rule: OpRule) -> KernelPlan:
        match rule.family:
            case Family.ACCUMULATE:
                return self._accumulate(kernel)
            case Family.SUM:
                return self._sum(kernel)
            case Family.PRODUCT:
                return self._product(kernel)
            case Family.AVERAGE:
                return self._average(kernel, rule)
            case _:
                return self._move(kernel)

    def _accumulate(self, kernel: Kernel) -> Accumulate:
        data = self._quantizers[kernel.operands[0].tensor]
        weight = self._weights[kernel.weight or ""]
        acc_scale = np.asarray(data.scale * weight.scale, np.float32)
        bias = self._bias(kernel, acc_scale)
        reach = self._reach(weight, data)
        bound = int(np.max(reach + (np.abs(bias) if bias is not None else 0)))
        self._refuse_overflow(kernel, bound)
        self._bounds[kernel.output] = bound
        if kernel.form is Form.RAW:
            self._raw[kernel.output] = acc_scale
            return Accumulate(kernel.node, weight.tensor, bias, acc_scale, bound, None)
        out = self._quantizers[kernel.output]
        return Accumulate(kernel.node, weight.tensor, bias, acc_scale, bound, self._requantize(kernel, acc_scale, out))

    def _sum(self, kernel: Kernel) -> Sum:
        kernel = self._broadcast_last(kernel)
        scales = [
            self._raw[o.tensor] if o.form is Form.RAW else self._quantizers[o.tensor].scale for o in kernel.operands
        ]
        zeros = [0 if o.form is Form.RAW else self._quantizers[o.tensor].zero_point for o in kernel.operands]
        peaks = [self._peak(o.tensor, o.form) for o in kernel.operands]
        if self._spec.unify is Unify.FREE:
            out = self._quantizers[kernel.output]
            terms = tuple(
                Term(o.tensor, o.form, s, z, 0, np.float32(s / out.scale))
                for o, s, z in zip(kernel.operands, scales, zeros, strict=True)
            )
            one = np.asarray(1.0, np.float32)
            low, high = self._limits(kernel, out)
            requantize = Requantize(RequantizeKind.FLOAT_MULTIPLIER, one, 0, out.zero_point, low, high, True)
            return Sum(kernel.node, terms, None, _free_offset(terms, out.zero_point), 0, requantize)
        exponents = [_exponent(s, kernel.node) for s in scales]
        common = min(exponents) if self._spec.unify is Unify.MIN_SCALE else max(exponents)
        while sum(p * 2.0 ** (e - common) for p, e in zip(peaks, exponents, strict=True)) >= 2**30:
            common += 1  # head-room: the sum must fit the accumulator
        scale = np.asarray(2.0**common, np.float32)
        terms = tuple(
            Term(o.tensor, o.form, s, z, e - common, np.float32(1.0))
            for o, s, z, e in zip(kernel.operands, scales, zeros, exponents, strict=True)
        )
        for term in terms:
            if term.shift:
                self._rescales.append(
                    {"node": kernel.node, "tensor": term.tensor, "from": float(term.scale), "to": float(scale)}
                )
        bound = math.ceil(sum(p * 2.0 ** (e - common) + 1 for p, e in zip(peaks, exponents, strict=True)))
        self._bounds[kernel.output] = bound
        if kernel.form is Form.RAW:
            self._raw[kernel.output] = scale
            return Sum(kernel.node, terms, scale, np.float32(0), bound, None)
        requantize = self._requantize(kernel, scale, self._quantizers[kernel.output])
        return Sum(kernel.node, terms, scale, np.float32(0), bound, requantize)

    def _broadcast_last(self, kernel: Kernel) -> Kernel:
        """The operand that is broadcast goes second: the order decides which product is fused first."""
        sizes = [math.prod(self._graph.shapes[o.tensor]) for o in kernel.operands]
        return replace(kernel, operands=kernel.operands[::-1]) if sizes[0] < sizes[-1] else kernel

    def _product(self, kernel: Kernel) -> Product:
        a, b = (self._quantizers[o.tensor] for o in kernel.operands)
        out = self._quantizers[kernel.output]
        return Product(kernel.node, self._requantize(kernel, np.asarray(a.scale * b.scale, np.float32), out, True))

    def _average(self, kernel: Kernel, rule: OpRule) -> Average:
        data, out = self._quantizers[kernel.operands[0].tensor], self._quantizers[kernel.output]
        count = rule.count(self._graph.by_name[kernel.node], self._graph)
        bound = max(abs(data.low), abs(data.high)) * count
        if self._spec.requantize.kind is RequantizeKind.SHIFT:
            scale = np.asarray(data.scale / np.float32(count), np.float32)
            return Average(kernel.node, count, bound, self._requantize(kernel, scale, out))
        multiplier = np.asarray(rule.mean(np.float32(data.scale), np.float32(out.scale), count), np.float32)
        low, high = self._limits(kernel, out)
        kind = RequantizeKind.FLOAT_MULTIPLIER
        return Average(kernel.node, count, bound, Requantize(kind, multiplier, 0, out.zero_point, low, high))

    def _move(self, kernel: Kernel) -> Move:
        if kernel.form is Form.RAW:
            source = kernel.operands[0].tensor
            scale = self._raw[source]
            self._raw[kernel.output] = scale
            self._bounds[kernel.output] = self._bounds[source]
            low, high = (_steps(b, float(scale)) if scale.ndim == 0 else None for b in kernel.bounds)
            return Move(kernel.node, low, high)
        out = self._quantizers[kernel.output]
        if not any(math.isfinite(b) for b in kernel.bounds):
            return Move(kernel.node)
        low_q, high_q = self._limits(kernel, out)
        return Move(kernel.node, low_q, high_q)

    # --- numbers ----------------------------------------------------------------------------------------------------

    def _choose_weight(self, kernel: Kernel) -> None:
        """The weight's integers; its scale is raised where the bias would not fit its type at s_x·s_w."""
        tensor = kernel.weight or ""
        thresholds = np.asarray(self._strategy.weights[tensor], np.float64)
        weight = self._weights.get(tensor) or self._planner.weight(tensor, self._strategy.bits[tensor], thresholds)
        if tensor in self._overrides.weights:
            weight = self._overrides.weights[tensor]
        elif kernel.bias is not None:
            data = self._quantizers[kernel.operands[0].tensor]
            bias = np.abs(self._graph.constant(kernel.bias).astype(np.float64).reshape(-1))
            room = float(self._spec.bias.qmax) - self._reach(weight, data).astype(np.float64)
            if weight.axis is not None:
                room = np.minimum(room, MOST_BIAS_STEPS)
            needed = bias / np.maximum(room, 1.0) / float(data.scale)
            if weight.scale.ndim == 0:
                needed = np.asarray(needed.max())
            if np.any(needed > weight.scale):
                weight = self._raise_scale(kernel, weight, thresholds, needed)
        self._weights[tensor] = weight

    def _raise_scale(
        self, kernel: Kernel, weight: WeightTensor, thresholds: NDArray[np.float64], needed: NDArray[np.float64]
    ) -> WeightTensor:
        factor = np.maximum(1.0, needed / weight.scale * 1.0001)
        if self._schema.weights.power_of_two is not PowerOfTwo.NONE:
            factor = 2.0 ** np.ceil(np.log2(factor))
        # A channel of zeros has scale 1 whatever its threshold: give it one of its own, so that the factor acts on it.
        base = np.where(thresholds > 0, thresholds, weight.scale * np.float64(1 << (weight.bits - 1)))
        self._raised.append(
            {
                "node": kernel.node,
                "tensor": weight.tensor,
                "channels": int(np.sum(factor > 1)),
                "factor": float(np.max(factor)),
                "reason": "bias too large for its type or for exact sums at the scale input x weight",
            }
        )
        return self._planner.weight(weight.tensor, weight.bits, base * factor)

    def _bias(self, kernel: Kernel, acc_scale: NDArray[np.float32]) -> NDArray[np.int64] | None:
        if kernel.bias is None:
            return None
        real = self._overrides.biases.get(kernel.node)
        if real is None:
            real = self._graph.constant(kernel.bias).astype(np.float64).reshape(-1)
        steps = intmath.round_real(real / acc_scale.astype(np.float64))
        if np.any(np.abs(steps) > self._spec.bias.qmax):
            raise HardwareError(
                f"its bias needs {np.abs(steps).max():.4g} steps, {self._spec.bias} holds {self._spec.bias.qmax}",
                stage="plan",
                where=kernel.node,
            )
        return steps.astype(np.int64)

    def _constant(self, tensor: str) -> NDArray[Any]:
        q = self._quantizers[tensor]
        return intmath.quantize(self._graph.constant(tensor), q.scale, q.zero_point, q.qmin, q.qmax, q.dtype)

    def _requantize(
        self, kernel: Kernel, scale: NDArray[np.float32], out: Quantizer, zero_first: bool = False, clamp: bool = True
    ) -> Requantize:
        low, high = self._limits(kernel, out) if clamp else (out.qmin, out.qmax)
        kind = self._spec.requantize.kind
        if kind is RequantizeKind.FLOAT_MULTIPLIER:
            multiplier = np.asarray(scale / out.scale, np.float32)
            return Requantize(kind, multiplier, 0, out.zero_point, low, high, zero_first)
        shift = _exponent(out.scale, kernel.node) - _exponent(scale, kernel.node)
        if shift > self._spec.requantize.max_shift:
            raise HardwareError(
                f"needs a right shift by {shift}, the device shifts by at most {self._spec.requantize.max_shift}; "
                "its weights or inputs are too small for their threshold",
                stage="plan",
                where=kernel.node,
            )
        return Requantize(kind, np.asarray(2.0**-shift, np.float32), shift, out.zero_point, low, high)

    def _limits(self, kernel: Kernel, out: Quantizer) -> tuple[int, int]:
        """Bounds of q: the bits' own, narrowed by the clamps that the kernel swallowed."""
        low, high = (_steps(b, float(out.scale)) for b in kernel.bounds)
        q_low = out.qmin if low is None else min(max(out.qmin, low + out.zero_point), out.qmax)
        q_high = out.qmax if high is None else max(min(out.qmax, high + out.zero_point), out.qmin)
        return q_low, q_high

    def _reach(self, weight: WeightTensor, data: Quantizer) -> NDArray[np.int64]:
        return _reach(weight, self._topology.weight_of[weight.tensor].channel_axis, data)

    def _refuse_overflow(self, kernel: Kernel, bound: int) -> None:
        """Sums that an accumulator cannot hold are not simulated: no such plan leaves this module."""
        most = self._spec.accumulator.dtype.qmax
        if bound > most:
            raise HardwareError(
                f"its sums may reach {bound}, the {self._spec.accumulator.dtype} accumulator holds {most}; give its "
                "inputs or weights fewer bits, or keep it in float with annotate.float_nodes",
                stage="plan",
                where=kernel.node,
            )

    def _peak(self, tensor: str, form: Form) -> int:
        if form is Form.RAW:
            return self._bounds[tensor]
        quantizer = self._quantizers[tensor]
        return max(abs(quantizer.low), abs(quantizer.high))


def _reach(weight: WeightTensor, channel_axis: int, data: Quantizer) -> NDArray[np.int64]:
    """Greatest |Σ (q_x - z_x)·q_w| per output channel, `[C]`, for any input."""
    others = tuple(a for a in range(weight.values.ndim) if a != channel_axis)
    blocks = (np.abs(weight.values[rows].astype(np.int64)).sum(axis=others) for rows in row_blocks(weight.values))
    per_channel = np.concatenate(list(blocks)) if channel_axis == 0 else sum(blocks)
    return np.asarray(per_channel * max(abs(data.low), abs(data.high)), np.int64)


def _free_offset(terms: tuple[Term, ...], zero_point: int) -> np.float32:
    """z_y - (z_a·r_a + z_b·r_b) as onnxruntime's QLinearAdd forms it: the first product fused with the sum (FMA)."""
    a, b = terms
    second = np.float32(np.float32(b.zero_point) * b.ratio)
    both = intmath.fused_multiply_add(a.zero_point, a.ratio, second)
    return np.float32(np.float32(zero_point) - both)


def _exponent(scale: NDArray[np.float32], node: str) -> int:
    """k of a scale 2^k. Raises HardwareError when it is not a power of two."""
    mantissa, exponent = math.frexp(float(scale))
    if mantissa != 0.5:
        raise HardwareError(f"the scale {float(scale)!r} is not a power of two", stage="plan", where=node)
    return exponent - 1


def _steps(bound: float, scale: float) -> int | None:
    """A real clamp bound in integer steps, or None when it is infinite."""
    return int(intmath.round_real(bound / scale)) if math.isfinite(bound) else None
