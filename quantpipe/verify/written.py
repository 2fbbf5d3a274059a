"""Check kernels that the model writes out in integer ops.

Their sums are read off the graph, and what follows is run on every accumulator next to a step of the specification.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

from quantpipe.verify import spec
from quantpipe.verify.chain import is_specified
from quantpipe.verify.files import Wrong, expect
from quantpipe.verify.linear import Linear, Sums, held
from quantpipe.verify.monotone import expect_rising
from quantpipe.verify.numbers import ClaimedNumbers, along, checked_weight, limits, reach
from quantpipe.verify.ops import target
from quantpipe.verify.realized_model import Model
from quantpipe.verify.step_functions import ClaimedNarrowing
from quantpipe.verify.wraps import type_of, wrapped

Array = NDArray[Any]
Ints = NDArray[np.int64]
PRODUCTS = frozenset({"ConvInteger", "MatMulInteger", "Conv", "ConvTranspose", "ReduceSum", "Mul"})


class Written:
    """Check one kernel that the model writes out; `result` is the value that holds what it makes."""

    def __init__(self, numbers: ClaimedNumbers, node: str) -> None:
        self.numbers, self.node, self.model = numbers, node, numbers.model
        self.plan: Mapping[str, Any] = numbers.kernels[node]
        made = self.plan["result"]
        self.result = numbers.value(made["tensor"], made["form"])
        self.stops = self.model.stops - {self.result}

    # --- sums of products ---------------------------------------------------------------------------------------------

    def accumulate(self) -> tuple[Array, Ints]:
        """Return the weight less its zero points, and the largest sum of each channel.

        Its result is as specified.
        """
        heads = self._heads()
        (read,) = self.plan["reads"]
        data = read["tensor"]
        factors, bias = self._sums(heads)
        groups: dict[bytes, tuple[Array, list[Array]]] = {}
        axis = 0 if heads[0].op_type != "MatMulInteger" else -1
        shares = {}
        for node in heads:
            table, weight = self._data(node, data), self._weight(node)
            shares[node.output[0]] = (table, weight)
            factor = along(factors[node.output[0]], axis if heads[0].op_type != "ConvTranspose" else 1, weight.ndim)
            groups.setdefault(table.tobytes(), (table, []))[1].append(factor * weight)
        weight = self._joined(heads, groups, self.numbers.centred(data)[0])
        weight = checked_weight(self.numbers, self.plan["weight"], self.node, weight, stored=None)
        entry = self.numbers.plan["weights"][self.plan["weight"]]
        peaks = self._with_bias(reach(weight, entry["channel_axis"], self.numbers.peak(data)), self._bias(bias))
        self._expect_held(heads, shares)
        self._narrow(peaks)
        return weight, peaks

    def _heads(self) -> list[onnx.NodeProto]:
        nodes, _ = self.model.heads(self.result, self.stops)
        expect(bool(nodes), self.node, "the model makes no sum of products for it")
        for node in nodes:
            expect(node.op_type in PRODUCTS, node.name, f"{node.op_type} is no part of this kernel")
            self.model.see(node)
        return nodes

    def _types(self, heads: list[onnx.NodeProto]) -> dict[str, np.dtype[Any]]:
        return {n.output[0]: self._type(n) for n in heads}

    def _type(self, head: onnx.NodeProto) -> np.dtype[Any]:
        """Return the type of a product; of two tensors the type that its operands are cast to."""
        if head.op_type in ("ConvTranspose", "Conv"):
            return np.dtype(np.float32)
        cast = self.model.producer.get(head.input[0]) if head.op_type == "Mul" else None
        return target(cast) if cast is not None and cast.op_type == "Cast" else np.dtype(np.int32)

    def _sums(self, heads: list[onnx.NodeProto]) -> tuple[dict[str, Ints], Ints]:
        overflow = self.plan.get("overflow")
        wraps = type_of(overflow["accumulator"]) if overflow and overflow["overflow"] == "wrap" else None
        self.read = Sums(self.model, self.result, self.stops, self._types(heads), wraps=wraps)
        form = next(iter(self.read.frontier.values()))
        return form.factors, form.constant

    def _data(self, node: onnx.NodeProto, tensor: str) -> Ints:
        """What a product takes of each code of its data operand, less its zero point, `[N]`."""
        cut = self._cut(node)
        value = node.input[0] if cut is None else cut.input[0]
        found = self.model.run(value, {self.numbers.value(tensor): self.numbers.codes(tensor)})
        whole = np.rint(found.astype(np.float64)).astype(np.int64)
        expect(np.array_equal(whole, found), node.name, "it reads something else than integers")
        zero = self._zero(node, 2)
        return np.asarray(np.broadcast_to(whole - zero, self.numbers.codes(tensor).shape)[0])

    def _weight(self, node: onnx.NodeProto) -> Array:
        if len(node.input) < 2 or node.op_type == "ReduceSum":
            return np.ones((), np.int64)
        weight = self.model.constant(node.input[1])
        whole = weight.astype(np.int64)
        expect(np.array_equal(whole, weight), node.name, "its weights are no integers")
        zero = self._zero(node, 3)
        return np.asarray(whole - (zero if zero.size == 1 else zero.reshape(1, -1)))

    def _zero(self, node: onnx.NodeProto, port: int) -> Array:
        """The zero point of the data (port 2) or the weight (port 3) of an integer product."""
        named = node.op_type in ("ConvInteger", "MatMulInteger") and len(node.input) > port and node.input[port]
        return self.model.constant(node.input[port]).astype(np.int64) if named else np.zeros((), np.int64)

    def _joined(self, heads: list[onnx.NodeProto], groups: dict[bytes, Any], centred: Ints) -> Array:
        """The one weight that all products together multiply q - z by."""
        if heads[0].op_type == "ConvTranspose":
            (_, parts), *more = groups.values()
            expect(not more, self.node, "its parts read different integers")
            order = np.argsort([self._part(n)[0] for n in heads])
            weight = np.concatenate([parts[i] for i in order], axis=0)
            read = [self._part(heads[i]) for i in order]
            sizes = np.cumsum([0, *(len(parts[i]) for i in order)]).tolist()
            expect(len(heads) == 1 or read == list(itertools.pairwise(sizes)), self.node,
                   f"its parts read the channels {read}, their weights are those of others")  # fmt: skip
            table = next(iter(groups.values()))[0]
            expect(np.array_equal(table, centred), self.node, "it does not take the zero point off its data")
            return weight
        tables = np.stack([table for table, _ in groups.values()])
        weights = [_total(parts) for _, parts in groups.values()]
        shares = np.rint(np.linalg.lstsq(tables.T.astype(np.float64), centred.astype(np.float64), rcond=None)[0])
        expect(np.array_equal(shares.astype(np.int64) @ tables, centred), self.node,
               "what it multiplies is not q less the zero point of plan.json")  # fmt: skip
        unit = int(np.argmin(np.where(shares == 0, np.inf, np.abs(shares))))
        expect(shares[unit] == 1, self.node, "what it multiplies is not q less the zero point of plan.json")
        for table, share, weight in zip(tables, shares.astype(np.int64), weights, strict=True):
            nothing = not table.any()  # an upper byte that the tensor's few bits never reach
            same = nothing or np.array_equal(weight, share * weights[unit])
            expect(same, self.node, "its parts have different weights")
        return np.asarray(weights[unit])

    def _cut(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The Slice by which a part of a transposed convolution reads some of the input channels."""
        cut: onnx.NodeProto | None = self.model.producer.get(node.input[0])
        if cut is None or cut.op_type != "Slice" or node.op_type != "ConvTranspose" or node.input[0] in self.stops:
            return None
        self.model.see(cut)
        return cut

    def _part(self, node: onnx.NodeProto) -> tuple[int, int]:
        """(first, end) of the input channels that a product reads; (0, 0) for all."""
        cut = self._cut(node)
        if cut is None:
            return 0, 0
        start, end, *along = (self.model.constant(i).reshape(-1).tolist() for i in cut.input[1:])
        expect(along == [[1]] and len(start) == len(end) == 1, cut.name, "it does not cut a row of channels out")
        return start[0], end[0]

    def _bias(self, found: Ints) -> Ints:
        """|bias| per channel; Wrong where plan.json has another."""
        bias = np.asarray(self.plan["bias"] if self.plan["bias"] is not None else 0, np.int64)
        size = max(bias.size, found.size)
        same = np.array_equal(np.broadcast_to(bias, (size,)), np.broadcast_to(found, (size,)))
        expect(same, self.node, "its bias differs from plan.json")
        return np.abs(bias)

    def _with_bias(self, reached: Ints, bias: Ints) -> Ints:
        expect(bias.size in (1, reached.size), self.node, "it has not one bias for each of its channels")
        return reached + bias

    def _expect_held(self, heads: list[onnx.NodeProto], shares: Mapping[str, tuple[Ints, Array]]) -> None:
        """No product and no partial sum leaves its type."""
        transposed = heads[0].op_type == "ConvTranspose"
        most = {}
        for node in heads:
            table, weight = shares[node.output[0]]
            axis = 1 if transposed else 0 if weight.ndim > 2 else weight.ndim - 1
            most[node.output[0]] = reach(weight, axis, int(np.max(np.abs(table))))
            dtype = self._types([node])[node.output[0]]
            expect(int(np.max(most[node.output[0]])) <= held(dtype), node.name, f"its sums may leave {dtype}")
        for node, form in self.read.casts:
            bound = np.abs(form.constant) + sum(np.abs(f) * np.max(most[n]) for n, f in form.factors.items())
            partial = len(form.factors) < len(heads)
            expect(not partial or int(np.max(bound)) <= held(form.dtype), node.name, f"its sums may leave {form.dtype}")

    # --- from the sum to the result -----------------------------------------------------------------------------------

    def _narrow(self, peaks: Ints) -> None:
        """What follows the sum equals the specification on every sum up to `peaks`, `[C]`."""
        form = next(iter(self.read.frontier.values()))
        overflow, sources = self.plan.get("overflow"), dict(self.read.frontier)
        expect(bool(overflow) or int(np.max(peaks)) <= held(form.dtype), self.node, f"its sums may leave {form.dtype}")
        low, high = -peaks, peaks
        if overflow and overflow["overflow"] == "wrap":
            sources = self._wrapped(sources, overflow["accumulator"])
            low, high = (np.array([v], np.int64) for v in limits(overflow["accumulator"]))
        bounds = limits(overflow["accumulator"]) if overflow else None
        self._follow({v: f.dtype for v, f in sources.items()}, Reach(low, high, bounds))

    def _follow(self, types: Mapping[str, Any], reached: Reach) -> None:
        """What follows accumulators narrows them as plan.json states, or passes them on."""
        if "requantize" not in self.plan:
            self._handed_on(types, reached)
            return
        claim = self.numbers.claims[self.node].get("requantize", {})
        narrowing_equal(
            self.model, self.result, types, self.plan["requantize"], reach=reached, claim=claim, where=self.node
        )

    def _wrapped(self, sources: Mapping[str, Linear], accumulator: str) -> dict[str, Linear]:
        """Return the sums where their type wraps them to the accumulator."""
        left = wrapped(self.model, self.result, self.stops, sources, accumulator=accumulator)
        found = {v: Linear(sources[s].factors, sources[s].constant, kind) for v, (s, kind) in left.items()}
        expect(bool(found), self.node, f"nothing wraps its sums in {accumulator}")
        return found

    def _handed_on(self, types: Mapping[str, Any], reached: Reach) -> None:
        """An accumulator that is passed on is the sum itself, or what its type leaves of it."""
        if set(types) == {self.result}:
            return
        low, high, bounds = reached.low.reshape(-1, 1), reached.high.reshape(-1, 1), reached.bounds
        points = np.concatenate([low, low + 1, low // 2, high // 3, high - 1, high, 0 * low], axis=1)
        if bounds is not None:
            beside = [np.clip(np.full_like(low, b + d), low, high) for b in bounds for d in (-1, 0, 1)]
            points = np.concatenate([points, *beside], axis=1)
        expect_rising(self.model, self.result, {v: (low.astype(t), high.astype(t)) for v, t in types.items()})
        found = self.model.run(self.result, {v: points.astype(t) for v, t in types.items()})
        expected = points if bounds is None else np.clip(points, *bounds)
        expect(np.array_equal(found, expected), self.node, "the value it passes on is not its sum")


class Reach(NamedTuple):
    """Hold the sums that an accumulator may have, `[C]` each, and what they saturate to, if to anything."""

    low: Ints
    high: Ints
    bounds: tuple[int, int] | None


def narrowing_equal(
    model: Model,
    result: str,
    types: Mapping[str, Any],
    numbers: Mapping[str, Any],
    *,
    reach: Reach,
    claim: Mapping[str, Any],
    where: str,
) -> None:
    """Check that `result`, as a function of accumulators, equals a `requantize` entry on all of [low, high].

    The accumulators are first saturated to the bounds of `reach`. The result must depart from the exact product as
    claimed.

    `reach`: minimum and maximum accumulator, `[C]` each, and the bounds.
    """
    bounds = reach.bounds
    low, high = (np.asarray(v, np.int64).reshape(-1) for v in (reach.low, reach.high))
    inside = (low, high) if bounds is None else (np.maximum(low, bounds[0]), np.minimum(high, bounds[1]))
    narrowing = ClaimedNarrowing(numbers, *inside)
    far = [np.broadcast_to(v.reshape(-1, 1), narrowing.low.shape) for v in (low, high)]
    expect_rising(model, result, {v: tuple(e.astype(t) for e in far) for v, t in types.items()})  # type: ignore[misc]
    read = narrowing.many and bounds is None and is_specified(model, result, types, numbers)
    for rows, block in (narrowing.thinned() if read else narrowing).blocks:
        _block_equal(model, result, types, block, far=[e[rows] for e in far], rows=rows, where=where)
    expect_constants(model, result, set(types), numbers, where=where)
    expect_claim(claim, narrowing.departures(claim), where)


def _block_equal(
    model: Model,
    result: str,
    types: Mapping[str, Any],
    block: ClaimedNarrowing,
    *,
    far: list[Ints],
    rows: slice,
    where: str,
) -> None:
    """The same of some channels, whose sums are between the ends `far`."""

    def found(acc: Ints) -> Ints:
        return np.asarray(model.run(result, {v: acc.astype(t) for v, t in types.items()}, rows)).astype(np.int64)

    own = block.numbers.get("channel_range")
    beyond = any(np.any(a != b) for a, b in zip(far, (block.low, block.high), strict=True))
    if own is None and not beyond and block.equals(found):
        return
    points = np.concatenate([block.points(), *far], axis=1)
    expected = block.specified(np.clip(points, block.low, block.high))
    if own is not None:
        expected = spec.clamp(expected, [np.asarray(v)[rows] for v in own])
    expect_equal(found(points), expected, points, where, channel=rows.start or 0)


def expect_constants(model: Model, result: str, sources: set[str], numbers: Mapping[str, Any], *, where: str) -> None:
    """Check that the model narrows by the multiplier that plan.json names.

    Another one is wrong even if no accumulator that can be reached shows it.
    """
    key, dtype = {"fixed_point": ("q31", np.int64), "float_multiplier": ("multiplier", np.float32)}.get(
        numbers["kind"], (None, None)
    )
    wanted = None if key is None else np.asarray(numbers[key], dtype).reshape(-1)
    found = wanted is None
    for value in model.back(result, sources):
        node = model.producer.get(value)
        if node is None or value in sources:
            continue
        for constant in (model.constant(i) for i in node.input if i and model.is_constant(i)):
            if node.op_type == "Mul" and wanted is not None:
                found = found or (constant.dtype == dtype and np.array_equal(constant.reshape(-1), wanted))
    expect(found, where, f"its {key} in the model differs from plan.json")


def expect_equal(found: Array, expected: Array, points: Array, where: str, *, channel: int = 0) -> None:
    """Check that two functions are equal at some points."""
    found, expected, points = np.broadcast_arrays(found, expected, points)
    wrong = np.argwhere(found != expected)
    if len(wrong):
        at = tuple(wrong[0])
        which = f" of channel {at[0] + channel}" if found.shape[0] > 1 or channel else ""
        raise Wrong(where, f"the accumulator {points[at]}{which} is stored as {found[at]}, specified is {expected[at]}")


def expect_claim(claim: Mapping[str, Any], found: Mapping[str, Any], where: str) -> None:
    """Raise Wrong where the certificate counts something else."""
    for key, value in found.items():
        expect(claim.get(key) == value, where, f"the certificate has {key}: {claim.get(key)}, found is {value}")


def _total(parts: list[Array]) -> Array:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return np.asarray(total)
