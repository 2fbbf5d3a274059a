"""What the checks of all kinds of kernels have in common: operands, results, bounds, multipliers, exact sums."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantpipe.verify.checked_digits import expect_digits, expect_parts
from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.fused import Fused, FusedOperand
from quantpipe.verify.numbers import EXACT, limits
from quantpipe.verify.scales import expect_multiplier, expect_same
from quantpipe.verify.step_functions import ClaimedNarrowing
from quantpipe.verify.wraps import name_of, overflow_of
from quantpipe.verify.written import Reach, Written, expect_claim, narrowing_equal

Array = NDArray[Any]
Ints = NDArray[np.int64]


ZERO = {True: "first", False: "last"}
"""Where a zero point is added, as a plan has it and as a hardware file has it."""


def _zero(requantize: Mapping[str, Any]) -> str | None:
    word = requantize.get("zero", ZERO.get(requantize.get("zero_first")))  # type: ignore[arg-type]
    return None if word is None else str(word)


def _kernels(device: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The device's kernels of several ops: a list, by name in folders whose origins have format 1."""
    found = device.get("kernels") or []
    return list(found.values() if isinstance(found, Mapping) else found)


class Pieces(Written):
    """Hold a kernel with the checks that several kinds of it share."""

    def _has_pairs(self) -> bool:
        pairs = bool(self.plan.get("saturating_pairs"))
        may = self._hardware().get("isa") == "avx2" and self.numbers.form == "integer"
        expect(not pairs or may, self.node,
               "pairs of its products saturate, which the hardware does not do")  # fmt: skip
        return pairs

    def _hardware(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.numbers.plan["origin"]["config"]["hardware"]
        return found

    def _ways(self) -> list[Mapping[str, Any]]:
        """The device's signatures of this op, also inside its kernels of several ops after its own."""
        device, op = self._hardware(), self.plan["op"]
        ways = device.get("ops", {}).get(op, [])
        inside = [of for kernel in _kernels(device) for of in kernel.get("signatures", {}).values()]
        return [*([ways] if isinstance(ways, Mapping) else ways), *(way for of in inside for way in of.get(op, ()))]

    def _accumulators(self) -> list[Mapping[str, Any] | str]:
        """What the device lets this op hold its sums in: as some signature or kernel says, or as the device."""
        own = [way.get("accumulator") for way in self._ways()]
        for kernel in _kernels(self._hardware()):  # of a folder whose origins have format 1: by value
            own += list((kernel.get("accumulator") or {}).values())
        return [*(a for a in own if a is not None), self._hardware().get("accumulator", {})]

    def _zero_said(self) -> str | None:
        """Where the device adds this op's zero point, if declared; the op's own word goes first."""
        places = [way.get("requantize") for way in self._ways()]
        own = [place for place in places if place is not None] or [self._hardware().get("requantize")]
        found = [word for place in own if isinstance(place, Mapping) and (word := _zero(place)) is not None]
        return found[0] if found else None

    def _unscaled(self) -> None:
        """The parts of a `requantize` entry that do not depend on scales."""
        expect(not self._has_pairs(), self.node, "pairs of its products saturate, which is not proved")
        if "requantize" not in self.plan:
            return
        numbers, kind = self.plan["requantize"], self.plan["kind"]
        free = kind == "sum" and self.plan["scale"] is None
        first = numbers["kind"] == "float_multiplier" and (kind == "product" or free)
        said = self._zero_said()
        if said is not None and numbers["kind"] == "float_multiplier" and kind != "sum":
            first = said == "first"
        expect(numbers["zero_first"] is first, self.node, "its zero point is added at another place")
        expect(numbers["kind"] == "shift" or numbers["shift"] == 0, self.node, "it has a shift, unlike its kind")
        if free:
            expect(numbers["multiplier"] == 1 and self.plan["accumulator_bound"] == 0, self.node,
                   "an addition in float32 has no multiplier and no bound")  # fmt: skip
        q = self.numbers.quantizer(self.plan["result"]["tensor"])
        expect(
            numbers["zero_point"] == q["zero_point"],
            self.node,
            "the zero point of its requantization is not its result's",
        )
        inside = q["range"][0] <= numbers["range"][0] <= numbers["range"][1] <= q["range"][1]
        expect(inside, self.node, f"it is clamped to {numbers['range']}, its result holds {q['range']}")

    def _bounded(self) -> int:
        bound, overflow = int(self.plan.get("accumulator_bound", 0)), self.plan.get("overflow")
        return bound if not overflow else min(bound, -limits(overflow["accumulator"])[0])

    def _operand(self, found: FusedOperand, tensor: str) -> None:
        """A fused kernel reads a stored tensor with that tensor's own scale and zero point."""
        scale, zero = self.numbers.grid(tensor)
        expect(found.value == self.numbers.value(tensor), self.node, f"it reads {found.value} in place of {tensor}")
        expect_same(scale, found.scale, self.node, f"scale of {tensor}")
        expect(int(found.zero.reshape(-1)[0]) == zero, self.node, f"the zero point of {tensor} differs from plan.json")

    def _stored(self, found: Fused) -> None:
        """Its result has the scale, the zero point and the bounds of plan.json."""
        made = self.plan["result"]
        if made["form"] != "quantized":
            expect(found.out is None and found.clip is None, self.node, "it stores its result, unlike plan.json")
            return
        if found.out is None:
            raise Wrong(self.node, "its result is not stored")
        scale, zero = self.numbers.grid(made["tensor"])
        expect_same(scale, found.out[0], self.node, "result's scale")
        expect(int(found.out[1].reshape(-1)[0]) == zero, self.node, "its result's zero point differs from plan.json")
        numbers = self.plan["requantize"]
        expect(numbers["zero_point"] == zero, self.node, "the zero point of its requantization is not its result's")
        kernel = numbers["kind"] == "float_multiplier" and numbers["rounding"] == "half_even"
        expect(kernel, self.node, "kernels requantize in float32, ties to even; plan.json has another way")
        limit = np.iinfo(found.out[1].dtype)
        bounds = [int(limit.min), int(limit.max)]
        if found.clip is not None:
            bounds = [max(bounds[0], int(found.clip[0])), min(bounds[1], int(found.clip[1]))]
        expect(bounds == [int(v) for v in numbers["range"]], self.node,
               f"its result is clipped to {bounds}, plan.json says {numbers['range']}")  # fmt: skip

    def _departures(self, peaks: Ints) -> None:
        """Of a fused kernel, which is its specification: where that departs from the exact product."""
        if "requantize" in self.plan:
            claim = self.numbers.claims[self.node].get("requantize", {})
            expect_claim(claim, ClaimedNarrowing(self.plan["requantize"], -peaks, peaks).departures(claim), self.node)

    def _multiplier(self, exact: Any) -> None:
        scale, zero = self.numbers.grid(self.plan["result"]["tensor"])
        expect_multiplier(self.plan["requantize"], np.asarray(exact, np.float64), scale, self.node)
        expect(self.plan["requantize"]["zero_point"] == zero, self.node, "its zero point is not its result's")

    def _scale_of(self, tensor: str) -> np.float32:
        return self.numbers.grid(tensor)[0]

    def _half(self) -> int:
        """The rounding constant of a shift."""
        shift = int(self.plan["requantize"]["shift"]) if "requantize" in self.plan else 0
        return 1 << (shift - 1) if shift > 0 else 0

    def _bound(self, found: int) -> None:
        """The claimed bound follows from the weights in the model, and it fits the accumulator."""
        claim, overflow = self.numbers.claims[self.node]["accumulator"], self.plan.get("overflow")
        for where, bound in (("plan.json", self.plan["accumulator_bound"]), ("the certificate", claim["bound"])):
            expect(bound == found, self.node, f"its sums reach {found}, {where} says {bound}")
        may = {name_of(device): device for device in self._accumulators()}
        expect(claim["dtype"] in may, self.node, "the accumulator differs from the hardware")
        device = may[claim["dtype"]]
        expect(claim["overflow"] == (overflow["overflow"] if overflow else None), self.node,
               "the certificate and plan.json differ about overflow")  # fmt: skip
        most = limits(claim["dtype"])[1]
        if found > most:
            if not overflow:
                raise Wrong(self.node, f"its sums reach {found}, {claim['dtype']} holds {most}")
            expect(overflow["overflow"] == overflow_of(device) and overflow["accumulator"] == claim["dtype"],
                   self.node, "its overflow differs from the hardware")  # fmt: skip
        else:
            expect(not overflow, self.node, "no sum of it can overflow, plan.json models an overflow")
        self.numbers.raw[self.plan["result"]["tensor"]] = self._bounded()
        if self.plan["result"]["form"] == "raw":
            own = self.plan["accumulator_scale"] if "accumulator_scale" in self.plan else self.plan["scale"]
            expect_same(
                self.numbers.plan["accumulators"][self.plan["result"]["tensor"]], own, self.node, "handed-on scale"
            )

    def _carried(self, weight: Array, peaks: Ints, data: str) -> None:
        """How the simulated model holds the sums: every float32 one stays below 2^24."""
        carried = self.numbers.claims[self.node]["carried"]
        axis = int(self.numbers.plan["weights"][self.plan["weight"]]["channel_axis"])
        if carried["by"] == "float32":
            most = int(np.max(peaks)) + self._half()
            expect(most < EXACT, self.node, f"its sums reach {most}, which float32 does not hold exactly")
        elif carried["by"] == "digits":
            expect_digits(weight, axis, self.numbers.peak(data), carried, where=self.node)
            expect(int(np.max(peaks)) < 1 << 53, self.node, "its sums are too large for float64")
        elif carried["by"] == "parts":
            expect_parts(weight, peaks, self.numbers.peak(data), carried["inputs"], half=self._half(), where=self.node)
        else:
            raise Wrong(self.node, f"sums carried by {carried['by']!r} are unknown")

    def _carried_by(self, found: str) -> None:
        claimed = self.numbers.claims[self.node]["carried"].get("by")
        expect(claimed == found, self.node, f"in the certificate {claimed} carries its sums, but {found} must")

    def _count(self, term: Mapping[str, Any]) -> int:
        stored = term["form"] == "quantized"
        return self.numbers.codes(term["tensor"]).size if stored else 2 * self.numbers.peak(term["tensor"], "raw") + 1

    def _peak_with_zero(self, term: Mapping[str, Any]) -> int:
        """Maximum |q| of an operand, zero point included."""
        if term["form"] != "quantized":
            return self.numbers.peak(term["tensor"], "raw")
        return int(np.max(np.abs(self.numbers.codes(term["tensor"]).astype(np.int64))))

    def _narrowing(self, numbers: Mapping[str, Any], claim: Mapping[str, Any]) -> None:
        """An accumulator that is also stored, for those who read it narrow."""
        tensor = self.plan["result"]["tensor"]
        if self.numbers.form != "integer" or tensor not in self.numbers.certificate["values"]:
            return
        result, peak = self.numbers.value(tensor), np.array([self.numbers.raw[tensor]], np.int64)
        dtype = self._raw_type()
        types = {self.numbers.value(tensor, "raw"): dtype}
        narrowing_equal(
            self.model,
            result,
            types,
            numbers,
            reach=Reach(-peak, peak, None),
            claim=claim,
            where=f"{tensor} (narrowed)",
        )
        scale, zero = self.numbers.grid(tensor)
        common = np.asarray(self.numbers.plan["accumulators"][tensor], np.float64)
        expect_multiplier(numbers, common, scale, f"{tensor} (narrowed)")
        expect(numbers["zero_point"] == zero, f"{tensor} (narrowed)", "its zero point is not its quantizer's")
        expect(numbers["zero_first"] is False, f"{tensor} (narrowed)", "its zero point is added at another place")

    def _raw_type(self) -> np.dtype[Any]:
        wide = int(self.numbers.raw[self.plan["result"]["tensor"]]) > (1 << 31) - 1
        return np.dtype(np.int64 if wide else np.int32)
