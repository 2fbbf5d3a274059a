"""Integer weights of which no pair of products saturates in int16: exact on x86 with and without VNNI, and on Arm.

x86 without VNNI adds two uint8 x int8 products in int16 (`pairs.py`). Two weights of a pair that have the same sign and
a sum of at most 32767 / qmax of the input (128 for 8 bits) cannot saturate. Each channel gets the scale, among some
between its own and the one at which its worst pair fits, with the smallest error of its output.

The error of an output is taken for inputs that are spread evenly over their range: of errors e of the weights it is
var(x) Σe² + mean(x)² (Σe)². Limits of pairs shorten weights of one sign, so Σe would be far from 0 where inputs are
never negative; the weights next to a tie are rounded such that it is small.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import onnx_ir as ir
from cachetools import LRUCache
from numpy.typing import NDArray

from quantpipe import intmath
from quantpipe.arrays import Floats
from quantpipe.graph.external_weights import beside, file_array, is_mapped
from quantpipe.graph.unsigned import SIGN
from quantpipe.graph.view import Graph
from quantpipe.plan.builder import PlanBuilder
from quantpipe.plan.saturating_pairs import (
    BLOCK,
    channel_sums,
    kernel_order,
    largest_pair,
    needs_wide_pairs,
    saturating_channels,
)
from quantpipe.types import DType, Isa, Kernel, PowerOfTwo, Quantizer, WeightTensor

PIECE = 1 << 15
"""Weights whose arrays stay in a processor's cache."""

SHARES = np.linspace(0.0, 1.0, 9)
"""Exponents between the scale of all weights (0) and the one at which the worst pair fits (1)."""

MARGIN = 1e-4
"""Relative: more than float32 loses in a sum of squares."""

_KNOWN: WeakKeyDictionary[ir.Model, LRUCache[Hashable, WeightTensor]] = WeakKeyDictionary()
_BOUNDS: WeakKeyDictionary[ir.Model, dict[Hashable, dict[int, Floats]]] = WeakKeyDictionary()
"""Lower bounds of errors by weight and first channel of a part: they do not depend on the zero point of the input."""

_LOCK = Lock()

UNSIGNED = "stored as uint8 with zero point 128"
"""Part of the reason for weights whose integers stay, in `QuantPlan.raised`."""

SATURATES = "pairs of products would saturate in int16 on x86 without VNNI"


def pair_safe(builder: PlanBuilder, kernel: Kernel, weight: WeightTensor) -> WeightTensor:
    """Return the weight of a kernel in a form whose sums are exact in every session, where it has to be.

    Integers that may change get a pair-safe scale. Others (given by the model, or already chosen by recovery) are
    stored as uint8 with 128 as zero point, which every processor multiplies exactly, x86 at more time.
    """
    data = builder.quantizers[kernel.operands[0].tensor]
    topology = builder.topology
    if not builder.in_any_session or not needs_wide_pairs(builder.graph, topology, kernel, weight, data=data):
        return weight
    return exact_weight(builder, weight, data, where=kernel.node)


def exact_weight(builder: PlanBuilder, weight: WeightTensor, data: Quantizer, *, where: str) -> WeightTensor:
    """Return a weight with saturating pairs in a form without them; `where` is the node, for the report."""
    site = builder.topology.weight_of[weight.tensor]
    given = site.frozen or site.fixed is not None or weight.tensor in builder.overrides.weights
    given = given or weight.block is not None or weight.has_zero_point
    if given or builder.spec.isa is not Isa.ANY:
        return _as_unsigned(builder, weight, data, where)
    power_of_two = builder.schema.weights.power_of_two is not PowerOfTwo.NONE
    key = (weight.digest, site.channel_axis, largest_pair(data), data.zero_point, power_of_two)
    with _LOCK:
        known = _known(builder.graph)
        made = known.get(key)
        bounds = _BOUNDS.setdefault(builder.graph.model, {}).setdefault((*key[:3], power_of_two), {})
    if made is None:
        real = builder.graph.constant(weight.tensor)
        made = _Scales(weight, real, site.channel_axis, data, power_of_two=power_of_two, bounds=bounds).chosen()
        with _LOCK, suppress(ValueError):  # too large to be kept
            known[key] = made
    raised = np.atleast_1d(made.scale / weight.scale)
    _report(builder, made, where, channels=int(np.sum(raised > 1)), factor=float(raised.max()), reason=SATURATES)
    return made


def _known(graph: Graph) -> LRUCache[Hashable, WeightTensor]:
    """Return the weights made for a graph: the search, the plan of its result and the comparisons ask for the same."""
    if graph.model not in _KNOWN:
        constants = (graph.constant_tensor(name).nbytes for name in graph.constant_names())
        _KNOWN[graph.model] = LRUCache(sum(constants) // 2, getsizeof=lambda made: made.values.nbytes)
    return _KNOWN[graph.model]


def in_own_type(weight: WeightTensor, own: DType) -> WeightTensor:
    """Return a weight in the type of its site (int8), where a plan stores it as uint8."""
    if weight.dtype is not DType.UINT8 or own is not DType.INT8:
        return weight
    values = np.bitwise_xor(weight.values, SIGN).view(np.int8)
    return replace(weight, values=values, dtype=own, zero_point=np.asarray(weight.zero_point + DType.INT8.qmin))


def about_128(weight: WeightTensor) -> WeightTensor:
    """Return int8 weights as uint8 with a zero point 128 greater: the same real values."""
    values = beside(np.bitwise_xor(weight.values.view(np.uint8), SIGN), weight.values)
    return replace(weight, values=values, dtype=DType.UINT8, zero_point=np.asarray(weight.zero_point + 128))


def rounded_pairs(steps: NDArray[np.floating[Any]], low: int, high: int, most: int) -> Floats:
    """Return integers of `[…, K]` weights in steps, neighbours along the last axis as pairs of at most `most`.

    A pair of equal sign beyond the limit gets the two nearest integers whose magnitudes add up to it.
    """
    found = intmath.nearest_step(steps, low, high)
    odd = steps.shape[-1] % 2
    a, b = found[..., : found.shape[-1] - odd : 2], found[..., 1::2]
    over = (a * b > 0) & (np.abs(a + b) > most)
    if np.any(over):
        x, y = steps[..., : found.shape[-1] - odd : 2][over], steps[..., 1::2][over]
        sign, widest = np.sign(x), min(high, -low)
        first = intmath.nearest_step((np.abs(x) - np.abs(y) + most) / 2, max(most - widest, 0), min(widest, most))
        a[over], b[over] = sign * first, sign * (most - first)
    return found


class _Scales:
    """The scales that are tried for one weight; rows `[O, K]` are its output channels in the order of the kernel."""

    def __init__(
        self,
        weight: WeightTensor,
        real: NDArray[Any],
        axis: int,
        data: Quantizer,
        *,
        power_of_two: bool,
        bounds: dict[int, Floats] | None = None,
    ) -> None:
        self._bounds = {} if bounds is None else bounds
        self._weight, self._real, self._axis = weight, real, axis
        self._most, self._ordered = largest_pair(data), kernel_order(real, axis) is not None
        self._low, self._high = -weight.dtype.qmax, weight.dtype.qmax
        if not self._ordered:  # any two weights may be a pair
            self._low, self._high = -(self._most // 2), self._most // 2
        self._mean = float(np.sqrt(12.0) * (0.5 - data.zero_point / data.qmax))
        factor = np.maximum(channel_sums(weight.values, axis) / self._most, 1.0)
        self._per_channel = weight.scale.ndim > 0
        self._factor = factor if self._per_channel else np.full(len(factor), factor.max())
        self._shares: NDArray[Any] = SHARES
        if power_of_two:
            self._factor, self._shares = 2.0 ** np.ceil(np.log2(self._factor)), np.array([0.0, 1.0])

    def chosen(self) -> WeightTensor:
        """Return the weight with the scale of smallest error in each channel, or in the tensor if it has one scale."""
        weight, count = self._weight, len(self._factor)
        shape = weight.values.shape
        values = file_array(shape, weight.dtype.numpy) if is_mapped(weight.values) else np.empty_like(weight.values)
        target, scales = self._rows(values), np.empty(count, np.float32)
        chosen = self._best
        if not self._per_channel:
            errors = np.array([[e for part in self._parts() for e in self._tried(part, s)[2]] for s in self._shares])
            share = self._shares[errors.sum(axis=1).argmin()]

            def chosen(part: slice) -> tuple[NDArray[Any], NDArray[np.float32]]:
                return self._tried(part, share)[:2]

        for part in self._parts():
            integers, scales[part] = chosen(part)
            target[part] = integers.reshape(-1, *target.shape[1:])
        return replace(weight, values=values, scale=scales if self._per_channel else scales[0].reshape(()))

    def _best(self, part: slice) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return integers and scales of some channels, by the share of smallest error of each, the first of equal ones.

        The error of rounding pairs alone is a lower bound. Each channel is tried with the share of the smallest bound,
        and with others whose bound does not exceed the error that is known then.
        """
        bounds = self._bounds.get(part.start)
        if bounds is None:
            bounds = self._bounds[part.start] = np.array([self._least(part, share) for share in self._shares])
            bounds[1:, self._factor[part] == 1.0] = np.inf  # one scale, whatever the share
        count, first = bounds.shape[1], bounds.argmin(axis=0)
        integers = np.empty((count, self._matrix(part).shape[1]), self._weight.dtype.numpy)
        scales, errors, chosen = np.empty(count, np.float32), np.full(count, np.inf), np.zeros(count, np.intp)
        for begins in (True, False):
            for number, share in enumerate(self._shares):
                rows = np.flatnonzero((first == number) if begins else (first != number) & (bounds[number] <= errors))
                if not rows.size:
                    continue
                made, scale, lost = self._tried(part, share, rows)
                taken = (lost < errors[rows]) | ((lost == errors[rows]) & (number < chosen[rows]))
                rows = rows[taken]
                integers[rows], scales[rows], errors[rows], chosen[rows] = (
                    made[taken],
                    scale[taken],
                    lost[taken],
                    number,
                )
        return integers, scales

    def _least(self, part: slice, share: float) -> Floats:
        """Return a lower bound of the errors of some channels, in float32 and less its rounding."""
        scale, real = self._scale(part, share), self._matrix(part)
        steps: NDArray[Any] = (real / scale[:, None]).astype(np.float32, copy=False)
        lost = self._rounded(steps) - steps
        found = np.einsum("ij,ij->i", lost, lost).astype(np.float64) * scale.astype(np.float64) ** 2
        return np.asarray(found * (1.0 - MARGIN))

    def _scale(self, part: slice, share: float) -> NDArray[np.float32]:
        own = np.broadcast_to(self._weight.scale.astype(np.float64), len(self._factor))[part]
        return np.asarray(own * self._factor[part] ** share, np.float32)

    def _matrix(self, part: slice) -> NDArray[Any]:
        """Return the real weights of some channels as a matrix."""
        real = self._rows(self._real)[part]
        return real.reshape(len(real), -1)

    def _tried(
        self, part: slice, share: float, rows: NDArray[np.intp] | None = None
    ) -> tuple[NDArray[Any], NDArray[np.float32], Floats]:
        """The integers, the scales and the errors of some channels of a part, as many at a time as a cache holds."""
        real, scale = self._matrix(part), self._scale(part, share)
        add = _add_rows if real.flags.c_contiguous else _add_columns  # float sums depend on their order
        if rows is not None:
            if len(rows) == 1 < len(real):  # one row alone is added as if it were contiguous
                integers, scale, errors = self._tried(part, share, np.repeat(rows, 2))
                return integers[:1], scale[:1], errors[:1]
            real, scale = real[rows], scale[rows]
        height = max(2, PIECE // max(real.shape[1], 1))
        pieces = [slice(*ends) for ends in pairwise((*range(0, max(len(real) - 1, 1), height), len(real)))]
        steps = [np.divide(real[piece], scale[piece, None], dtype=np.float64, order="C") for piece in pieces]
        near = [self._rounded(some) for some in steps]
        totals = [add(some - exact) for some, exact in zip(near, steps, strict=True)]
        most = min(real.shape[1], int(np.ceil(max(np.abs(total).max(initial=0.0) for total in totals))))
        integers, errors = np.empty(real.shape, self._weight.dtype.numpy), np.empty(len(real))
        for piece, some, exact, total in zip(pieces, near, steps, totals, strict=True):
            if most and self._mean:
                some += _balancing(some, some - exact, total, self._mean, full=self._full(some), most=most)
            integers[piece] = some
            some -= exact
            errors[piece] = add(some**2) + (self._mean * add(some)) ** 2
        return integers, scale, errors * scale.astype(np.float64) ** 2

    def _rounded(self, steps: NDArray[np.floating[Any]]) -> Floats:
        if self._ordered:
            return rounded_pairs(steps, self._low, self._high, self._most)
        return np.asarray(intmath.nearest_step(steps, self._low, self._high))

    def _full(self, integers: Floats) -> NDArray[np.bool_]:
        """Return which integers cannot move away from 0, their partners doing the same."""
        full = np.abs(integers) >= self._high
        if self._ordered:
            even = integers.shape[1] // 2 * 2
            a, b = integers[:, 0:even:2], integers[:, 1:even:2]
            pair = (np.abs(a + b) > self._most - 2) & (a * b >= 0)  # of opposite signs their sum is even smaller
            full[:, 0:even:2] |= pair
            full[:, 1:even:2] |= pair
        return np.asarray(full)

    def _rows(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a view of weights by output channel, with pairs next to each other where their order is known."""
        ordered = kernel_order(values, self._axis)
        return np.moveaxis(values, self._axis, 0) if ordered is None else ordered

    def _parts(self) -> Iterator[slice]:
        """Yield slices of the channels, few enough to be looked at at once."""
        height = max(1, BLOCK // max(self._weight.values.size // max(len(self._factor), 1), 1))
        return (slice(first, first + height) for first in range(0, len(self._factor), height))


def _add_rows(values: Floats) -> Floats:
    """Σ of each row, as NumPy adds rows that are contiguous."""
    return np.asarray(np.sum(values, axis=1))


def _add_columns(values: Floats) -> Floats:
    """Σ of each row, one column after the other, as NumPy adds rows that are not contiguous."""
    return np.asarray(np.sum(np.asfortranarray(values), axis=1))


def _balancing(
    integers: Floats, errors: Floats, total: Floats, mean: float, *, full: NDArray[np.bool_], most: int
) -> Floats:
    """Return steps -1, 0 or 1 that round some integers the other way, so that Σe² + (mean Σe)² is smallest.

    `errors` e of `integers` `[O, K]`, in steps, with Σe `total` `[O]`. `full`: those that cannot move away from 0.
    `most`: how many of a row may move.
    """
    total = total[:, None]
    sign = np.where(total < 0, -1.0, 1.0)
    price = 1.0 - 2.0 * sign * errors  # what e² gains by one step that lowers Σe
    price[full & (integers * sign <= 0)] = np.inf  # the way leads away from 0
    price[price >= 2.0] = np.inf  # no further than to the next integer
    # Behind these, e² grows and Σe as well: no more of them move.
    useful = np.ceil(np.abs(total[:, 0])) + np.count_nonzero(price < 0, axis=1) + 1
    first = _smallest(price, min(most, price.shape[1], int(useful.max())))
    cost = np.cumsum(np.take_along_axis(price, first, axis=1), axis=1)
    left = np.abs(total) - np.arange(1, first.shape[1] + 1)
    gain = cost + mean**2 * (left**2 - total**2)
    count = np.where(gain.min(axis=1) < 0, gain.argmin(axis=1) + 1, 0)
    moved = np.zeros_like(integers)
    np.put_along_axis(moved, first, np.where(np.arange(first.shape[1]) < count[:, None], -sign, 0.0), axis=1)
    return moved


def _smallest(price: Floats, count: int) -> NDArray[np.intp]:
    """The columns of the `count` smallest entries of each row, in their order; of equal ones the first ones.

    A stable sort gives the same. It takes most of the time, and few of the entries are needed.
    """
    limit = np.partition(price, count - 1, axis=1)[:, count - 1 : count]
    taken = price <= limit
    many = np.count_nonzero(taken, axis=1) > count
    if np.any(many):  # only the first ones of those that equal the limit
        below, level = price[many] < limit[many], price[many] == limit[many]
        room = count - np.count_nonzero(below, axis=1, keepdims=True)
        taken[many] = below | (level & (np.cumsum(level, axis=1) <= room))
    columns = np.nonzero(taken)[1].reshape(len(price), count)
    order = np.argsort(np.take_along_axis(price, columns, axis=1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, axis=1)


def _as_unsigned(builder: PlanBuilder, weight: WeightTensor, data: Quantizer, where: str) -> WeightTensor:
    """The same weights as uint8 about 128; those in blocks, whose integers are made at load, stay as they are."""
    if weight.block is not None:
        return weight
    axis = builder.topology.weight_of[weight.tensor].channel_axis
    channels = saturating_channels(weight.values, axis, data.qmax)
    _report(builder, weight, where, channels=channels, factor=1.0, reason=f"{SATURATES}; {UNSIGNED}")
    return about_128(weight)


def _report(
    builder: PlanBuilder, weight: WeightTensor, where: str, *, channels: int, factor: float, reason: str
) -> None:
    builder.raised.append(
        {"node": where, "tensor": weight.tensor, "channels": channels, "factor": factor, "reason": reason}
    )
