"""Write a layer as VTA's instructions, tile by tile."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from quantpipe.realize.vta.isa import ACCUMULATORS, BLOCK, INPUTS, WEIGHTS, Alu, Instruction, Memory, Uop
from quantpipe.realize.vta.tiling import TilePlace, accumulators, patch_of, places, runs, size_of_tile
from quantpipe.realize.vta.vta_layers import VtaLayer, VtaTerm
from quantpipe.realize.vta.vta_program import Image, VtaProgram
from quantpipe.types import DType, Requantize, Rounding

PADS = ("y_pad_0", "y_pad_1", "x_pad_0", "x_pad_1")
PLANES = 4
"""Stores of 8 bits that read an accumulator out whole."""


@dataclass(frozen=True)
class Addresses:
    """Say where the tensors of a layer lie, in vectors of 16 bytes."""

    terms: tuple[int, ...]
    result: int


def schedule(layer: VtaLayer, at: Addresses, image: Image) -> list[Instruction]:
    """Return the instructions of a layer.

    `at` holds the addresses of its tensors. `image`, the memory of constants, gets its weights, biases and
    micro-operations. Raises HardwareError where the layer does not fit the buffers.
    """
    height, width = size_of_tile(layer)
    most = height * width
    chunk = 1
    while chunk < layer.result.blocks and _chunk_fits(layer, chunk + 1, most):
        chunk += 1
    program, known = VtaProgram(image), dict[tuple[int, ...], tuple[list[tuple[int, int, int]], int]]()
    for blocks in runs(range(layer.result.blocks), chunk):
        for place in places(layer.result, height, width):
            one = _Tile(layer, at, program, place, blocks, known)
            one.greatest() if layer.greatest else one.sums()
            one.narrow()
    return program.finish()


def _chunk_fits(layer: VtaLayer, blocks: int, count: int) -> bool:
    taps = max(prod(t.taps) for t in layer.terms)
    return accumulators(layer, blocks, count) <= ACCUMULATORS and blocks * taps <= WEIGHTS


@dataclass(frozen=True)
class _Tile:
    """One tile of one group of result blocks."""

    layer: VtaLayer
    at: Addresses
    program: VtaProgram
    place: TilePlace
    blocks: list[int]
    known: dict[tuple[int, ...], tuple[list[tuple[int, int, int]], int]]
    """Tiles of weights that are in memory already: those of other places of the same layer."""

    @property
    def count(self) -> int:
        """Return the number of vectors of the tile in all of its blocks."""
        return len(self.blocks) * self.place.count

    def sums(self) -> None:
        """Emit every term into accumulators of its own, then all of them into the first ones."""
        for number, term in enumerate(self.layer.terms):
            base = number * self.count
            self._begin(term, base)
            self._products(term, base, self.at.terms[number])
            if term.shift > 0:
                self._all(Alu.SHR, -term.shift, base)
            elif term.shift < 0:
                self._right(-term.shift, Rounding.HALF_UP, base)
        for number in range(1, len(self.layer.terms)):
            opcode = Alu.MUL if self.layer.product else Alu.ADD
            loop = {"iter_out": 1, "iter_in": self.count, "dst_in": 1, "src_in": 1}
            self.program.alu(opcode, [Uop(0, number * self.count)], loop)

    def _begin(self, term: VtaTerm, base: int) -> None:
        """Emit the bias into every accumulator, or 0."""
        if term.bias is None:
            loop = {"iter_out": 1, "iter_in": self.count, "dst_in": 1}
            self.program.gemm([Uop(base)], loop, reset=True)
            return
        first = self.program.image.element(Memory.ACC, np.ascontiguousarray(term.bias, "<i4").tobytes())
        for n, block in enumerate(self.blocks):
            place = self.place.count
            self.program.load(Memory.ACC, base + n * place, first + block, (place, 1), x_stride=0)

    def _products(self, term: VtaTerm, base: int, dram: int) -> None:
        patch, source = patch_of(term, self.place), term.source
        size, taps = patch.rows * patch.columns, prod(term.taps)
        reads = sorted({c for block in self.blocks for c in term.reads(block)})
        for group in runs(reads, min(INPUTS // size, WEIGHTS // (len(self.blocks) * taps))):
            held, weights = self._weights(term, group)
            if not held:
                continue
            uops = []
            for number, (n, m, tap) in enumerate(held):
                row, column = divmod(tap, term.taps[1])
                place = row * term.dilations[0] * patch.columns + column * term.dilations[1]
                uops.append(Uop(base + n * self.place.count, m * size + place, number))
            for m, channel in enumerate(group):
                first = dram + (channel * source.height + patch.top) * source.width + patch.left
                pads = dict(zip(PADS, patch.pads, strict=True))
                self.program.load(
                    Memory.INP, m * size, first, (patch.height, patch.width), x_stride=source.width, **pads
                )
            self.program.load(Memory.WGT, 0, weights, (1, len(held)))
            self.program.gemm(
                uops,
                {
                    "iter_out": self.place.height,
                    "iter_in": self.place.width,
                    "dst_out": self.place.width,
                    "dst_in": 1,
                    "src_out": term.strides[0] * patch.columns,
                    "src_in": term.strides[1],
                },
            )

    def _weights(self, term: VtaTerm, group: list[int]) -> tuple[list[tuple[int, int, int]], int]:
        """Return (block of results, block of inputs, tap) of the tiles that are not zero, and their addresses."""
        key = (id(term), *self.blocks, -1, *group)
        if key not in self.known:
            held, tiles = [], []
            for n, block in enumerate(self.blocks):
                for m, channel in enumerate(group):
                    for tap in range(prod(term.taps)) if channel in term.reads(block) else ():
                        tile = term.tile(block, channel, tap)
                        if tile is not None:
                            held.append((n, m, tap))
                            tiles.append(tile)
            address = self.program.image.element(Memory.WGT, np.stack(tiles).tobytes()) if tiles else 0
            self.known[key] = held, address
        return self.known[key]

    def greatest(self) -> None:
        """Emit the maximum over a window: each tap is loaded by itself, where it is inside the map."""
        (term,) = self.layer.terms
        patch, source, count = patch_of(term, self.place).inside, term.source, self.place.count
        size, place = patch.rows * patch.columns, self.place
        one = term.tile(0, 0, 0)
        assert one is not None  # noqa: S101  (a tile of ones on its diagonal)
        weights = self.program.image.element(Memory.WGT, one.tobytes())
        for group in runs(range(len(self.blocks)), INPUTS // size):
            base, beside = group[0] * count, self.count
            least = {"iter_out": 1, "iter_in": len(group) * count, "dst_in": 1}
            self.program.gemm([Uop(base)], least, reset=True)
            self.program.alu(Alu.ADD, [Uop(base)], {**least, "src_in": 1}, DType.INT8.qmin)
            for m, n in enumerate(group):
                first = self.at.terms[0] + (self.blocks[n] * source.height + patch.top) * source.width + patch.left
                self.program.load(Memory.INP, m * size, first, (patch.height, patch.width), x_stride=source.width)
            self.program.load(Memory.WGT, 0, weights, (1, 1))
            rows = [_inside(term, 0, (place.top, place.height), tap) for tap in range(term.taps[0])]
            columns = [_inside(term, 1, (place.left, place.width), tap) for tap in range(term.taps[1])]
            for tap_row, (top, high) in enumerate(rows):
                for tap_column, (left, wide) in enumerate(columns):
                    if not high or not wide:
                        continue
                    row = (place.top + top) * term.strides[0] - term.begin[0] + tap_row * term.dilations[0] - patch.top
                    column = (place.left + left) * term.strides[1] - term.begin[1] + tap_column * term.dilations[1]
                    source_at = row * patch.columns + column - patch.left
                    into = [n * count + top * place.width + left for n in group]
                    loop = {"iter_out": high, "iter_in": wide, "dst_out": place.width, "dst_in": 1}
                    walk = {"src_out": term.strides[0] * patch.columns, "src_in": term.strides[1]}
                    self.program.gemm([Uop(beside + d) for d in into], loop, reset=True)
                    reads = [Uop(beside + d, m * size + source_at) for m, d in enumerate(into)]
                    self.program.gemm(reads, {**loop, **walk})
                    self.program.alu(
                        Alu.MAX, [Uop(d, beside + d) for d in into], {**loop, "src_out": place.width, "src_in": 1}
                    )

    # --- from accumulators to what is stored --------------------------------------------------------------------------

    def narrow(self) -> None:
        """Emit shift, bounds and store; or store all 32 bits, a byte at a time."""
        how = self.layer.narrowing
        low, high = self.layer.bounds
        if how is not None:
            if how.shift > 0:
                self._right(how.shift, Rounding(how.rounding), 0)
            elif how.shift < 0:
                self._all(Alu.SHR, how.shift, 0)
            self._channels(how)
            low, high = how.low, how.high
        if high is not None:
            self._all(Alu.MIN, high, 0)
        if low is not None:
            self._all(Alu.MAX, low, 0)
        if how is not None or self.layer.moves:
            self._store(0)
            return
        for plane in range(PLANES):
            if plane:
                self._all(Alu.SHR, 8, 0)
            self._store(plane)

    def _right(self, count: int, rounding: Rounding, base: int) -> None:
        """Emit (v + 2^(n-1)) >> n as ((v >> (n-1)) + 1) >> 1 where 2^(n-1) is no immediate: the same number."""
        if rounding is Rounding.FLOOR:
            self._all(Alu.SHR, count, base)
        elif count <= 15:
            self._all(Alu.ADD, 1 << (count - 1), base)
            self._all(Alu.SHR, count, base)
        else:
            self._all(Alu.SHR, count - 1, base)
            self._all(Alu.ADD, 1, base)
            self._all(Alu.SHR, 1, base)

    def _all(self, opcode: Alu, imm: int, base: int) -> None:
        loop = {"iter_out": 1, "iter_in": self.count, "dst_in": 1, "src_in": 1}
        self.program.alu(opcode, [Uop(base, base)], loop, imm)

    def _channels(self, how: Requantize) -> None:
        """Emit the bounds of each channel, as a second operand of MIN and MAX."""
        if how.by_channel is None:
            return
        first = len(self.layer.terms) * self.count
        for opcode, values in ((Alu.MAX, how.by_channel[0]), (Alu.MIN, how.by_channel[1])):
            whole = np.zeros(self.layer.result.blocks * BLOCK, "<i4")
            whole[: len(values)] = values
            dram = self.program.image.element(Memory.ACC, whole.tobytes())
            for n, block in enumerate(self.blocks):
                self.program.load(Memory.ACC, first + n, dram + block, (1, 1))
            uops = [Uop(n * self.place.count, first + n) for n in range(len(self.blocks))]
            self.program.alu(opcode, uops, {"iter_out": 1, "iter_in": self.place.count, "dst_in": 1})

    def _store(self, plane: int) -> None:
        result, place = self.layer.result, self.place
        whole = result.blocks * result.height * result.width
        parts = []
        for n, block in enumerate(self.blocks):
            first = self.at.result + plane * whole + (block * result.height + place.top) * result.width + place.left
            parts.append((n * place.count, first, place.height, place.width, result.width))
        self.program.store(parts)


def _inside(term: VtaTerm, axis: int, results: tuple[int, int], tap: int) -> tuple[int, int]:
    """Return (how many before, how many) results, from a tile's first on, have their tap inside the map."""
    size, (first, count) = (term.source.height, term.source.width)[axis], results
    places = (first + np.arange(count)) * term.strides[axis] - term.begin[axis] + tap * term.dilations[axis]
    kept = np.flatnonzero((places >= 0) & (places < size))
    return (int(kept[0]), len(kept)) if len(kept) else (0, 0)
