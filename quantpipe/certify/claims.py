"""Claim what holds for one kernel.

The claims are that its sums stay in their type, that the simulated model carries them exactly, and that its result is
narrowed as specified. Otherwise it is the reason why the kernel is only checked on samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from quantpipe.arrays import EXACT_FLOAT32, Ints
from quantpipe.certify.counted_departures import departures
from quantpipe.extend import package_of
from quantpipe.graph.view import Graph
from quantpipe.hardware.storage import accumulators_of
from quantpipe.lowering.fragments import TRANSPOSED, is_window
from quantpipe.lowering.transpose import parts_of
from quantpipe.oprules.definitions import specified
from quantpipe.oprules.facts import product_terms
from quantpipe.plan.bounds import bounded, reach
from quantpipe.plan.saturating_pairs import largest_sum
from quantpipe.realize import OWN
from quantpipe.simulate.digit_sums import digits_for
from quantpipe.types import (
    Accumulate,
    Average,
    Contract,
    Device,
    Form,
    FunctionKind,
    HardwareSpec,
    Kernel,
    KernelPlan,
    Limit,
    Lookup,
    Overflow,
    Product,
    Program,
    QuantPlan,
    Requantize,
    RequantizeKind,
    Rounding,
    Sum,
    Topology,
)
from quantpipe.types.certificate_file import AccumulatorClaim, CarriedClaim, Claimed, KernelClaims, ProgramClaim

ENUMERATED = 1 << 16
"""Pairs of operands that are looked at one by one."""


@dataclass(eq=False)
class Claims:
    """Collects the claims of kernels in graph order; `_raw` remembers how large handed-on accumulators can be."""

    graph: Graph
    topology: Topology
    plan: QuantPlan
    spec: HardwareSpec
    form: str
    _raw: dict[str, int] = field(default_factory=dict)

    def of(self, kernel: Kernel) -> KernelClaims:
        """Return one kernel's entry of the certificate."""
        numbers = self.plan.kernels[kernel.node]
        writer: Writer = _WRITERS.get(type(numbers), Claims._move)
        reason = self._unproved(kernel, numbers)
        found: KernelClaims = {"proved": reason is None, "reason": reason, **writer(self, kernel, numbers)}
        narrowing = self.plan.narrowings.get(kernel.output)
        if narrowing is not None:
            peak = np.array([self._raw[kernel.output]])
            found["narrowing"] = departures(narrowing, -peak, peak).as_dict()
        return found

    # --- why something is only checked on samples ---------------------------------------------------------------------

    def _unproved(self, kernel: Kernel, numbers: KernelPlan) -> str | None:
        if self.form not in OWN:
            return f"the form {self.form!r} is of the plug-in package {package_of(self.form)}, and not known here"
        written_out = self.form == "integer"
        output = getattr(numbers, "output", None)
        if isinstance(numbers, Accumulate) and numbers.pairs is not None:
            return "pairs of its products can saturate in int16 on the device, and only samples show which do"
        if isinstance(numbers, Contract | Average) and self._is_open(kernel):
            return "how much it adds up depends on the shape of its input, which the model leaves open"
        if isinstance(numbers, Contract) and self._is_wide_product(kernel):
            return "it multiplies activations of more than 8 bits, in sums of 64 bits that the checker does not follow"
        if isinstance(numbers, Accumulate | Contract) and output is None and not written_out:
            return "its result is float, and the runtime adds in an order of its own"
        if isinstance(numbers, Program):
            return "it is a function of whole rows, whose program is run on drawn rows alone; its steps have bounds"
        if isinstance(numbers, Device):
            return f"the plug-in package {numbers.package} defines its arithmetic, compared with its interpreter"
        if isinstance(numbers, Lookup):
            return self._no_table(kernel, numbers)
        if isinstance(numbers, Sum) and numbers.scale is None and not _fits_double(numbers, self._peaks(numbers)):
            return "its operands lie too far apart for the sum to be exact in float64, and are too many to enumerate"
        if isinstance(numbers, Sum) and any(t.form is Form.RAW and t.fixed is not None for t in numbers.terms):
            return "an accumulator enters its fixed-point addition, and holds too many integers to enumerate"
        if written_out and isinstance(output, Requantize) and _rounds_in_steps(output):
            return f"rounding {output.rounding} of a float32 product takes several steps, which are not followed"
        return None

    def _no_table(self, kernel: Kernel, numbers: Lookup) -> str | None:
        stored = (self.plan.quantizers[t] for t in (kernel.operands[0].tensor, kernel.output))
        if self.form == "qdq" and numbers.defined and all(q.dtype.bits <= 8 for q in stored):
            return f"the runtime makes the table of {kernel.op} itself when it loads the model; the file has no table"
        if numbers.kind is not FunctionKind.TABLE:
            return f"its entries are formed as {numbers.kind} (docs/numerics.md), which the checker does not repeat"
        if numbers.interpolated:
            return "its entries are interpolated from 513 others (docs/numerics.md), which the checker does not do"
        if specified(self.graph.by_name[kernel.node], self.graph) is None:
            return f"the definition of {kernel.op} is not known to the certificate"
        return None

    def _is_wide_product(self, kernel: Kernel) -> bool:
        return any(self.plan.quantizers[o.tensor].dtype.bits > 8 for o in kernel.operands)

    def _is_open(self, kernel: Kernel) -> bool:
        if any(o.tensor in self.graph.varying for o in kernel.operands):
            return True
        return any(not isinstance(d, int) for i in self.graph.inputs for d in tuple(i.shape)[1:])

    # --- claims by kind -----------------------------------------------------------------------------------------------

    def _accumulate(self, kernel: Kernel, numbers: Accumulate) -> Claimed:
        data, weight = self.plan.quantizers[kernel.operands[0].tensor], self.plan.weights[numbers.weight]
        peaks = reach(self.topology, weight, data) + (0 if numbers.bias is None else np.abs(numbers.bias))
        self._raw[kernel.output] = bounded(numbers.bound, numbers.limit)
        sums = self._sums(kernel.node, numbers.bound, numbers.limit)
        found: Claimed = {"accumulator": sums, "carried": self._carried(kernel, numbers)}
        largest = largest_sum(self.graph, self.topology, kernel, weight, data=data)
        if largest is not None:
            found["pairs"] = {"largest": largest}
        return found | _narrowed(numbers.output, peaks, numbers.limit)

    def _carried(self, kernel: Kernel, numbers: Accumulate) -> CarriedClaim:
        """Return how the simulated model holds the sums."""
        if kernel.op in TRANSPOSED:
            parts = parts_of(self.plan, numbers, kernel)
            return {"by": "parts", "inputs": [[p.start, p.stop] for p in parts]}
        if numbers.exact_in_float32:
            return {"by": "float32"}
        data, weight = self.plan.quantizers[kernel.operands[0].tensor], self.plan.weights[numbers.weight]
        axis, peak = self.topology.weight_of[weight.tensor].channel_axis, max(abs(data.low), abs(data.high))
        of_data, of_weight = digits_for(weight, axis, peak, kernel.node)
        return {
            "by": "digits",
            "data": [of_data.count, of_data.bits],
            "weight": [of_weight.count, of_weight.bits],
        }

    def _contract(self, kernel: Kernel, numbers: Contract) -> Claimed:
        self._raw[kernel.output] = numbers.bound
        by = "float64" if self._is_wide_product(kernel) else "int32"
        by = "float32" if numbers.exact_in_float32 else by
        found: Claimed = {
            "given": {"products": product_terms(self.graph.by_name[kernel.node], self.graph)},
            "accumulator": self._sums(kernel.node, numbers.bound, None),
            "carried": {"by": by},
        }
        return found | _narrowed(numbers.output, np.array([numbers.bound]), None)

    def _sum(self, kernel: Kernel, numbers: Sum) -> Claimed:
        if numbers.scale is None:
            return {"carried": {"by": "float64"}, "requantize": {"pairs": self._pairs(numbers)}}
        if numbers.terms[0].fixed is not None:
            found: Claimed = {"carried": {"by": "int64"}}
            return found | _narrowed(numbers.output, np.array([numbers.bound]), None)
        self._raw[kernel.output] = bounded(numbers.bound, numbers.limit)
        found = self._counted(kernel, numbers.bound, numbers.limit)
        return found | _narrowed(numbers.output, np.array([numbers.bound]), numbers.limit)

    def _product(self, kernel: Kernel, numbers: Product) -> Claimed:
        return self._counted(kernel, numbers.bound) | _narrowed(numbers.output, np.array([numbers.bound]), None)

    def _average(self, kernel: Kernel, numbers: Average) -> Claimed:
        found: Claimed = {"given": {"elements": numbers.count}, **self._counted(kernel, numbers.bound)}
        if numbers.bound >= EXACT_FLOAT32 and is_window(self.graph.by_name[kernel.node]):
            found["carried"] = {"by": "bytes"}
        return found | _narrowed(numbers.output, np.array([numbers.bound]), None)

    def _lookup(self, kernel: Kernel, numbers: Lookup) -> Claimed:
        function = specified(self.graph.by_name[kernel.node], self.graph)
        return {"table": {"entries": int(numbers.table.size), "function": function}}

    def _program(self, kernel: Kernel, numbers: Program) -> Claimed:
        peak = max(max(abs(s.low), abs(s.high)) for s in numbers.steps)
        found: ProgramClaim = {"steps": len(numbers.steps), "bound": peak, "formed": numbers.kind}
        if not self._is_open(kernel):
            found["shapes"] = [list(self.graph.shapes[o.tensor]) for o in kernel.operands]
        return {"program": found}

    def _move(self, kernel: Kernel, numbers: KernelPlan) -> Claimed:
        if kernel.form is Form.RAW:
            self._raw[kernel.output] = self._raw[kernel.operands[0].tensor]
        return {}

    # --- pieces -------------------------------------------------------------------------------------------------------

    def _counted(self, kernel: Kernel, bound: int, limit: Limit | None = None) -> Claimed:
        return {"accumulator": self._sums(kernel.node, bound, limit), "carried": {"by": _float(bound)}}

    def _sums(self, node: str, bound: int, limit: Limit | None) -> AccumulatorClaim:
        may = accumulators_of(self.topology, self.spec, node)
        held = next((a for a in may if a.qmax >= bound), may[0])
        label = held.label if limit is None else limit.label
        return {"dtype": label, "bound": bound, "overflow": None if limit is None else limit.overflow}

    def _peaks(self, numbers: Sum) -> list[int]:
        """Return the maximum |q| of each operand, its zero point included."""
        found = []
        for term in numbers.terms:
            q = self.plan.quantizers.get(term.tensor)
            stored = term.form is Form.QUANTIZED and q is not None
            found.append(max(abs(q.qmin), abs(q.qmax)) if stored and q is not None else self._raw[term.tensor])
        return found

    def _pairs(self, numbers: Sum) -> int:
        """Return the number of pairs of stored operands."""
        count = 1
        for term in numbers.terms:
            q = self.plan.quantizers.get(term.tensor)
            stored = term.form is Form.QUANTIZED and q is not None
            count *= q.qmax - q.qmin + 1 if stored and q is not None else 2 * self._raw[term.tensor] + 1
        return count


Writer = Callable[..., Claimed]

_WRITERS: Mapping[type, Writer] = {
    Accumulate: Claims._accumulate,
    Contract: Claims._contract,
    Sum: Claims._sum,
    Product: Claims._product,
    Average: Claims._average,
    Lookup: Claims._lookup,
    Program: Claims._program,
}
"""Kinds not named here move values."""


def _narrowed(output: Requantize | None, peaks: Ints, limit: Limit | None) -> Claimed:
    """Return the claim for sums up to `peaks`, `[C]`, or for the sums that the accumulator keeps."""
    if output is None:
        return {}
    low, high = -np.asarray(peaks, np.int64), np.asarray(peaks, np.int64)
    if limit is not None and limit.overflow is Overflow.SATURATE:
        low, high = np.maximum(low, limit.qmin), np.minimum(high, limit.qmax)
    elif limit is not None:
        low, high = (np.array([v], np.int64) for v in (limit.qmin, limit.qmax))
    return {"requantize": departures(output, low, high).as_dict()}


def _float(bound: int) -> str:
    return "float32" if bound < EXACT_FLOAT32 else "float64"


def _rounds_in_steps(output: Requantize) -> bool:
    """Return whether the integer form writes the rounding of a float product in more than one op."""
    plain = (Rounding.HALF_EVEN, Rounding.FLOOR)
    return output.kind is RequantizeKind.FLOAT_MULTIPLIER and Rounding(output.rounding) not in plain


def _fits_double(numbers: Sum, peaks: list[int]) -> bool:
    """Return whether q_a·r_a + q_b·r_b + offset is a sum of so few bits that float64 rounds nothing of it.

    Casting it is then the one rounding of a fused multiply-add. All of it are multiples of the finest last bit of the
    three.
    """
    values = [*(float(v) for t in numbers.terms for v in t.ratio.reshape(-1)), float(numbers.offset)]
    quantum = min((_last_bit(v) for v in values if v), default=0)
    most = sum(p * float(np.max(np.abs(t.ratio))) for p, t in zip(peaks, numbers.terms, strict=True))
    return (most + abs(float(numbers.offset))) * 1.01 < 2.0 ** (quantum + 53)


def _last_bit(value: float) -> int:
    """Return the exponent of the lowest bit that is set."""
    numerator, denominator = value.as_integer_ratio()
    return (numerator & -numerator).bit_length() - 1 - (denominator.bit_length() - 1)
