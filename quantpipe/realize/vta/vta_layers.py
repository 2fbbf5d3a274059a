"""Lower a kernel to VTA: sums of products with tiles of weights, then the ALU.

Everything goes through the matrix unit. An addition multiplies its operands by one, and an average by ones over its
window. A grouped convolution has diagonal tiles, of which zero tiles are left out. The host runs everything that is no
such sum.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from quantpipe.arrays import Array
from quantpipe.errors import HardwareError
from quantpipe.graph.view import Graph, Node
from quantpipe.oprules import Family, rule_of
from quantpipe.oprules.geometry import pads_before
from quantpipe.oprules.matrix import TransposedForm
from quantpipe.realize.vta.isa import BLOCK
from quantpipe.types import (
    Accumulate,
    Average,
    DType,
    Form,
    Kernel,
    Move,
    Overflow,
    Product,
    QuantPlan,
    Requantize,
    RequantizeKind,
    Rounding,
    Sum,
    Topology,
)

FORM = "vta"
Tile = Callable[[int, int, int], "Array | None"]
Reads = Callable[[int], Sequence[int]]


class HostsOwn(Exception):
    """Report a kernel that the host runs, because VTA has no instructions for it; its text is the reason."""


@dataclass(frozen=True)
class Map:
    """State the size of a map of vectors: channels in blocks of 16, rows, columns."""

    channels: int
    height: int
    width: int
    rows: bool = False
    """Whether channels are the tensor's last axis, and all others its columns."""

    @property
    def blocks(self) -> int:
        """Return the number of vectors that the channels fill."""
        return -(-self.channels // BLOCK)


@dataclass(frozen=True, eq=False)
class VtaTerm:
    """Hold products that are added into accumulators of their own, and then shifted.

    `tensor`: The multiplied tensor, as it is stored. `source`: Its map. `taps`: Rows and columns of the window.
    `strides`: Strides of the window. `dilations`: Dilations of the window. `begin`: Pads before the map, at its top and
    its left. `reads`: Block of results -> the blocks of inputs that it reads. `tile`: (block of results, block of
    inputs, tap) -> `[16, 16]` int8, results first; None for zeros. `bias`: int32 `[blocks, 16]`. `shift`: To the left
    if above 0; to the right, ties up, if below.
    """

    tensor: str
    source: Map
    taps: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    begin: tuple[int, int]
    tile: Tile = field(repr=False)
    reads: Reads = field(repr=False)
    bias: Array | None = field(default=None, repr=False)
    shift: int = 0


@dataclass(frozen=True, eq=False)
class VtaLayer:
    """Hold one kernel as VTA runs it.

    `node`: The node; for an accumulator that goes into an addition, the addition. `absorbed`: Nodes that are part of
    it: convolutions whose accumulators it adds. `result`: The map of its output. `terms`: The terms of the sum.
    `moves`: It makes stored integers of the scale of its input. `greatest`: The maximum over a window is taken of the
    single term, instead of a sum (MaxPool). `product`: The two terms are multiplied (a core whose ALU multiplies).
    `narrowing`: How its sums are stored; None (unless it moves values): all 32 bits are stored. `bounds`: Smallest and
    largest result of a layer that only moves values.
    """

    node: str
    absorbed: tuple[str, ...]
    output: str
    result: Map
    terms: tuple[VtaTerm, ...]
    narrowing: Requantize | None
    moves: bool = False
    greatest: bool = False
    product: bool = False
    bounds: tuple[int | None, int | None] = (None, None)


@dataclass(frozen=True, eq=False)
class Lowering:
    """Make layers of the kernels of a plan."""

    graph: Graph
    topology: Topology
    plan: QuantPlan

    def layers(self) -> tuple[dict[str, VtaLayer], dict[str, str]]:
        """Return node -> its layer, and node -> why the host runs it.

        Raises HardwareError for kernels that neither VTA runs nor only move values.
        """
        found, host, refused = dict[str, VtaLayer](), dict[str, str](), list[str]()
        handed = self._handed_on()
        for kernel in self.topology.kernels:
            if kernel.node in handed:
                continue
            try:
                found[kernel.node] = self.layer(kernel, handed)
            except HostsOwn as why:
                moves = isinstance(self.plan.kernels[kernel.node], Move)
                if moves:
                    host[kernel.node] = str(why)
                else:
                    refused.append(f"{kernel.node} ({kernel.op}): {why}")
        if refused:
            more = f"; and {len(refused) - 4} more" if len(refused) > 4 else ""
            raise HardwareError(
                f"VTA has no instructions for {'; '.join(refused[:4])}{more}. Legal are sums of int8 products, their "
                "additions, averages and maxima, narrowed by shifts. Keep these nodes in float (annotate.float_nodes); "
                "the host runs them then",
                stage="realize",
                where=FORM,
            )
        return found, host

    def _handed_on(self) -> dict[str, Kernel]:
        """Return the kernels whose accumulators go into an addition, by node: they are part of its layer."""
        makers = {k.output: k for k in self.topology.kernels if k.form is Form.RAW}
        found = {}
        for kernel in self.topology.kernels:
            if isinstance(self.plan.kernels[kernel.node], Sum):
                for operand in kernel.operands:
                    maker = makers.get(operand.tensor)
                    if operand.form is Form.RAW and maker is not None:
                        found[maker.node] = maker
        return found

    def layer(self, kernel: Kernel, handed: dict[str, Kernel]) -> VtaLayer:
        """Return the layer of a kernel; HostsOwn where VTA has no instructions for it."""
        numbers = self.plan.kernels[kernel.node]
        node = self.graph.by_name[kernel.node]
        if isinstance(numbers, Accumulate):
            term, result = self._product(node, kernel, numbers)
            return VtaLayer(kernel.node, (), kernel.output, result, (term,), _shifts(numbers.output))
        if isinstance(numbers, Sum) and numbers.scale is not None and all(t.fixed is None for t in numbers.terms):
            return self._sum(kernel, numbers, handed)
        if isinstance(numbers, Average):
            return self._average(node, kernel, numbers)
        if isinstance(numbers, Product):
            return self._multiplied(kernel, numbers)
        if isinstance(numbers, Move):
            return self._moved(node, kernel, numbers)
        raise HostsOwn("VTA does not run ops of its family")

    def grid(self, tensor: str) -> Map:
        """Return the map of a tensor of one sample whose channels are axis 1."""
        shape = self.graph.shapes[tensor]
        if not 3 <= len(shape) <= 4 or shape[0] != 1:
            raise HostsOwn("it is no map of one sample")
        return Map(shape[1], shape[2] if len(shape) == 4 else 1, shape[-1])

    def rows(self, tensor: str) -> Map:
        """Return the map of a tensor whose channels are its last axis."""
        shape = self.graph.shapes[tensor]
        return Map(shape[-1], 1, max(1, prod(shape[:-1])), rows=True)

    def _either(self, tensor: str) -> Map:
        return self.grid(tensor) if len(self.graph.shapes[tensor]) == 4 else self.rows(tensor)

    def _product(self, node: Node, kernel: Kernel, numbers: Accumulate) -> tuple[VtaTerm, Map]:
        if numbers.pairs is not None or (
            numbers.limit is not None and (numbers.limit.overflow is not Overflow.WRAP or numbers.limit.width != 32)
        ):
            raise HostsOwn("its sums overflow otherwise than int32 that wraps")
        rule = rule_of(node)
        if rule is not None and isinstance(rule.matrix, TransposedForm):
            raise HostsOwn("a transposed convolution reads with gaps")
        data, stored = kernel.operands[0], self.plan.weights[numbers.weight]
        self._plain(data.tensor)
        values = stored.centred()
        if max(int(values.max(initial=0)), -int(values.min(initial=0)) - 1) > DType.INT8.qmax:
            raise HostsOwn("its weights have more than 8 bits")
        if values.ndim == 2:
            matrix = values if node.attr("transB", 0) else values.T
            values = matrix.reshape(*matrix.shape, 1, 1)
            source, result = self.rows(data.tensor), self.rows(kernel.output)
            bias = _blocks(numbers.bias)
            return VtaTerm(data.tensor, source, (1, 1), (1, 1), (1, 1), (0, 0), *_tiles(values, 1), bias), result
        rank = values.ndim - 2
        if rank > 2:
            raise HostsOwn("its window has three axes")
        values = values.reshape(*values.shape[:2], *([1] * (2 - rank)), *values.shape[2:])
        source = self.grid(data.tensor)
        taps, strides, dilations, begin = self._window(node, data.tensor, rank, values.shape[4 - rank :])
        tiles = _tiles(values, int(node.attr("group", 1)))
        term = VtaTerm(data.tensor, source, taps, strides, dilations, begin, *tiles, _blocks(numbers.bias))
        return term, self.grid(node.outputs[0])

    def _window(self, node: Node, tensor: str, rank: int, taps: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
        size, made = self.graph.shapes[tensor][2:], self.graph.shapes[node.outputs[0]][2:]
        ones = [1] * rank
        begin = pads_before(node, list(size), list(taps), list(made))
        strides, dilations = node.attr("strides", ones), node.attr("dilations", ones)
        fill = [1] * (2 - rank)
        zeros = [0] * (2 - rank)
        return (
            _two([*fill, *taps]), _two([*fill, *strides]), _two([*fill, *dilations]), _two([*zeros, *begin]),
        )  # fmt: skip

    def _plain(self, tensor: str) -> None:
        q = self.plan.quantizers.get(tensor)
        if q is None or q.zero_point or q.dtype is not DType.INT8 or tensor in self.plan.constants:
            raise HostsOwn(f"{tensor} is not stored in int8 with zero point 0")

    def _same(self, tensor: str, factor: int = 1, shift: int = 0) -> VtaTerm:
        self._plain(tensor)
        source = self._either(tensor)
        return VtaTerm(tensor, source, (1, 1), (1, 1), (1, 1), (0, 0), *_diagonal(factor), None, shift)

    def _sum(self, kernel: Kernel, numbers: Sum, handed: dict[str, Kernel]) -> VtaLayer:
        terms, absorbed = [], []
        makers = {k.output: k for k in handed.values()}
        if numbers.limit is not None and (numbers.limit.overflow is not Overflow.WRAP or numbers.limit.width != 32):
            raise HostsOwn("its sums overflow otherwise than int32 that wraps")
        if numbers.rounding is not Rounding.HALF_UP and any(t.shift < 0 for t in numbers.terms):
            raise HostsOwn(f"operands are shifted right with rounding {numbers.rounding}")
        for term in numbers.terms:
            sign = -1 if float(np.asarray(term.ratio).reshape(-1)[0]) < 0 else 1
            if self.graph.shapes[term.tensor] != self.graph.shapes[kernel.output]:
                raise HostsOwn("an operand is broadcast")
            if term.form is Form.RAW:
                maker = makers[term.tensor]
                own = self.plan.kernels[maker.node]
                if sign < 0 or not isinstance(own, Accumulate) or maker.fused:
                    raise HostsOwn("the accumulator that it takes is no plain sum of products")
                part, made = self._product(self.graph.by_name[maker.node], maker, own)
                if made != self._either(kernel.output):
                    raise HostsOwn("its operands are laid out otherwise")
                terms.append(VtaTerm(**{**vars(part), "shift": term.shift}))
                absorbed.append(maker.node)
            else:
                terms.append(self._same(term.tensor, sign, term.shift))
        result = self._either(kernel.output)
        return VtaLayer(kernel.node, tuple(absorbed), kernel.output, result, tuple(terms), _shifts(numbers.output))

    def _average(self, node: Node, kernel: Kernel, numbers: Average) -> VtaLayer:
        data = kernel.operands[0].tensor
        self._plain(data)
        source = self.grid(data)
        taps = node.attr("kernel_shape", list(self.graph.shapes[data][2:]))
        window, ones = self._window(node, data, len(taps), tuple(taps)), _diagonal(1)
        term = VtaTerm(data, source, window[0], window[1], window[2], window[3], *ones)
        result = self.grid(node.outputs[0])
        return VtaLayer(kernel.node, (), kernel.output, result, (term,), _shifts(numbers.output))

    def _multiplied(self, kernel: Kernel, numbers: Product) -> VtaLayer:
        names = [o.tensor for o in kernel.operands]
        if any(self.graph.shapes[n] != self.graph.shapes[kernel.output] for n in names):
            raise HostsOwn("an operand is broadcast")
        terms = tuple(self._same(n) for n in names)
        result = self._either(kernel.output)
        return VtaLayer(kernel.node, (), kernel.output, result, terms, _shifts(numbers.output), product=True)

    def _moved(self, node: Node, kernel: Kernel, numbers: Move) -> VtaLayer:
        data = kernel.operands[0]
        if kernel.form is Form.RAW or data.form is Form.RAW or any(o.rescaled for o in kernel.operands):
            raise HostsOwn("it moves accumulators, or integers of another scale")
        rule = rule_of(node)
        bounds = (numbers.low, numbers.high)
        if rule is not None and rule.family is Family.CLAMP:
            term = self._same(data.tensor)
            result = self._either(kernel.output)
            return VtaLayer(kernel.node, (), kernel.output, result, (term,), None, moves=True, bounds=bounds)
        taps = node.attr("kernel_shape", None)
        if taps is None or len(self.graph.shapes[data.tensor]) != 4 or node.attr("ceil_mode", 0):
            raise HostsOwn("it moves values, which is a matter of addresses")
        window, ones = self._window(node, data.tensor, 2, tuple(taps)), _diagonal(1)
        self._plain(data.tensor)
        source = self.grid(data.tensor)
        term = VtaTerm(data.tensor, source, window[0], window[1], window[2], window[3], *ones)
        made = self.grid(node.outputs[0])
        return VtaLayer(kernel.node, (), kernel.output, made, (term,), None, moves=True, greatest=True, bounds=bounds)


def _two(values: Any) -> tuple[int, int]:
    return int(values[0]), int(values[1])


def _shifts(how: Requantize | None) -> Requantize | None:
    if how is None:
        return None
    if how.kind is RequantizeKind.SHIFT and how.rounding in (Rounding.HALF_UP, Rounding.FLOOR) and not how.zero_point:
        return how
    raise HostsOwn(f"it narrows by {how.kind} with rounding {how.rounding}")


def _blocks(bias: Array | None) -> Array | None:
    if bias is None:
        return None
    padded = np.zeros(-(-len(bias) // BLOCK) * BLOCK, np.int64)
    padded[: len(bias)] = bias
    return padded.astype(np.int32).reshape(-1, BLOCK)


def _tiles(values: Array, group: int) -> tuple[Tile, Reads]:
    """Return tiles of a weight `[M, C / group, *taps]`, and which input blocks each result block reads."""
    outputs, per, made = values.shape[0], values.shape[1], values.shape[0] // group
    flat = values.reshape(outputs, per, -1).astype(np.int8)
    if group == 1:
        rows, columns = -(-outputs // BLOCK), -(-per // BLOCK)
        whole = np.zeros((rows * BLOCK, columns * BLOCK, flat.shape[2]), np.int8)
        whole[:outputs, :per] = flat
        tiles = np.ascontiguousarray(whole.reshape(rows, BLOCK, columns, BLOCK, -1).transpose(0, 2, 4, 1, 3))
        return (lambda result, block, tap: tiles[result, block, tap]), (lambda result: range(columns))

    def reads(result: int) -> range:
        last = min((result + 1) * BLOCK, outputs) - 1
        return range(result * BLOCK // made * per // BLOCK, (last // made * per + per - 1) // BLOCK + 1)

    def tile(result: int, block: int, tap: int) -> Array | None:
        found = np.zeros((BLOCK, BLOCK), np.int8)
        first_row = result * BLOCK
        for row in range(first_row, min(first_row + BLOCK, outputs)):
            first = row // made * per
            low, high = max(first, block * BLOCK), min(first + per, (block + 1) * BLOCK)
            if low < high:
                part = flat[row, low - first : high - first, tap]
                found[row - first_row, low - block * BLOCK : high - block * BLOCK] = part
        return found if found.any() else None

    return tile, reads


def _diagonal(factor: int) -> tuple[Tile, Reads]:
    one = (np.eye(BLOCK) * factor).astype(np.int8)
    return (lambda result, block, tap: one if result == block else None), (lambda result: (result,))
