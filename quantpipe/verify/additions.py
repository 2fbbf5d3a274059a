"""Additions that the model writes out: in float32 by fused multiply-adds, in fixed point, or at a common scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.verify import spec
from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.monotone import expect_rising
from quantpipe.verify.numbers import limits
from quantpipe.verify.ops import target
from quantpipe.verify.scales import expect_fixed, expect_same, fits_double
from quantpipe.verify.wraps import type_of, wrapped
from quantpipe.verify.written import Reach, Written, expect_constants, expect_equal

Array = NDArray[Any]
ENUMERATED = 1 << 18
LEFT = {8: 20, 16: 15}


class Addition(Written):
    """Check one Add or Sub that the model writes out."""

    def check(self) -> None:
        """Check that the model adds as plan.json says, for all values of the operands."""
        if self.plan["scale"] is None:
            self._free()
            return
        fixed = "q31" in self.plan["terms"][0]
        join = self._join()
        for term, value in zip(self.plan["terms"], join.input, strict=True):
            self._term(term, value, fixed)
        self._behind(join, fixed)

    def _join(self) -> Any:
        """The Add at which the operands meet.

        It is the first one: where both are one tensor, steps of rounding after it may add two values that are made of
        that tensor as well.
        """
        operands = [self.numbers.value(t["tensor"], t["form"]) for t in self.plan["terms"]]
        tail = set(self.model.back(self.result, self.stops)) - self.stops
        for node in self.model.nodes:
            if node.op_type != "Add" or node.output[0] not in tail:
                continue
            behind = [set(self.model.heads(i, self.stops)[1]) for i in node.input]
            if len(behind) == 2 and all({o} == b for o, b in zip(operands, behind, strict=True)):
                self.model.see(node)
                return node
        raise Wrong(self.node, "no addition of its two operands leads to its result")

    # --- a common scale, or fixed point -------------------------------------------------------------------------------

    def _term(self, term: Mapping[str, Any], value: str, fixed: bool) -> None:
        """One operand, brought to the common scale, equals its specification on all that it can hold."""
        source = self.numbers.value(term["tensor"], term["form"])
        stored = term["form"] == "quantized"
        centred = self.numbers.centred(term["tensor"]) if stored else self._points(term)
        fed = self.numbers.codes(term["tensor"]) if stored else centred.astype(np.int32)
        self._scaled(term, fixed)
        found = self.model.run(value, {source: fed})
        sign = -1 if float(np.asarray(term["ratio"]).reshape(-1)[0]) < 0 else 1
        if not stored:
            positive = self._before_negation(value) if sign < 0 else value
            ends = (centred[:, :1].astype(np.int32), centred[:, -1:].astype(np.int32))
            expect_rising(self.model, positive, {source: ends})
            self._one_shift(positive, source, -int(term["shift"]))
        expect_equal(found.astype(np.int64), sign * self._specified(term, centred, fixed), centred, self.node)
        if fixed:
            numbers = {"kind": "fixed_point", "q31": term["q31"]}
            expect_constants(self.model, value, {source}, numbers, where=self.node)

    def _before_negation(self, value: str) -> str:
        node = self.model.producer.get(value)
        expect(node is not None and node.op_type == "Neg", self.node, "what it subtracts is not negated")
        assert node is not None  # noqa: S101
        return str(node.input[0])

    def _points(self, term: Mapping[str, Any]) -> Array:
        """Accumulators around every place where one shift by n rounds: 2^(n-1) and its neighbours, and both ends."""
        peak, half = self.numbers.peak(term["tensor"], "raw"), 1 << max(-int(term["shift"]) - 1, 0)
        near = [s * half + d for s in (-3, -1, 0, 1, 3) for d in (-1, 0, 1)]
        found = sorted({-peak, peak, *(int(np.clip(v, -peak, peak)) for v in near)})
        return np.array([found], np.int64)

    def _one_shift(self, value: str, source: str, count: int) -> None:
        """All that rounds on the way is one shift: then ((v + a) >> n) + b is known by one of its steps."""
        for at in self.model.back(value, {source}):
            node = self.model.producer.get(at)
            if at == source or node is None:
                continue
            expect(node.op_type in ("Cast", "Add", "BitShift"), node.name, "it is no part of a shift")
            if node.op_type == "BitShift":
                wanted = min(abs(count), spec.FAR)  # more leaves the same, and no type shifts by it
                expect(bool(np.all(self.model.constant(node.input[1]) == wanted)), node.name,
                       f"it does not shift by {wanted}")  # fmt: skip

    def _specified(self, term: Mapping[str, Any], centred: Array, fixed: bool) -> Array:
        if not fixed:
            return spec.scaled(centred, np.int64(term["shift"]), str(self.plan["rounding"]))
        numbers = {"kind": "fixed_point", "rounding": self.plan["requantize"]["rounding"], "zero_point": 0,
                   "q31": term["q31"], "left_shift": term["left_shift"]}  # fmt: skip
        return spec.narrowed(numbers, centred << int(term["shift"]))

    def _scaled(self, term: Mapping[str, Any], fixed: bool) -> None:
        """The shift or multiplier of a term follows from its scale and the common one."""
        own, common = np.float64(term["scale"]), np.float64(self.plan["scale"])
        if fixed:
            real = np.asarray(own / (common * 2.0 ** int(term["shift"])))
            if self.plan.get("whole"):
                out, _ = self.numbers.grid(self.plan["result"]["tensor"])
                single = np.float64(np.float32(own) / np.float32(out))
                real = np.rint(single * np.exp2(np.rint(np.log2(np.float64(out) / common))))
            expect_fixed({**term, "rounding": self.plan["requantize"]["rounding"]}, real, self.node)
            return
        shift = math.log2(float(own)) - math.log2(float(common))
        expect(
            shift == term["shift"],
            self.node,
            f"{term['tensor']} is shifted by {term['shift']}, its scale needs {shift:g}",
        )

    def _behind(self, join: onnx.NodeProto, fixed: bool) -> None:
        """From the sum to the result."""
        value, bound = join.output[0], int(self.plan["accumulator_bound"])
        overflow = self.plan.get("overflow")
        dtype = np.dtype(np.int64 if fixed else np.int32)
        low, high = np.array([-bound], np.int64), np.array([bound], np.int64)
        bounds, types = None, {value: dtype}
        if overflow is not None:
            bounds = limits(overflow["accumulator"])
            if overflow["overflow"] == "wrap":
                types = self._cast_of(value, overflow["accumulator"])
                low, high = (np.array([v], np.int64) for v in bounds)
        self._follow(types, Reach(low, high, bounds))

    def _cast_of(self, value: str, accumulator: str) -> dict[str, np.dtype[Any]]:
        kind = type_of(accumulator)
        left = wrapped(self.model, self.result, self.stops, self._same(value), accumulator=accumulator)
        found = {at: type_ for at, (_, type_) in left.items()}
        if not found and kind == np.int32:
            return {value: kind}  # the sum itself is in this type, and wraps in it
        expect(bool(found), self.node, f"nothing wraps its sums in {accumulator}")
        return found

    def _same(self, value: str) -> set[str]:
        """A sum, and what it is in int64."""
        found = {value}
        for at in self.model.back(self.result, self.stops):
            node = self.model.producer.get(at)
            if node is not None and node.op_type == "Cast" and node.input[0] == value and target(node) == np.int64:
                self.model.see(node)
                found.add(at)
        return found

    # --- in float32 ---------------------------------------------------------------------------------------------------

    def _free(self) -> None:
        """rint(fma(q_a, r_a, fma(q_b, r_b, offset))), each step in float64 and then in float32."""
        tensors = [(t["tensor"], t["form"]) for t in self.plan["terms"]]
        chain = self._multiply_adds()
        expected = [np.asarray(t["ratio"], np.float64) for t in self.plan["terms"]]
        for number, (ratio, constant) in enumerate(zip(expected, chain, strict=True)):
            expect_same(ratio, constant, self.node, f"ratio {number}")
        if any(form != "quantized" for _, form in tensors):
            return
        codes = [self.numbers.codes(t) for t, _ in tensors]
        if codes[0].size * codes[1].size > ENUMERATED:
            codes = [c[:, :: max(1, c.size // 256)] for c in codes]
        grid = [np.repeat(codes[0], codes[1].size, axis=1), np.tile(codes[1], codes[0].size)]
        feeds = {self.numbers.value(t): g for (t, _), g in zip(tensors, grid, strict=True)}
        if len(feeds) < 2:
            feeds, grid = {self.numbers.value(tensors[0][0]): codes[0]}, [codes[0], codes[0]]
        found = self.model.run(self.result, feeds).astype(np.int64)
        expect_equal(found, addition(self.plan, grid), np.broadcast_to(grid[0], found.shape), self.node)

    def _multiply_adds(self) -> list[Array]:
        """The ratios in the model, by term; Wrong unless the operands are added by two fused multiply-adds."""
        tail = list(self.model.back(self.result, self.stops))
        casts = [n for n in (self.model.producer.get(v) for v in tail) if n is not None and n.op_type == "Cast"]
        last = [n for n in casts if target(n) == np.float32 and self._is_sum(n.input[0])]
        for node in last:
            outer = self._parts(node.input[0], 0)
            inner_cast = self.model.producer.get(outer[1])
            if inner_cast is None or inner_cast.op_type != "Cast":
                continue
            single = self.model.producer.get(inner_cast.input[0])
            if single is None or single.op_type != "Cast" or target(single) != np.float32:
                continue
            inner = self._parts(single.input[0], 1)
            offset = self.model.constant(inner[1])
            expect_same(offset, self.plan["offset"], self.node, "offset")
            for seen in (node, inner_cast, single):
                self.model.see(seen)
            self._follows(node.output[0])
            return [outer[0], inner[0]]
        raise Wrong(self.node, "it is not written as two fused multiply-adds")

    def _is_sum(self, value: str) -> bool:
        node = self.model.producer.get(value)
        return node is not None and node.op_type == "Add"

    def _parts(self, value: str, number: int) -> tuple[Array, str]:
        """The ratio of q_number in q · ratio + rest, and the rest; all in float64."""
        add = self.model.producer.get(value)
        product = self.model.producer.get(add.input[0]) if add is not None else None
        double = self.model.producer.get(product.input[0]) if product is not None else None
        term = self.plan["terms"][number]
        source = self.numbers.value(term["tensor"], term["form"])
        shaped = (
            add is not None and add.op_type == "Add" and product is not None and product.op_type == "Mul"
            and double is not None and double.op_type == "Cast" and target(double) == np.float64
            and double.input[0] == source and self.model.is_constant(product.input[1])
        )  # fmt: skip
        expect(shaped, self.node, "it is not written as two fused multiply-adds")
        assert add is not None and product is not None and double is not None  # noqa: S101
        for node in (add, product, double):
            self.model.see(node)
        return self.model.constant(product.input[1]), str(add.input[1])

    def _follows(self, total: str) -> None:
        """Check the ops after the sum: rounded to even, clipped, stored."""
        out = self.plan["requantize"]
        whole = np.arange(int(out["range"][0]) - 2, int(out["range"][1]) + 3, dtype=np.float32)
        points = np.concatenate([whole, whole + np.float32(0.5), whole + np.float32(0.25)]).reshape(1, -1)
        for at in self.model.back(self.result, {total}):
            node = self.model.producer.get(at)
            known = at == total or (
                node is not None and node.op_type in ("Round", "Floor", "Clip", "Cast", "Max", "Min")
            )
            expect(known, at, "it is no part of storing a sum")
        found = self.model.run(self.result, {total: points}).astype(np.int64)
        expected = spec.clamp(rounded(points, out["rounding"]), out["range"])
        if "channel_range" in out:
            expected = spec.clamp(expected, out["channel_range"])
        expect_equal(found, expected, points, self.node)


def rounded(values: Array, rounding: str) -> Array:
    """Return floats as integers, rounded as an addition in float32 is.

    `values`: floats of any shape. `rounding`: `half_even` or `floor`. Returns the integers, int64. Raises Wrong for any
    other rounding.
    """
    whole = {"half_even": np.rint, "floor": np.floor}.get(rounding)
    if whole is None:
        raise Wrong("plan.json", f"the rounding {rounding!r} of an addition in float32 is not followed")
    return np.asarray(whole(values.astype(np.float64)).astype(np.int64))


def addition(plan: Mapping[str, Any], codes: list[Array]) -> Array:
    """Return what the specification of an addition in float32 gives: two multiply-adds that round once each.

    Both are exact in float64 before that (see `expect_exact`).
    """
    total: Array = np.asarray(plan["offset"], np.float64)
    for number in (1, 0):
        ratio = np.asarray(plan["terms"][number]["ratio"], np.float64).reshape(-1, 1)
        total = (codes[number].astype(np.float64) * ratio + total).astype(np.float32).astype(np.float64)
    out = plan["requantize"]
    return spec.clamp(rounded(total, out["rounding"]), out["range"])


def expect_exact(plan: Mapping[str, Any], peaks: list[int], where: str) -> None:
    """Check that float64 rounds nothing of q_a·r_a + (q_b·r_b + offset).

    Then one cast to float32 is the one rounding of a fused multiply-add, for all operands.
    """
    ratios = [np.abs(np.asarray(t["ratio"], np.float64)) for t in plan["terms"]]
    most = sum(p * float(np.max(r)) for p, r in zip(peaks, ratios, strict=True)) + abs(float(plan["offset"]))
    values = np.concatenate([*(r.reshape(-1) for r in ratios), [float(plan["offset"])]])
    expect(fits_double(values, most), where, "float64 does not hold its sums exactly, so they may be rounded twice")
