"""Check one kernel, by the kind that plan.json gives it.

Its numbers in the model must equal those in the plan, its bounds must follow from its weights, and each claim of the
certificate must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.verify.additions import Addition, expect_exact
from quantpipe.verify.checked_moves import Moved
from quantpipe.verify.checked_tables import expect_table
from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.fused import Fused, fused
from quantpipe.verify.grammar import check_kernel
from quantpipe.verify.numbers import EXACT, along, checked_weight, limits, reach
from quantpipe.verify.ops import attribute
from quantpipe.verify.pieces import Pieces
from quantpipe.verify.programs import expect_function, expect_program
from quantpipe.verify.scales import (
    addition_offset,
    expect_multiplier,
    expect_same,
    expect_shared,
    mean_of_map,
    mean_of_window,
)
from quantpipe.verify.written import expect_claim

Array = NDArray[Any]
Ints = NDArray[np.int64]


class KernelCheck(Pieces):
    """Check one kernel of the plan, whichever way the model writes it."""

    def check(self) -> None:
        """Raise Wrong with the first thing that does not hold."""
        kind = self.plan["kind"]
        expect(kind in _CHECKS, self.node, f"the kind {kind!r} is unknown")
        claim = self.numbers.claims[self.node]
        expect(kind != "device" or not claim["proved"], self.node, "arithmetic of a plug-in package claims a proof")
        if not claim["proved"] and self._is_left_alone(kind):
            self._left_alone(kind)
            return
        self._unscaled()
        _CHECKS[kind](self)
        narrowing = self.numbers.plan["narrowings"].get(self.plan["result"]["tensor"])
        if narrowing is not None and self.plan["result"]["form"] == "raw":
            self._narrowing(narrowing, claim.get("narrowing", {}))

    def _is_left_alone(self, kind: str) -> bool:
        """What is not proved and has no structure that could be followed."""
        fixed = kind == "sum" and "q31" in self.plan["terms"][0] and any(t["form"] == "raw" for t in self.plan["terms"])
        reads = [str(self.numbers.quantizer(r["tensor"])["dtype"]) for r in self.plan["reads"] if kind == "contract"]
        wide = any(dtype.endswith("16") for dtype in reads)
        alone = kind in ("lookup", "program", "device")
        return alone or wide or fixed or self._has_pairs() or self._rounds_in_steps()

    def _rounds_in_steps(self) -> bool:
        numbers = self.plan.get("requantize", {"kind": ""})
        written = self.numbers.form == "integer" and numbers["kind"] == "float_multiplier"
        return written and numbers["rounding"] not in ("half_even", "floor")

    def _left_alone(self, kind: str) -> None:
        """Nothing is proved; but the model has the plan's table, and makes of drawn rows what the plan's steps make."""
        nodes = self._behind()
        compared = kind in ("program", "lookup")
        if kind == "lookup" and self.numbers.form == "integer":
            self._same_table()
        elif compared:
            check_kernel(self.node, self.plan, nodes)  # before anything of the file is run
            check = expect_program if kind == "program" else expect_function
            compared = check(self.numbers, self.node, self.result, nodes)
        if not compared:
            self.numbers.uncompared.append(self.node)

    def _skip(self) -> None:
        """Skip the ops that make the result: they are not checked."""
        self._behind()

    def _behind(self) -> list[onnx.NodeProto]:
        """Return the ops that make the result, back to other kernels."""
        made = self.plan["result"]
        self.numbers.raw[made["tensor"]] = self._bounded()
        pending, found = [self.result], []
        while pending:
            at = pending.pop()
            node = self.model.producer.get(at)
            if at in self.stops:
                continue
            if node is None:
                self.model.seen_constants.add(at)
                continue
            self.model.see(node)
            found.append(node)
            pending += [i for i in node.input if i]
        return found

    # --- kinds --------------------------------------------------------------------------------------------------------

    def _accumulate(self) -> None:
        found = fused(self.model, self.result, str(self.plan["op"]))
        (read,) = self.plan["reads"]
        scale = self._scale_of(read["tensor"])
        weight_scale = np.asarray(self.numbers.plan["weights"][self.plan["weight"]]["scale"], np.float64)
        exact = np.float64(scale) * weight_scale
        expect_same(self.plan["accumulator_scale"], np.asarray(exact, np.float32), self.node, "accumulator scale")
        if found is None:
            weight, peaks = self.accumulate()
        else:
            weight, peaks = self._fused_sum(found, read["tensor"])
            self._departures(peaks)
        if "requantize" in self.plan:
            self._multiplier(exact)
        self._bound(int(np.max(peaks)))
        self._carried(weight, peaks, read["tensor"])
        if self._hardware().get("isa") == "any":
            node = found.node if found is not None else self._heads()[0]
            self._expect_no_saturation(weight, read["tensor"], node)

    def _expect_no_saturation(self, weight: Array, data: str, node: onnx.NodeProto) -> None:
        """No pair of neighbouring products leaves int16, as x86 without VNNI adds them."""
        entry, source = self.numbers.plan["weights"][self.plan["weight"]], self.numbers.quantizer(data)
        if source["dtype"] != "uint8" or entry["dtype"] not in ("int8", "int4", "int2"):
            return
        axis = entry["channel_axis"]
        codes = weight + along(np.asarray(entry["zero_point"], np.int64), entry["axis"], weight.ndim)
        group = next((a.i for a in node.attribute if a.name == "group"), 1)
        if codes.ndim > 2 and axis == 0 and group > 1 and codes.shape[:2] == (group, 1):
            return  # depthwise kernels multiply in 32 bits
        if codes.ndim > 2 and axis != 0:
            largest = 2 * int(np.abs(codes).max(initial=0))
        else:
            rows = np.moveaxis(codes, axis, 0) if codes.ndim == 2 else np.moveaxis(codes, 1, -1)
            flat = rows.reshape(len(rows), -1)
            pairs = np.pad(flat, ((0, 0), (0, flat.shape[1] % 2))).reshape(len(flat), -1, 2)
            largest = max(int(np.maximum(s * pairs, 0).sum(axis=2).max(initial=0)) for s in (1, -1))
        expect_claim(self.numbers.claims[self.node], {"pairs": {"largest": largest}}, self.node)
        safe = largest * int(source["range"][1]) < 1 << 15
        expect(safe or self.model.has_exact_kernels, self.node,
               "pairs of its products saturate in int16 on x86 without VNNI, which isa=any excludes")  # fmt: skip

    def _fused_sum(self, found: Fused, data: str) -> tuple[Array, Ints]:
        expect(len(found.operands) == 2, self.node, "it does not multiply data by one weight")
        self._operand(found.operands[0], data)
        own = found.operands[1]
        entry = self.numbers.plan["weights"][self.plan["weight"]]
        outputs = 0 if found.node.op_type in ("Gemm", "QGemm") and attribute(found.node, "transB", 0) else 1
        weight = checked_weight(
            self.numbers, self.plan["weight"], self.node, None, stored=self.model.constant(own.value), outputs=outputs
        )
        expect_same(entry["scale"], own.scale, self.node, "weights' scale")
        zeros = [np.asarray(v, np.int64).reshape(-1).tolist() for v in (entry["zero_point"], own.zero)]
        expect(zeros[0] == zeros[1], self.node, "the zero points of its weights differ from plan.json")
        if entry["axis"] is not None and own.axis is not None:
            expect(own.axis == entry["axis"], self.node, "its weights have their scales along another axis")
        bias = found.bias
        peaks = self._bias(np.zeros((), np.int64) if bias is None else bias[0].astype(np.int64).reshape(-1))
        if bias is not None and bias[1] is not None and bias[2] is not None:
            expect_same(self.plan["accumulator_scale"], bias[1], self.node, "bias's scale")
            expect(not np.any(bias[2]), self.node, "its bias has a zero point")
        self._stored(found)
        return weight, self._with_bias(reach(weight, entry["channel_axis"], self.numbers.peak(data)), peaks)

    def _contract(self) -> None:
        tensors = [r["tensor"] for r in self.plan["reads"]]
        found = fused(self.model, self.result, str(self.plan["op"]))
        exact = np.prod([np.float64(self._scale_of(t)) for t in tensors])
        expect_same(self.plan["accumulator_scale"], np.float32(exact), self.node, "accumulator scale")
        count = int(self.numbers.claims[self.node]["given"]["products"])
        bound = count * int(np.prod([self.numbers.peak(t) for t in tensors], dtype=object))
        peaks = np.array([bound], np.int64)
        if found is not None:
            for own, tensor in zip(found.operands, tensors, strict=True):
                self._operand(own, tensor)
            self._stored(found)
            self._departures(peaks)
        else:
            self._written_product(tensors, peaks)
        if "requantize" in self.plan:
            self._multiplier(exact)
        self._bound(bound)
        self._carried_by("float32" if bound + self._half() < EXACT else "int32")

    def _written_product(self, tensors: list[str], peaks: Ints) -> None:
        heads = self._heads() if self.plan["kind"] == "contract" else [self._meeting(tensors)]
        expect(len(heads) == 1, self.node, "it is not one product")
        for port, tensor in enumerate(tensors):
            value, codes = self.numbers.value(tensor), self.numbers.codes(tensor)
            found = self.model.run(heads[0].input[port], {value: codes}).astype(np.int64) - self._zero(
                heads[0], port + 2
            )
            expect(np.array_equal(found, self.numbers.centred(tensor)), self.node,
                   f"it does not read {tensor} less its zero point")  # fmt: skip
        self._sums(heads)
        self._narrow(peaks)

    def _meeting(self, tensors: list[str]) -> Any:
        """The Mul at which two stored tensors meet."""
        wanted = {self.numbers.value(t) for t in tensors}
        for value in self.model.back(self.result, self.stops):
            node = self.model.producer.get(value)
            if node is None or node.op_type != "Mul" or any(self.model.is_constant(i) for i in node.input):
                continue
            if {v for i in node.input for v in self.model.heads(i, self.stops)[1]} == wanted:
                self.model.see(node)
                return node
        raise Wrong(self.node, "no product of its two operands leads to its result")

    def _sum(self) -> None:
        found = fused(self.model, self.result, str(self.plan["op"]))
        terms = self.plan["terms"]
        for term in terms:
            if term["form"] == "raw":
                common = self.numbers.plan["accumulators"][term["tensor"]]
                expect_same(term["scale"], common, self.node, f"scale of {term['tensor']}")
                expect(term["zero_point"] == 0, self.node, "an accumulator has a zero point")
            else:
                scale, zero = self.numbers.grid(term["tensor"])
                expect_same(term["scale"], scale, self.node, f"scale of {term['tensor']}")
                expect(term["zero_point"] == zero, self.node, f"the zero point of {term['tensor']} is not its own")
        if self.plan["scale"] is None:
            self._ratios(terms)
            claim = self.numbers.claims[self.node].get("requantize", {})
            counts = [self._count(t) for t in terms]
            expect_claim(claim, {"pairs": int(counts[0]) * int(counts[1])}, self.node)
            if self.numbers.claims[self.node]["proved"]:
                expect_exact(self.plan, [self._peak_with_zero(t) for t in terms], self.node)
            self._carried_by("float64")
        if found is None:
            Addition(self.numbers, self.node).check()
        else:
            for own, term in zip(found.operands, terms, strict=True):
                self._operand(own, term["tensor"])
            self._stored(found)
        if self.plan["scale"] is not None:
            self._common_sum(terms)

    def _common_sum(self, terms: list[Mapping[str, Any]]) -> None:
        common = np.float64(self.plan["scale"])
        fixed = "q31" in terms[0]
        expect(self.plan["offset"] == 0, self.node, "a sum at a common scale has no offset")
        signs = [np.sign(np.asarray(t["ratio"]).reshape(-1)[0]) for t in terms]
        self._signs(signs)
        for term, sign in zip(terms, signs, strict=True):
            expect(fixed or term["ratio"] == sign, self.node, f"the ratio of {term['tensor']} is no sign")
        if "requantize" in self.plan:
            self._multiplier(common)
        if fixed:
            expect(
                self.plan["accumulator_bound"] == (1 << 31) - 1,
                self.node,
                "its sums saturate at int32, its bound is another",
            )
            self._carried_by("int64")
            return
        peaks = [self.numbers.peak(t["tensor"], t["form"]) * 2.0 ** int(t["shift"]) + 1 for t in terms]
        self._bound(int(np.ceil(sum(peaks))))
        self._carried_by("float32" if self.plan["accumulator_bound"] < EXACT else "float64")

    def _ratios(self, terms: list[Mapping[str, Any]]) -> None:
        scale, zero = self.numbers.grid(self.plan["result"]["tensor"])
        for number, term in enumerate(terms):
            ratio = np.asarray(np.asarray(term["scale"], np.float32) / scale, np.float32)
            expect_same(np.abs(np.asarray(term["ratio"])), ratio, self.node, f"ratio {number}")
            expect(term["shift"] == 0, self.node, "an addition in float32 shifts nothing")
        self._signs([-1.0 if np.all(np.asarray(t["ratio"]) < 0) else 1.0 for t in terms])
        expect_same(self.plan["offset"], addition_offset(terms, zero), self.node, "offset")

    def _signs(self, signs: list[Any]) -> None:
        expected = 1 if self.plan["op"] == "Sub" else 0
        expect([s < 0 for s in signs].count(True) == expected, self.node,
               f"the signs of its operands do not match {self.plan['op']}")  # fmt: skip

    def _product(self) -> None:
        tensors = [r["tensor"] for r in self.plan["reads"]]
        bound = int(np.prod([self.numbers.peak(t) for t in tensors], dtype=object))
        peaks = np.array([bound], np.int64)
        found = fused(self.model, self.result, "Mul")
        if found is None:
            self._written_product(tensors, peaks)
        else:
            for own, tensor in zip(found.operands, tensors, strict=True):
                self._operand(own, tensor)
            self._stored(found)
            self._departures(peaks)
        self._multiplier(np.prod([np.float64(self._scale_of(t)) for t in tensors]))
        self._bound(bound)
        self._carried_by("float32" if bound < EXACT else "float64")

    def _average(self) -> None:
        (read,) = self.plan["reads"]
        count, tensor = int(self.plan["count"]), read["tensor"]
        expect(self.numbers.claims[self.node]["given"].get("elements") == count, self.node,
               "the certificate is about another number of elements")  # fmt: skip
        bound = count * self.numbers.peak(tensor)
        peaks = np.array([bound], np.int64)
        found = fused(self.model, self.result, str(self.plan["op"]))
        window = self.plan["op"] == "AveragePool"
        if found is None:
            window = self._written_average(tensor, peaks)
        else:
            window = found.node.op_type in ("Conv", "QLinearConv")
            self._operand(found.operands[0], tensor)
            if window:
                ones = self.model.constant(found.operands[1].value)
                self._window(ones)
                expect_same(np.float32(1 / count), found.operands[1].scale, self.node, "scale of its window")
            self._stored(found)
            self._departures(peaks)
        self._mean(self._scale_of(tensor), count, window)
        self._bound(bound)
        by = "float32" if bound < EXACT else "bytes" if window else "float64"
        self._carried_by(by)

    def _written_average(self, tensor: str, peaks: Ints) -> bool:
        heads = self._heads()
        factors, bias = self._sums(heads)
        total = sum(factors[n.output[0]] * self._data(n, tensor) for n in heads)
        expect(not np.any(bias) and np.array_equal(total, self.numbers.centred(tensor)[0]), self.node,
               "what it adds up is not q less the zero point of plan.json")  # fmt: skip
        window = heads[0].op_type != "ReduceSum"
        for node in heads:
            if window:
                self._window(self.model.constant(node.input[1]))
            else:
                axes = self.model.constant(node.input[1]).reshape(-1).tolist()
                expect(axes == list(range(2, 2 + len(axes))), self.node, f"it adds up along the axes {axes}")
        self._narrow(peaks)
        return window

    def _window(self, ones: Array) -> None:
        expect(bool(np.all(ones == 1)), self.node, "its window is not made of ones")
        expect(int(np.prod(ones.shape[1:])) == self.plan["count"], self.node, "its window has another size")

    def _mean(self, scale: np.float32, count: int, window: bool) -> None:
        numbers, (out, _) = self.plan["requantize"], self.numbers.grid(self.plan["result"]["tensor"])
        fixed = numbers["kind"] == "fixed_point"
        if fixed and self.plan["op"] != "AveragePool":
            expect_shared(numbers, float(np.float64(scale) / np.float64(out)), count, self.node)
            return
        if numbers["kind"] != "float_multiplier":
            part = np.float64(np.float32(1 / count)) if fixed else 1 / count
            expect_multiplier(numbers, np.asarray(np.float64(scale) * part), out, self.node)
            return
        mean = mean_of_window if window else mean_of_map
        expect_same(numbers["multiplier"], mean(scale, out, count), self.node, "multiplier")

    def _lookup(self) -> None:
        (read,) = self.plan["reads"]
        tensor, made = read["tensor"], self.plan["result"]["tensor"]
        claim = self.numbers.claims[self.node]["table"]
        table = np.asarray(self.plan["table"], np.int64)
        low, high = limits(str(self.numbers.quantizer(tensor)["dtype"]))
        codes = np.arange(low, high + 1)
        expect(table.ndim == 2 and table.shape[1] == codes.size, self.node, "its table has not one entry per code")
        expect(claim["entries"] == table.size, self.node, "the certificate is about a table of another size")
        scale, zero = self.numbers.grid(tensor)
        (step, offset), (least, most) = self.numbers.grid(made), self.plan["range"]
        data, out = (codes - zero, float(scale)), (float(step), offset, int(least), int(most))
        expect_table(table, claim["function"], data, out, where=self.node)
        self._same_table()

    def _same_table(self) -> None:
        """The model looks up in the table of plan.json."""
        tensor = self.plan["reads"][0]["tensor"]
        table = np.asarray(self.plan["table"], np.int64)
        low, _ = limits(str(self.numbers.quantizer(tensor)["dtype"]))
        fed = self.numbers.codes(tensor)
        found = self.model.run(self.result, {self.numbers.value(tensor): fed}).astype(np.int64)
        expected = table[:, fed[0].astype(np.int64) - low]
        expect(np.array_equal(np.broadcast_to(found, expected.shape), expected), self.node,
               "the table in the model differs from plan.json")  # fmt: skip

    def _program(self) -> None:
        raise Wrong(self.node, "the certificate claims a proof of a program, but programs have no proof")

    def _move(self) -> None:
        Moved(self.numbers, self.node).check()


_CHECKS: Mapping[str, Callable[[KernelCheck], None]] = {
    "accumulate": KernelCheck._accumulate,
    "contract": KernelCheck._contract,
    "sum": KernelCheck._sum,
    "product": KernelCheck._product,
    "average": KernelCheck._average,
    "lookup": KernelCheck._lookup,
    "program": KernelCheck._program,
    "move": KernelCheck._move,
    "device": KernelCheck._skip,
}
