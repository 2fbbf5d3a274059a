"""List explanations of a kernel with other integers: each field of the hardware file, and known mistakes.

One table for both commands: `compare` asks which single alternative gives what a device gave, `identify` which values
of a field agree with all probes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from quantpipe.conform.describe import Change, Described
from quantpipe.conform.faults import NONE, Fault
from quantpipe.conform.numpy_kernels import RepeatedKernel
from quantpipe.hardware.reader import LEAST_MULTIPLIER, ROUNDINGS
from quantpipe.types import MULTIPLIER_BITS, DType, Isa, Kernel, Limit, Overflow, RequantizeKind, Unify

WIDTHS = (8, 10, 12, 15, 16, 18, 24)
"""Bits of fixed-point multipliers that are tried first beside 31."""
ALL_WIDTHS = range(LEAST_MULTIPLIER, MULTIPLIER_BITS)
"""Every number of them that a hardware file may say, but 31."""
DTYPES = (DType.INT16, DType.INT32)


@dataclass(frozen=True, eq=False)
class Alternative:
    """Hold one way in which a kernel may depart from its plan.

    `field`: The field of the hardware file, or of the kernel (`conv.pads`, `bias`, …). `value`: Its other value.
    `site`: The kernel with the resulting numbers. `fault`: Its additional fault. `change`: The change of the hardware
    file; empty for a mistake outside such files.
    """

    field: str
    value: str
    site: RepeatedKernel
    fault: Fault = NONE
    change: Change | None = None


def narrowings(widths: Sequence[int] = WIDTHS) -> Iterator[dict[str, Any]]:
    """Yield every legal `requantize` of a hardware file; `widths`: also those with fewer bits of the multiplier."""
    for kind, roundings in ROUNDINGS.items():
        for rounding in roundings:
            how = {"kind": str(kind), "rounding": str(rounding)}
            yield how
            for bits in widths if kind is RequantizeKind.FIXED_POINT else ():
                yield {**how, "multiplier_bits": bits}


def limits() -> Iterator[Limit]:
    """Yield accumulators that may hold fewer sums than the plan's."""
    for dtype, overflow in itertools.product(DTYPES, (Overflow.WRAP, Overflow.SATURATE)):
        yield Limit(dtype, overflow)


def changes(kernel: Kernel) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield (field, value, change of the file) of every field that decides what a kernel computes."""
    for how in narrowings(()):
        text = f"{how['kind']}, rounding {how['rounding']}"
        free = {"unify": "free"} if how["kind"] != RequantizeKind.SHIFT else {}
        yield "requantize", text, {f"ops.{kernel.op}.requantize": how}
        yield "requantize", text, {"requantize": how, **free}
    for unify in Unify:
        yield "unify", str(unify), {"unify": str(unify)}
    for isa in Isa:
        yield "isa", str(isa), {"isa": str(isa)}


def alternatives(described: Described, made: RepeatedKernel) -> Iterator[Alternative]:
    """Yield every way in which a kernel, or what narrows its accumulator, may depart, the likeliest first."""
    kernel, narrows = made.kernel, made.narrows
    own = described.site(kernel, {}, narrows=narrows)
    if own is None:
        return
    seen: list[str] = []
    for name, value, change in changes(kernel):
        site = described.site(kernel, change, narrows=narrows)
        if site is not None and f"{name}: {value}" not in seen:
            seen.append(f"{name}: {value}")
            yield Alternative(name, value, site, change=change)
    yield from _widths(described, own)
    for limit in limits():
        yield Alternative("accumulator", f"{limit.label}, overflow {limit.overflow}", own, Fault(limit=limit))
    yield Alternative("narrowing", "wrap", own, Fault(wraps=True))
    yield from _mistakes(own)


def _widths(described: Described, own: RepeatedKernel) -> Iterator[Alternative]:
    """Yield the kernel with a fixed-point multiplier of other widths."""
    output = own.output
    if output is None or output.fixed is None or output.rounding not in ROUNDINGS[RequantizeKind.FIXED_POINT]:
        return
    for bits in (*ALL_WIDTHS, MULTIPLIER_BITS):
        how = {"kind": str(output.kind), "rounding": str(output.rounding), "multiplier_bits": bits}
        change = {f"ops.{own.kernel.op}.requantize": how}
        site = described.site(own.kernel, change, narrows=own.narrows)
        if site is not None and bits != output.fixed.bits:
            yield Alternative("requantize.multiplier_bits", str(bits), site, change=change)


def _mistakes(own: RepeatedKernel) -> Iterator[Alternative]:
    """Return the common mistakes of hardware and simulators that no hardware file describes."""
    rank = len(own.net.graph.shapes[own.node.outputs[0]]) - 2
    if own.narrows:
        return
    has_window = hasattr(own.numbers, "weight") and own.net.plan.weights[str(own.kernel.weight)].values.ndim > 2
    yield Alternative("pad.value", "zero", own, Fault(pads_zero=True))
    if has_window or hasattr(own.numbers, "count"):
        moves = sorted(itertools.product((-1, 0, 1), repeat=rank), key=lambda m: sum(map(abs, m)))
        for by in moves[1:]:
            yield Alternative("pads", f"windows moved by {list(by)}: a pad off by one", own, Fault(shift=by))
    yield Alternative("bias", "left out", own, Fault(no_bias=True))
    yield Alternative("clamp", "the bounds of the fused activation are left out", own, Fault(no_clamp=True))
    yield Alternative("zero_point", "not taken off the operands", own, Fault(no_zero_point=True))
