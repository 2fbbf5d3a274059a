"""How LiteRT's kernels narrow their sums, by op; a plan that narrows otherwise is not what a .tflite file computes.

Reference kernels round twice (gemmlowp). fully_connected.h rounds once, ties away from zero. Several 16x8 kernels
multiply by 15 bits. XNNPACK multiplies by float32, and adds by integers and one shift. Measured with ai-edge-litert
2.3.0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from quantpipe.graph.view import Graph
from quantpipe.oprules import NARROWED, OP_RULES, Family
from quantpipe.realize.tflite.run import LiteRTKernels
from quantpipe.types import (
    Contract,
    FixedRounding,
    HardwareSpec,
    QuantPlan,
    Requantize,
    RequantizeKind,
    RequantizeSpec,
    Rounding,
    Topology,
)

NAMED = 3
"""Kernels that a reason names."""


@dataclass(frozen=True)
class NarrowingTraits:
    """Hold the traits of a narrowing that decide its integers, as a hardware file states them.

    `bits` are the bits of a fixed-point multiplier; `single_ratio`: it is made of a ratio computed in float32.
    """

    kind: RequantizeKind
    rounding: Rounding | FixedRounding
    bits: int = 31
    zero_first: bool = False
    single_ratio: bool = False

    @classmethod
    def of(cls, output: Requantize) -> NarrowingTraits:
        """Return the traits of a plan's numbers."""
        bits, single = (31, False) if output.fixed is None else (output.fixed.bits, output.fixed.single_ratio)
        return cls(output.kind, output.rounding, bits, output.zero_first, single)

    @classmethod
    def stated(cls, how: RequantizeSpec) -> NarrowingTraits:
        """Return the traits that a hardware file states."""
        once = how.rounding is FixedRounding.COMMON_SHIFT
        rounding = FixedRounding.SINGLE if once else how.rounding
        return cls(how.kind, rounding, how.multiplier_bits, bool(how.zero_first), how.single_ratio)

    def __str__(self) -> str:
        """Return them as the keys of a hardware file have them."""
        bits = f", multiplier_bits {self.bits}" if self.bits != 31 else ""
        ratio = ", ratio float32" if self.single_ratio else ""
        return f"{self.kind}, rounding {self.rounding}{bits}{ratio}{', zero first' if self.zero_first else ''}"


TWICE = NarrowingTraits(RequantizeKind.FIXED_POINT, FixedRounding.DOUBLE)
ONCE = NarrowingTraits(RequantizeKind.FIXED_POINT, FixedRounding.SINGLE)
AWAY = NarrowingTraits(RequantizeKind.FIXED_POINT, FixedRounding.SINGLE_AWAY)
RATIO = NarrowingTraits(RequantizeKind.FIXED_POINT, FixedRounding.DOUBLE, single_ratio=True)
SHORT = NarrowingTraits(RequantizeKind.FIXED_POINT, FixedRounding.SINGLE, bits=15)
REAL = NarrowingTraits(RequantizeKind.FLOAT_MULTIPLIER, Rounding.HALF_EVEN)
ZERO_FIRST = NarrowingTraits(RequantizeKind.FLOAT_MULTIPLIER, Rounding.HALF_EVEN, zero_first=True)

_BYTES: Mapping[str, NarrowingTraits] = {"Gemm": AWAY, "MatMul": AWAY, "Mul": RATIO}
_WORDS: Mapping[str, NarrowingTraits] = {**_BYTES, **dict.fromkeys(("Conv", "ConvTranspose", "AveragePool"), SHORT)}
_XNNPACK: Mapping[str, NarrowingTraits] = {
    **dict.fromkeys(("Add", "Sub"), ONCE),
    **dict.fromkeys(("GlobalAveragePool", "ReduceMean", "ReduceSum"), ZERO_FIRST),
}
"""Op -> how it narrows, where it does so otherwise than the kernels' other ops."""


def own_narrowing(kernels: LiteRTKernels, op: str, *, wide: bool, contract: bool) -> NarrowingTraits:
    """Return how a kernel of LiteRT narrows: `wide` operands have 16 bits, a `contract` multiplies two activations."""
    if kernels is LiteRTKernels.XNNPACK:
        return _XNNPACK.get(op, REAL)
    if contract:
        return SHORT if wide else TWICE
    return (_WORDS if wide else _BYTES).get(op, TWICE)


def stated_departures(topology: Topology, spec: HardwareSpec) -> Iterator[str]:
    """Yield the kernels whose narrowing, as a hardware file states it, is not LiteRT's, before any number is known."""
    wide = {t for g in topology.groups for t in g.tensors if g.dtype.bits > 8}
    real = any(how.kind is RequantizeKind.FLOAT_MULTIPLIER for how in spec.requantizations)
    for kernel in topology.kernels:
        if OP_RULES[kernel.op].family not in NARROWED:
            continue
        traits = {
            "wide": any(o.tensor in wide for o in kernel.operands),
            "contract": OP_RULES[kernel.op].family is Family.ACCUMULATE and kernel.weight is None,
        }
        wanted = own_narrowing(LiteRTKernels.XNNPACK if real else LiteRTKernels.REFERENCE, kernel.op, **traits)
        for signature in topology.signatures.get(kernel.node, ()):
            own = NarrowingTraits.stated(signature.requantize or spec.requantize)
            if own != wanted:
                yield f"{kernel.node} ({kernel.op}) is stated as {own}, there it is {wanted}"
                break


def departures(kernels: LiteRTKernels, graph: Graph, topology: Topology, plan: QuantPlan) -> str | None:
    """Return why LiteRT's kernels do not compute the plan's integers; None where they do."""
    found = list(_departures(kernels, graph, topology, plan))
    if not found:
        return None
    more = f", and {len(found) - NAMED} more" if len(found) > NAMED else ""
    return f"LiteRT's kernels round otherwise: {'; '.join(found[:NAMED])}{more}"


def _departures(kernels: LiteRTKernels, graph: Graph, topology: Topology, plan: QuantPlan) -> Iterator[str]:
    for name, numbers in plan.kernels.items():
        output = getattr(numbers, "output", None)
        if output is None:
            continue
        op = graph.by_name[name].op
        wide = any(plan.quantizers[o.tensor].dtype.bits > 8 for o in topology.kernel_of[name].operands)
        wanted = own_narrowing(kernels, op, wide=wide, contract=isinstance(numbers, Contract))
        if (own := NarrowingTraits.of(output)) != wanted:
            yield f"{name} ({op}) is planned as {own}, there it is {wanted}"
