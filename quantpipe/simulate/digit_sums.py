"""Sums of products that float32 cannot hold, as several that it can.

Float32 holds integers below 2^24 exactly. Where the sums of a layer may be larger (16-bit operands, many inputs), data
and weights are split into digits. They are x = Σ x_j and w = Σ w_i, each digit an integer of few bits times a power of
two. Every Σ x_j·w_i is exact in float32 then, and they are added in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import EXACT_FLOAT32
from quantpipe.errors import HardwareError
from quantpipe.graph.build import GraphBuilder
from quantpipe.types import WeightTensor

MOST = 6
"""Digits of one operand."""

BLOCK = 1 << 20
"""Weights looked at together."""


@dataclass(frozen=True)
class Digits:
    """Split integers into `count` digits, each `bits` wide but for the first, which holds the rest.

    Digit j (the last one is 0) is an integer times 2^(j·bits); but for the first they are at most 2^(bits-1) in
    magnitude.
    """

    count: int
    bits: int

    def of(self, value: NDArray[Any]) -> Iterator[NDArray[Any]]:
        """Yield the integers of all digits of integral values, in order; ties go to even, as in the graph."""
        for place in range(self.count - 1, 0, -1):
            step = 1 << (place * self.bits)
            whole = intmath.round_real(value / step).astype(value.dtype)
            yield whole
            value = value - whole * step
        yield value

    def peak(self, most: int) -> int:
        """Return the maximum magnitude of these integers, for values up to `most`."""
        first = int(intmath.round_real(most / (1 << ((self.count - 1) * self.bits))))
        return first if self.count == 1 else max(first, 1 << (self.bits - 1))

    def write(self, b: GraphBuilder, value: ir.Value, name: str) -> list[ir.Value]:
        """Return the digits of integer-valued float32, each with its power of two."""
        found = []
        for place in range(self.count - 1, 0, -1):
            at, step = f"{name}/digit{place}", np.array(1 << (place * self.bits), np.float32)
            steps = b.op("Mul", value, b.constant(f"{at}/down", np.reciprocal(step)), name=f"{at}/steps")
            whole = b.op("Round", steps, name=f"{at}/whole")
            found.append(b.op("Mul", whole, b.constant(f"{at}/up", step), name=at))
            value = b.op("Sub", value, found[-1], name=f"{at}/rest")
        return [*found, value]


def digits_for(weight: WeightTensor, channel_axis: int, peak: int, node: str) -> tuple[Digits, Digits]:
    """Return the digits of the data and of the weight: the fewest products whose sums float32 holds.

    `peak` is the largest |q_x - z_x|. Raises HardwareError where `MOST` digits of each operand do not suffice: sums of
    millions of products.
    """
    found: tuple[Digits, Digits] | None = None
    for own in _splits(_peak(weight)):
        if found is not None and own.count >= found[0].count * found[1].count:
            break
        room = (EXACT_FLOAT32 - 1) // max(1, _reach(weight, channel_axis, own))
        other = next((d for d in _splits(peak) if d.peak(peak) <= room), None)
        if other is not None and (found is None or other.count * own.count < found[0].count * found[1].count):
            found = other, own
    if found is None:
        raise HardwareError(
            f"its sums of products are too long for an exact simulation. Even with up to {MOST} digits for data and "
            f"weights they may reach {EXACT_FLOAT32}, where float32 cannot represent every integer. Keep this node in "
            "float with annotate.float_nodes",
            stage="simulate",
            where=node,
        )
    return found


def _peak(weight: WeightTensor) -> int:
    """Return the maximum |q - z| that the weight's type allows."""
    least, most = weight.dtype.qmin, weight.dtype.qmax
    return most - least if weight.has_zero_point else max(-least, most)


def _splits(peak: int) -> Iterator[Digits]:
    """Yield one digit, two, and so on, each as narrow as it can be."""
    yield Digits(1, 0)
    for count in range(2, MOST + 1):
        yield min((Digits(count, bits) for bits in range(1, 17)), key=lambda d: d.peak(peak))


def _reach(weight: WeightTensor, channel_axis: int, digits: Digits) -> int:
    """Return the maximum Σ|w_i| of any output channel and digit."""
    shape = weight.values.shape
    rows = max(1, BLOCK // max(1, weight.values.size // shape[0]))
    others = tuple(a for a in range(len(shape)) if a != channel_axis)
    sums = np.zeros((digits.count, shape[channel_axis]), np.int64)
    for first in range(0, shape[0], rows):
        part = slice(first, first + rows)
        target = sums[:, part] if channel_axis == 0 else sums
        for total, whole in zip(target, digits.of(weight.centred(part).astype(np.int32)), strict=True):
            total += np.abs(whole).sum(axis=others, dtype=np.int64)
    return int(sums.max(initial=0))
